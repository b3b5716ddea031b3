"""Operators of quantized models that no integer NPU has: scales found at run time, and types that are no int8."""

from collections.abc import Iterator

import onnx_ir as ir

from quantry.check.violation import Violation

_AGAIN = "quantize the float model with XINT8 or recommended-npu"
_FOREIGN = {
    "DynamicQuantizeLinear": "its scale is found while the model runs",
    "ConvInteger": "its result has no scale of its own",
    "MatMulInteger": "its result has no scale of its own",
    "DynamicQuantizeMatMul": "its scale is found while the model runs",
    "DynamicQuantizeLSTM": "its scale is found while the model runs",
    "MatMulIntegerToFloat": "its result is float",
    "MatMulNBits": "it multiplies floats; only its weight is stored as integers",
    "BFPQuantizeDequantize": "it makes blocks that share an exponent, no integers",
    "MXQuantizeDequantize": "it makes blocks that share an exponent, no integers",
}


def foreign_violations(graph: ir.Graph) -> Iterator[Violation]:
    """Yield the nodes that quantize in a way that integer NPUs do not have.

    Args:
        graph: A quantized model's graph.
    """
    for node in graph:
        if node.op_type in _FOREIGN:
            yield Violation(node.name or "", "format", f"{node.op_type}: {_FOREIGN[node.op_type]}", _AGAIN)
