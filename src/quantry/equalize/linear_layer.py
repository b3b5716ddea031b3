"""Linear operators whose channels can be scaled: Conv, ConvTranspose, Gemm and MatMul with constant weights."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantry.equalize.channel_layout import ChannelLayout
from quantry.graph.edit import int_of

_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


@dataclass(frozen=True, eq=False)
class LinearLayer:
    """A linear node, the weights that belong to it, and where its channels are.

    Attributes:
        node: The operator.
        layout: Channels of its weight.
        weight: An initializer that no other node reads.
        bias: An initializer that no other node reads, or None. The bias of a MatMul is that of the Add behind it.
        output: The result, bias included.
        output_axis: The axis of ``output`` that counts output channels.
        input_axis: The axis of the first input that counts input channels.
    """

    node: ir.Node
    layout: ChannelLayout
    weight: ir.Value
    bias: ir.Value | None
    output: ir.Value
    output_axis: int
    input_axis: int


def linear_layer(node: ir.Node) -> LinearLayer | str:
    """Return what a node of `LINEAR` is, or why its channels cannot be scaled."""
    weight = node.inputs[1]
    if not is_own(weight):
        return "its weight is no constant or is shared with another node"
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None and not is_own(bias):
        return "its bias is no constant or is shared with another node"
    assert weight is not None
    if node.op_type == "MatMul":
        return _matmul(node, weight)
    if node.op_type == "Gemm":
        return _gemm(node, weight, bias)
    rows, columns = _lengths(weight)[:2]
    groups = int_of(node, "group", 1)
    layout = (
        ChannelLayout(groups, rows, columns * groups, input_first=False)
        if node.op_type == "Conv"
        else ChannelLayout(groups, columns * groups, rows, input_first=True)
    )
    return LinearLayer(node, layout, weight, bias, node.outputs[0], 1, 1)


def _gemm(node: ir.Node, weight: ir.Value, bias: ir.Value | None) -> LinearLayer | str:
    if int_of(node, "transA", 0):
        return "Gemm transposes its input"
    rows, columns = _lengths(weight)
    layout = (
        ChannelLayout(1, rows, columns, input_first=False)
        if int_of(node, "transB", 0)
        else ChannelLayout(1, columns, rows, input_first=True)
    )
    return LinearLayer(node, layout, weight, bias, node.outputs[0], 1, 1)


def _matmul(node: ir.Node, weight: ir.Value) -> LinearLayer | str:
    source = node.inputs[0]
    lengths = _lengths(weight)
    if len(lengths) != 2:
        return "MatMul multiplies with more than one matrix"
    output, bias = _with_added_bias(node, lengths[1])
    if source is None or source.shape is None or output.shape is None:
        return "the rank of MatMul's operands is not known"
    layout = ChannelLayout(1, lengths[1], lengths[0], input_first=True)
    return LinearLayer(node, layout, weight, bias, output, len(output.shape) - 1, len(source.shape) - 1)


def _with_added_bias(node: ir.Node, channels: int) -> tuple[ir.Value, ir.Value | None]:
    """Return the value behind ``MatMul -> Add(bias)`` and the bias, or the MatMul's own output and None."""
    output = node.outputs[0]
    readers = tuple(output.uses())
    if len(readers) != 1 or output.is_graph_output():
        return output, None
    add, index = readers[0]
    if add.op_type != "Add" or add.domain != "" or add.graph is not node.graph:
        return output, None
    bias = add.inputs[1 - index]
    if not is_own(bias):
        return output, None
    assert bias is not None
    lengths = _lengths(bias)
    return (add.outputs[0], bias) if not lengths or lengths[-1] in (1, channels) else (output, None)


def is_own(value: ir.Value | None) -> bool:
    """Whether a value is a float initializer that nobody can override and that one input of one node reads."""
    return (
        value is not None
        and value.is_initializer()
        and not value.is_graph_input()
        and not value.is_graph_output()
        and value.const_value is not None
        and value.const_value.dtype in _TYPES
        and value.const_value.size > 0
        and len(value.uses()) == 1
    )


def _lengths(value: ir.Value) -> tuple[int, ...]:
    assert value.const_value is not None
    return tuple(int(length) for length in value.const_value.shape.numpy())


def array_of(value: ir.Value) -> np.ndarray:
    """Return the array of an initializer."""
    assert value.const_value is not None
    return value.const_value.numpy()
