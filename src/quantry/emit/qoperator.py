"""QOperator: operators on integers, without floats in between.

First the Q/DQ pairs are written as in `Qdq`; then every float node between them that has an integer kernel is
replaced::

    x_int -> DequantizeLinear -> Conv -> Relu -> QuantizeLinear -> y_int     becomes     x_int -> QLinearConv -> y_int

A node without a kernel keeps its DequantizeLinear and QuantizeLinear and computes in float.
"""

from collections.abc import Mapping

import onnx_ir as ir

from quantry.emit.graph_editor import GraphEditor, describe
from quantry.emit.integer import (
    KERNELS,
    Kernel,
    QuantizedOperator,
    clip_node,
    limits_of,
)
from quantry.emit.qdq import emit_qdq
from quantry.facts.operators import Family, of_family
from quantry.graph.qdq import QuantizedTensor, is_pair_node, quantizers_of, read_through, tensor_of
from quantry.graph.quant_plan import QuantPlan
from quantry.numerics.tensor_params import QuantParams
from quantry.recipe import Format, Qdq

_BOUNDING = ("Relu", "Clip")
_READS_INTEGERS = of_family(Family.INDEX)


def emit_qoperator(model: ir.Model, plan: QuantPlan, params: QuantParams, options: Format) -> None:  # noqa: ARG001
    """Write the plan with integer operators, in place.

    Args:
        model: A copy of the float model that may be edited.
        plan: The tensors to quantize.
        params: Their scales and zero points.
        options: The format; it has no options.
    """
    emit_qdq(model, plan, params, Qdq())
    use_integer_kernels(model, KERNELS)


def use_integer_kernels(model: ir.Model, kernels: Mapping[str, Kernel]) -> None:
    """Replace float nodes between pairs by integer kernels, in place.

    Args:
        model: A model with standard pairs whose scales and zero points are constants.
        kernels: The kernels to use, by float operator.
    """
    editor = GraphEditor(model)
    for node in list(model.graph):
        if node.graph is None or node.domain not in ("", "ai.onnx"):
            continue
        if node.op_type in _READS_INTEGERS:
            _read_integers(node)
        elif node.op_type in kernels:
            _replace(node, editor, kernels)
    _remove_unread(model)
    if any(node.domain == "com.microsoft" for node in model.graph):
        model.opset_imports.setdefault("com.microsoft", 1)


def _replace(node: ir.Node, editor: GraphEditor, kernels: Mapping[str, Kernel]) -> None:
    """Replace a float node, and a Relu or Clip that is its only reader, by an integer kernel if there is one."""
    bounding = _bounding_reader(node)
    outputs = [side for output in (bounding or node).outputs if (side := _written(output)) is not None]
    if not outputs or len(outputs) < len((bounding or node).outputs):
        return
    unit = QuantizedOperator(node, tuple(map(_read, node.inputs)), tuple(outputs), editor)
    replacement = kernels[node.op_type](unit)
    if replacement is None:
        return
    chain = [replacement]
    if bounding is not None:
        limits = limits_of(bounding, unit.output)
        if limits != (None, None):
            chain.append(clip_node(unit, replacement.outputs[0], limits))
    graph = node.graph
    assert graph is not None
    graph.insert_before(node, chain)
    for side, output in zip(unit.outputs, chain[-1].outputs, strict=True):
        _take_over(side, output)
    removed = [*(side.node for side in outputs if side.node), *([bounding] if bounding is not None else []), node]
    graph.remove(removed, safe=True)


def _take_over(side: QuantizedTensor, new: ir.Value) -> None:
    old = side.integers
    assert side.dtype is not None
    describe(new, side.dtype, old.shape)
    old.replace_all_uses_with(new)
    new.name, old.name = old.name, f"{old.name}_replaced"


def _bounding_reader(node: ir.Node) -> ir.Node | None:
    """Return the Relu or Clip that is the only reader of a node's only output, unless that output is quantized."""
    if len(node.outputs) != 1 or node.outputs[0].is_graph_output():
        return None
    readers = [use.node for use in node.outputs[0].uses()]
    if len(readers) != 1 or readers[0].op_type not in _BOUNDING or readers[0].inputs[0] is not node.outputs[0]:
        return None
    return readers[0] if all(bound is None or bound.const_value for bound in readers[0].inputs[1:]) else None


def _read(value: ir.Value | None) -> QuantizedTensor | None:
    """Return the integers that a value is dequantized from; None if there are none, or a parameter is computed."""
    tensor = read_through(value)
    return tensor if tensor is not None and tensor.is_fixed else None


def _written(value: ir.Value) -> QuantizedTensor | None:
    """Return the integers that the only reader of a value quantizes it to; None unless it has one constant scale."""
    quantizers = quantizers_of(value)
    if len(quantizers) != 1 or value.is_graph_output():
        return None
    tensor = tensor_of(quantizers[0])
    return tensor if tensor is not None and tensor.is_fixed and tensor.step is not None else None


def _read_integers(node: ir.Node) -> None:
    # The order of integers is that of the numbers they represent, so the index of the largest is the same.
    source = _read(node.inputs[0])
    if source is not None and source.axis is None and source.dtype in (ir.DataType.INT8, ir.DataType.UINT8):
        node.replace_input_with(0, source.integers)


def _remove_unread(model: ir.Model) -> None:
    graph = model.graph
    for node in reversed(list(graph)):
        output = node.outputs[0]
        if is_pair_node(node) and not output.uses() and not output.is_graph_output():
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and name.endswith(("_quantized", "_scale", "_zero_point")):
            del graph.initializers[name]
