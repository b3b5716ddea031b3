"""Integer forms of the operators that onnxruntime's transformer optimizer writes, for dynamic quantization.

::

    EmbedLayerNormalization(ids, segments, five float tables, mask)
        -> QEmbedLayerNormalization(ids, segments, five integer tables, mask, five scales, five zero points)
    Attention(x, weight, bias, mask, past)
        -> QAttention(x int, weight int, bias, scale of x, scale, mask, zero point of x, zero point, past)
"""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from quantry.emit.graph_editor import ONNX_TYPE, GraphEditor, as_tensor
from quantry.graph.quant_plan import QuantPlan
from quantry.numerics.rounding import quantize_array
from quantry.numerics.tensor_params import QuantParams

_DOMAIN = "com.microsoft"
Triple = tuple[ir.Value, ir.Value, ir.Value]
"""Integers, scale and zero point."""


def write_fused(
    editor: GraphEditor, plan: QuantPlan, params: QuantParams, data: Callable[[ir.Value, ir.Node], Triple]
) -> set[str]:
    """Write the planned nodes of these types as integer operators.

    Args:
        editor: The graph's editor.
        plan: The weights to quantize.
        params: Their scales and zero points.
        data: Returns integers, scale and zero point of a computed tensor for a node.

    Returns:
        Names of the nodes that were replaced.
    """
    written = set()
    for node in list(editor.model.graph):
        if node.domain != _DOMAIN or (node.name or "") not in plan.quantized_nodes:
            continue
        if node.op_type == "EmbedLayerNormalization":
            new = _embedding(editor, node, params)
        elif node.op_type == "Attention":
            new = _attention(editor, node, params, data)
        else:
            continue
        written.add(node.name or "")
        _replace(node, new)
    return written


def _embedding(editor: GraphEditor, node: ir.Node, params: QuantParams) -> ir.Node:
    inputs = [*node.inputs, *[None] * 8][:8]
    tables = [None if value is None else _constant(editor, value, params) for value in inputs[2:7]]
    table_inputs = [[None if table is None else table[index] for table in tables] for index in range(3)]
    return _node(
        "QEmbedLayerNormalization", node, [*inputs[:2], *table_inputs[0], inputs[7], *table_inputs[1], *table_inputs[2]]
    )


def _attention(
    editor: GraphEditor, node: ir.Node, params: QuantParams, data: Callable[[ir.Value, ir.Node], Triple]
) -> ir.Node:
    source, weight, bias, mask, past = [*node.inputs, *[None] * 5][:5]
    assert source is not None
    assert weight is not None
    integers, scale, zero_point = data(source, node)
    stored = _constant(editor, weight, params)
    inputs = [integers, stored[0], bias, scale, stored[1], mask, zero_point, stored[2], past]
    while inputs[-1] is None:
        inputs.pop()
    return _node("QAttention", node, inputs)


def _constant(editor: GraphEditor, value: ir.Value, params: QuantParams) -> Triple:
    tensor_params = params.tensors[value.name or ""]
    source = value.const_value
    assert source is not None

    def integers(name: str) -> ir.TensorProtocol:
        return as_tensor(quantize_array(source.numpy(), tensor_params), tensor_params.dtype, name)

    stored = editor.lazy(f"{value.name}_quantized", value, ONNX_TYPE[tensor_params.dtype], integers)
    zero_name = editor.fresh(f"{value.name}_zero_point")
    return (
        stored,
        editor.constant(np.asarray(tensor_params.scale, np.float32), f"{value.name}_scale"),
        editor.initializer(as_tensor(np.asarray(tensor_params.zero_point), tensor_params.dtype, zero_name)),
    )


def _node(op_type: str, node: ir.Node, inputs: list[ir.Value | None]) -> ir.Node:
    attributes = {name: attribute.value for name, attribute in node.attributes.items()} or None
    return ir.node(
        op_type, inputs, attributes=attributes, domain=_DOMAIN, num_outputs=len(node.outputs), name=f"{node.name}_quant"
    )


def _replace(node: ir.Node, new: ir.Node) -> None:
    graph = node.graph
    assert graph is not None
    for old, output in zip(node.outputs, new.outputs, strict=True):
        output.name, output.type, output.shape = old.name, old.type, old.shape
    ir.convenience.replace_nodes_and_values(graph, node, [node], [new], node.outputs, new.outputs)
