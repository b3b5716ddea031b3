"""Convolutions and products with weights."""

from typing import Any

import onnx_ir as ir

from quantry.errors import ModelError
from quantry.torchfront.lowering.call import Call, fixed
from quantry.torchfront.lowering.graph_writer import GraphWriter


def convolution(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.conv1d``, ``conv2d``, ``conv3d`` and ``convolution``."""
    if call.get("transposed", default=False):
        return _transposed(writer, call)
    spatial = call.meta("weight").dim() - 2
    attributes: dict[str, Any] = {
        "strides": _spread(call.get("stride", 1), spatial),
        "dilations": _spread(call.get("dilation", 1), spatial),
        "group": call["groups"],
    }
    padding = call.get("padding", 0)
    if isinstance(padding, str):
        attributes["auto_pad"] = {"same": "SAME_UPPER", "valid": "VALID"}[padding]
    else:
        attributes["pads"] = _spread(padding, spatial) * 2
    return writer.op("Conv", _operands(call), attributes)


def transposed_convolution(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.conv_transpose1d`` and ``conv_transpose2d``."""
    return _transposed(writer, call)


def linear(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.linear``: Gemm for matrices, MatMul and Add for anything larger."""
    if call.rank() == 2:
        return writer.op("Gemm", _operands(call), {"transB": 1})
    weight = writer.op("Transpose", [call["weight"]], {"perm": (1, 0)})
    product = writer.op("MatMul", [call["input"], weight])
    return product if call["bias"] is None else writer.op("Add", [product, call["bias"]])


def addmm(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.addmm``."""
    attributes = {"alpha": float(call.get("alpha", 1)), "beta": float(call.get("beta", 1))}
    return writer.op("Gemm", [call["mat1"], call["mat2"], call["self"]], attributes)


def matmul(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.matmul``, ``mm`` and ``bmm``."""
    return writer.op("MatMul", [call["self"], call.get("other", call.get("mat2"))])


def attention(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.scaled_dot_product_attention`` in its parts."""
    if call.get("is_causal", default=False) or call.get("enable_gqa", default=False):
        raise ModelError(
            "scaled_dot_product_attention can be captured without is_causal and enable_gqa only, got one of them; in "
            f"{call.node.name}; give an explicit attn_mask instead"
        )
    rank = call.rank("query")
    factor = call.get("scale", fixed([call.meta("query").shape[-1]], "the head's width", call.node)[0] ** -0.5)
    order = (*range(rank - 2), rank - 1, rank - 2)
    scores = writer.op("MatMul", [call["query"], writer.op("Transpose", [call["key"]], {"perm": order})])
    scores = writer.op("Mul", [scores, writer.constant(float(factor))])
    if call["attn_mask"] is not None:
        scores = writer.op("Add", [scores, call["attn_mask"]])
    return writer.op("MatMul", [writer.op("Softmax", [scores], {"axis": -1}), call["value"]])


def _transposed(writer: GraphWriter, call: Call) -> ir.Value:
    spatial = call.meta("weight").dim() - 2
    return writer.op(
        "ConvTranspose",
        _operands(call),
        {
            "strides": _spread(call.get("stride", 1), spatial),
            "pads": _spread(call.get("padding", 0), spatial) * 2,
            "output_padding": _spread(call.get("output_padding", 0), spatial),
            "dilations": _spread(call.get("dilation", 1), spatial),
            "group": call["groups"],
        },
    )


def _operands(call: Call) -> list[ir.Value]:
    operands = [call["input"], call["weight"]]
    return operands if call["bias"] is None else [*operands, call["bias"]]


def _spread(value: Any, count: int) -> tuple[int, ...]:
    """Return one number for each spatial axis, as torch repeats a single one."""
    if isinstance(value, int):
        return (value,) * count
    return tuple(value) * count if len(value) == 1 else tuple(value)


LOWERINGS = {
    "conv1d": convolution,
    "conv2d": convolution,
    "conv3d": convolution,
    "convolution": convolution,
    "conv_transpose1d": transposed_convolution,
    "conv_transpose2d": transposed_convolution,
    "linear": linear,
    "addmm": addmm,
    "matmul": matmul,
    "mm": matmul,
    "bmm": matmul,
    "scaled_dot_product_attention": attention,
}
