"""Remove a Relu or Clip if the QuantizeLinear after it limits values in the same way.

::

    Conv -> Relu -> QuantizeLinear with zero point 0 of uint8      becomes      Conv -> QuantizeLinear

Rounding never changes the order of two numbers, so a bound that rounds to an end of the integer type has no effect:
the results are the same, and runtimes that do not fuse the function save a pass over the tensor. The rounding of a zero
point moves the ends by half a step, so a bound one step away from the end is removed too; values may then exceed it by
one step.
"""

import onnx_ir as ir

from quantry.emit.integer import limits_of
from quantry.graph.edit import bypass, constant_of
from quantry.graph.passes.tidy import remove_unused
from quantry.graph.qdq import QuantizedTensor, before_pair, quantizers_of, read_through, tensor_of

_BOUNDING = ("Relu", "Clip")


def remove_saturated_bounds(model: ir.Model) -> int:
    """Remove such nodes from a model with standard Q/DQ pairs, in place.

    Args:
        model: The model.

    Returns:
        How many nodes were removed.
    """
    removed = 0
    for node in list(model.graph):
        if node.op_type not in _BOUNDING or node.domain not in ("", "ai.onnx") or node.inputs[0] is None:
            continue
        if any(bound is not None and constant_of(bound) is None for bound in node.inputs[1:]):
            continue
        output = node.outputs[0]
        quantizers = quantizers_of(output)
        if output.is_graph_output() or not quantizers or node.inputs[0].producer() is None:
            continue
        if all(_saturates(node, tensor_of(quantizer)) for quantizer in quantizers):
            source, name = _unrounded(node.inputs[0]), output.name
            if bypass(node, source):
                removed += 1
                output.name, source.name = None, name  # tools that compare tensors look for the function's result
    remove_unused(model)
    return removed


def _unrounded(value: ir.Value) -> ir.Value:
    """Return what a Q/DQ pair rounds that nothing else reads: without the bound between, one pair is enough."""
    tensor, floats = read_through(value), before_pair(value)
    if tensor is None or floats.producer() is None:
        return value
    alone = len(value.uses()) == 1 and len(tensor.integers.uses()) == 1 and not value.is_graph_output()
    return floats if alone and floats is not tensor.integers else value


def _saturates(node: ir.Node, tensor: QuantizedTensor | None) -> bool:
    if tensor is None or not tensor.is_fixed or tensor.step is None or tensor.limits is None:
        return False
    low, high = limits_of(node, tensor)
    return (low is None or low <= tensor.limits[0] + 1) and (high is None or high >= tensor.limits[1] - 1)
