"""Remove a Relu or Clip if the QuantizeLinear after it limits values in the same way.

::

    Conv -> Relu -> QuantizeLinear with zero point 0 of uint8      becomes      Conv -> QuantizeLinear

Rounding never changes the order of two numbers, so a bound that rounds to an end of the integer type has no effect:
the results are the same, and runtimes that do not fuse the function save a pass over the tensor. The rounding of a zero
point moves the ends by half a step, so a bound one step away from the end is removed too; values may then exceed it by
one step.
"""

import numpy as np
import onnx_ir as ir

from quantry.emit.integer import IntegerTensor, limits_of
from quantry.graph.edit import bypass, constant_of
from quantry.graph.passes.tidy import remove_unused

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
        sides = [_side(use.node) for use in output.uses()]
        if output.is_graph_output() or not sides or node.inputs[0].producer() is None:
            continue
        if all(side is not None and _saturates(node, side) for side in sides):
            source, name = _unrounded(node.inputs[0]), output.name
            if bypass(node, source):
                removed += 1
                output.name, source.name = None, name  # tools that compare tensors look for the function's result
    remove_unused(model)
    return removed


def _unrounded(value: ir.Value) -> ir.Value:
    """Return what a Q/DQ pair rounds that nothing else reads: without the bound between, one pair is enough."""
    restorer = value.producer()
    integers = None if restorer is None or restorer.op_type != "DequantizeLinear" else restorer.inputs[0]
    quantizer = None if integers is None else integers.producer()
    if quantizer is None or quantizer.op_type != "QuantizeLinear" or quantizer.inputs[0] is None:
        return value
    assert integers is not None
    alone = len(value.uses()) == 1 and len(integers.uses()) == 1 and not value.is_graph_output()
    return quantizer.inputs[0] if alone and quantizer.inputs[0].producer() is not None else value


def _saturates(node: ir.Node, side: IntegerTensor) -> bool:
    assert side.dtype is not None
    ends = np.iinfo(side.dtype.numpy())
    low, high = limits_of(node, side)
    return (low is None or low <= ends.min + 1) and (high is None or high >= ends.max - 1)


def _side(reader: ir.Node) -> IntegerTensor | None:
    if reader.op_type != "QuantizeLinear" or len(reader.inputs) < 3:
        return None
    _, scale, zero_point = reader.inputs
    if scale is None or zero_point is None or zero_point.dtype is None:
        return None
    scales, zeros = constant_of(scale), constant_of(zero_point)
    if scales is None or zeros is None or scales.size != 1 or zeros.dtype.kind not in "iu":
        return None
    return IntegerTensor(reader.outputs[0], scale, zero_point)
