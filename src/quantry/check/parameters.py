"""Constraints on each quantized tensor by itself: type, one scale, a power of two, a centred zero point."""

import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from quantry.check.pairs import QuantizedTensor
from quantry.check.violation import Violation

_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)
_TYPES = {"activation": _BYTES, "operand": _BYTES, "weight": (ir.DataType.INT8,), "bias": (ir.DataType.INT8,)}
_CENTRE = {ir.DataType.UINT8: 128, ir.DataType.UINT16: 32768}


def parameter_violations(name: str, tensor: QuantizedTensor) -> Iterator[Violation]:
    """Yield what is wrong with the parameters of one tensor.

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
        yield Violation(tensor.node, "power of two", values, f"use {nearest} and quantize again from float")


def _first(values: np.ndarray) -> int:
    return int(values.reshape(-1)[0])
