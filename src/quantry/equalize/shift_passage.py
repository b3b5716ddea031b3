"""Which operators a constant of a channel passes unchanged.

A constant may move from one side of ``f`` to the other where ``f(x + c) = f(x) + c``, channel by channel: copies,
means and largest values obey that. Zeros that an operator puts around a tensor do not move with it.
"""

import onnx_ir as ir

from quantry.equalize.linear_layer import LinearLayer
from quantry.equalize.passage import Channels, passage
from quantry.graph.edit import float_of, int_of, string_of
from quantry.graph.operators import Family, of_family

_PASSING = of_family(Family.MOVEMENT, Family.SELECTION, Family.AVERAGE)


def shift_passage(node: ir.Node, channels: Channels) -> Channels | str:
    """Return where the channels are behind a node that reads them as its first input, or why no constant can pass.

    Args:
        node: The reader.
        channels: Where its first input keeps the channels.
    """
    known = node.domain == "" and node.op_type in _PASSING
    if not known:
        return f"{node.op_type} does not pass a constant on"
    if node.op_type == "AveragePool" and int_of(node, "count_include_pad", 0) and pads(node):
        return "AveragePool counts zeros around its input"
    return passage(node, channels)


def pads(node: ir.Node) -> bool:
    """Whether a Conv or a pooling operator puts something around its input, or may do so."""
    if string_of(node, "auto_pad", "NOTSET").startswith("SAME"):
        return True
    attribute = node.attributes.get("pads")
    return attribute is not None and any(attribute.as_ints())


def takes_no_shift(layer: LinearLayer) -> str:
    """Return why a layer cannot take a constant of its input into its bias, or an empty string."""
    node = layer.node
    if node.op_type == "ConvTranspose":
        return "ConvTranspose spreads a constant unevenly"
    if node.op_type == "Conv" and pads(node):
        return "Conv puts zeros around its input"
    return gives_no_shift(layer)


def gives_no_shift(layer: LinearLayer) -> str:
    """Return why a constant cannot be taken out of a layer's bias, or an empty string."""
    node = layer.node
    if node.op_type == "MatMul" and layer.bias is None:
        return "MatMul has no bias"
    if node.op_type == "Gemm" and (float_of(node, "alpha", 1.0), float_of(node, "beta", 1.0)) != (1.0, 1.0):
        return "Gemm multiplies with alpha or beta"
    return ""
