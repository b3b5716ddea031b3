"""The rules that `quantry check` applies: parameters of single tensors, unsupported operators, and float operands."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantry.check.pairs import QuantizedTensor, is_dequantize, is_quantize
from quantry.graph.operators import FUSIBLE, Family, operators_where
from quantry.scale.npu import is_correction


@dataclass(frozen=True)
class Violation:
    """One violated constraint.

    Attributes:
        node: Name of the node.
        rule: The constraint, such as "shift cut".
        values: The actual values, and those allowed.
        change: What to change.
    """

    node: str
    rule: str
    values: str
    change: str

    def __str__(self) -> str:
        return f"{self.node}: {self.rule}: {self.values}; {self.change}"


_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)
_TYPES = {"activation": _BYTES, "operand": _BYTES, "weight": (ir.DataType.INT8,), "bias": (ir.DataType.INT8,)}
_CENTRE = {ir.DataType.UINT8: 128, ir.DataType.UINT16: 32768}


def parameter_violations(name: str, tensor: QuantizedTensor) -> Iterator[Violation]:
    """Yield what is wrong with the parameters of one tensor: type, one scale, a power of two, a centred zero point.

    Args:
        name: Name of the tensor.
        tensor: Its parameters.
    """
    allowed = _TYPES[tensor.role]
    if tensor.dtype not in allowed:
        names = " or ".join(dtype.name.lower() for dtype in allowed)
        given = "unknown" if tensor.dtype is None else tensor.dtype.name.lower()
        yield Violation(
            tensor.node, "type", f"{tensor.role} {name!r} is {given}, allowed {names}", f"quantize it to {names}"
        )
    yield from _scale_violations(name, tensor)
    centre = 0 if tensor.dtype is None else _CENTRE.get(tensor.dtype, 0)
    if (tensor.zero_point != centre).any():
        yield Violation(
            tensor.node,
            "zero point",
            f"{name!r} has zero point {_first(tensor.zero_point)}, allowed {centre}",
            "quantize it symmetrically",
        )


def _scale_violations(name: str, tensor: QuantizedTensor) -> Iterator[Violation]:
    if tensor.scale is None:
        change = "store the scale as an initializer"
        yield Violation(tensor.node, "scale", f"the scale of {name!r} is computed at run time", change)
    elif tensor.scale.size != 1:
        values = f"{name!r} has {tensor.scale.size} scales, allowed 1"
        yield Violation(tensor.node, "per tensor", values, "quantize it per tensor")
    elif tensor.position is None:
        scale = tensor.scale.item()
        usable = math.isfinite(scale) and scale > 0
        nearest = f"2**{round(math.log2(scale))}" if usable else "a power of two"
        values = f"{name!r} has scale {scale:.6g}, allowed powers of two"
        yield Violation(tensor.node, "power of two", values, f"use {nearest} and quantize the float model again")


def _first(values: np.ndarray) -> int:
    return int(values.reshape(-1)[0])


_AGAIN = "quantize the float model with XINT8 or recommended-npu"
_FOREIGN = {
    "DynamicQuantizeLinear": "its scale is computed at run time",
    "ConvInteger": "its result has no scale",
    "MatMulInteger": "its result has no scale",
    "DynamicQuantizeMatMul": "its scale is computed at run time",
    "DynamicQuantizeLSTM": "its scale is computed at run time",
    "MatMulIntegerToFloat": "its result is float",
    "MatMulNBits": "it multiplies floats; only its weight is stored as integers",
    "BFPQuantizeDequantize": "it uses blocks with a shared exponent instead of integers",
    "MXQuantizeDequantize": "it uses blocks with a shared exponent instead of integers",
}


def foreign_violations(graph: ir.Graph) -> Iterator[Violation]:
    """Yield the nodes that quantize in a way that integer NPUs do not support.

    Args:
        graph: A quantized model's graph.
    """
    for node in graph:
        if node.op_type in _FOREIGN:
            yield Violation(node.name or "", "format", f"{node.op_type}: {_FOREIGN[node.op_type]}", _AGAIN)


_COMPUTING = operators_where(lambda row: row.npu and not row.npu.moves)
_MOVING = operators_where(lambda row: row.npu and row.npu.moves)
# Further operands of other operators are parameters, such as the bounds of Clip, and stay float.
_ALL_OPERANDS = operators_where(lambda row: row.weight or row.operands > 1 or row.family is Family.JOIN)
_FUSED_AFTER = {
    **dict.fromkeys(FUSIBLE, operators_where(lambda row: row.fuses)),
    "AveragePool": ("Pad",),
}


def closure_violations(node: ir.Node) -> Iterator[Violation]:
    """Yield the float operands and results of a node that the NPU should compute.

    Float operators that the NPU does not have are allowed, and so are those that only move data to an output of the
    model.

    Args:
        node: Any node.
    """
    computes = node.op_type in _COMPUTING
    if not computes and not (node.op_type in _MOVING and _is_quantized(node.outputs[0])):
        return
    operands = node.inputs if node.op_type in _ALL_OPERANDS else node.inputs[:1]
    for operand in operands:
        if operand is not None and _is_float(operand) and not _reads_integers(node, operand):
            yield Violation(
                node.name or "",
                "closed by Q/DQ",
                f"its operand {operand.name!r} is float",
                "quantize it: insert a QuantizeLinear and a DequantizeLinear before the node",
            )
    output = node.outputs[0]
    if computes and _is_float(output) and not _writes_integers(output):
        yield Violation(
            node.name or "",
            "closed by Q/DQ",
            f"its result {output.name!r} is float",
            "quantize it: insert a QuantizeLinear after the node",
        )


def _is_float(value: ir.Value) -> bool:
    return value.dtype in (None, ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)


def _is_quantized(value: ir.Value) -> bool:
    return any(is_quantize(use.node) for use in value.uses())


def _reads_integers(node: ir.Node, operand: ir.Value) -> bool:
    if operand.const_value is not None:
        others = [value for value in node.inputs if value is not None and value is not operand]
        return len(others) == 1 and is_correction(node, others[0])
    producer = operand.producer()
    return is_dequantize(producer) or _is_fused(node, operand)


def _writes_integers(output: ir.Value) -> bool:
    readers = [use.node for use in output.uses()]
    if output.is_graph_output() or not readers:
        return False
    return all(is_quantize(reader) or _is_fused(reader, output) for reader in readers)


def _is_fused(node: ir.Node, operand: ir.Value) -> bool:
    producer = operand.producer()
    if producer is None or len(operand.uses()) != 1 or operand.is_graph_output():
        return False
    return producer.op_type in _FUSED_AFTER.get(node.op_type, frozenset()) or is_correction(node, operand)
