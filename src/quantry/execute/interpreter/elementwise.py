"""Operators that compute each element on its own, for which torch has no function of the same signature."""

from functools import reduce
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional

_TYPES = {
    ir.DataType.FLOAT: torch.float32,
    ir.DataType.FLOAT16: torch.float16,
    ir.DataType.BFLOAT16: torch.bfloat16,
    ir.DataType.DOUBLE: torch.float64,
    ir.DataType.INT8: torch.int8,
    ir.DataType.UINT8: torch.uint8,
    ir.DataType.INT16: torch.int16,
    ir.DataType.INT32: torch.int32,
    ir.DataType.INT64: torch.int64,
    ir.DataType.BOOL: torch.bool,
    # torch has few functions for wider unsigned types; the next signed one has the same values.
    ir.DataType.UINT16: torch.int32,
    ir.DataType.UINT32: torch.int64,
    ir.DataType.UINT64: torch.int64,
}


def clip(x: Tensor, *, min: float | None = None, max: float | None = None) -> Tensor:  # noqa: A002 - ONNX's names
    """ONNX Clip."""
    return x if min is None and max is None else torch.clamp(x, min, max)


def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    """ONNX LeakyRelu."""
    return functional.leaky_relu(x, alpha)


def prelu(x: Tensor, slope: Tensor) -> Tensor:
    """ONNX PRelu; the slope may have any shape that broadcasts, unlike torch's, which has one number per channel."""
    return torch.where(x >= 0, x, x * slope)


def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """ONNX Elu."""
    return functional.elu(x, alpha)


def selu(x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Tensor:
    """ONNX Selu; torch's has fixed numbers."""
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(x))


def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """ONNX Celu."""
    return functional.celu(x, alpha)


def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """ONNX ThresholdedRelu."""
    return torch.where(x > alpha, x, torch.zeros_like(x))


def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    """ONNX Shrink."""
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, torch.zeros_like(x)))


def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    """ONNX HardSigmoid; torch's has a fixed slope of 1/6."""
    return torch.clamp(alpha * x + beta, 0.0, 1.0)


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """ONNX Gelu."""
    return functional.gelu(x, approximate=approximate)


def sigmoid(x: Tensor) -> Tensor:
    """ONNX Sigmoid.

    For the gradient it saves its argument instead of its result: the product of a SiLU, ``x * sigmoid(x)``, saves that
    argument anyway, so training holds one activation less for each SiLU.
    """
    result: Tensor = _Sigmoid.apply(x)
    return result


class _Sigmoid(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return torch.ops.aten.sigmoid_backward(gradients[0], torch.sigmoid(x))


def minimum(*values: Tensor) -> Tensor:
    """ONNX Min."""
    return reduce(torch.minimum, values)


def maximum(*values: Tensor) -> Tensor:
    """ONNX Max."""
    return reduce(torch.maximum, values)


def total(*values: Tensor) -> Tensor:
    """ONNX Sum."""
    return reduce(torch.add, values)


def mean(*values: Tensor) -> Tensor:
    """ONNX Mean."""
    return reduce(torch.add, values) / len(values)


def divide(a: Tensor, b: Tensor) -> Tensor:
    """ONNX Div, which truncates integers."""
    return torch.div(a, b) if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def power(x: Tensor, exponent: Tensor) -> Tensor:
    """ONNX Pow; the result has the type of the base, whatever the type of the exponent."""
    result = torch.pow(x, exponent)
    return result if result.dtype == x.dtype else result.to(x.dtype)


def modulo(a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    """ONNX Mod: the sign of the divisor, or with ``fmod`` that of the dividend."""
    return torch.fmod(a, b) if fmod else torch.remainder(a, b)


def cast(x: Tensor, *, to: int) -> Tensor:
    """ONNX Cast between the types that torch computes with."""
    return x.to(torch_type(to))


def torch_type(kind: int) -> torch.dtype:
    """Return torch's type of a number that an ONNX attribute gives."""
    return _TYPES[ir.DataType(kind)]


def cast_like(x: Tensor, like: Tensor) -> Tensor:
    """ONNX CastLike."""
    return x.to(like.dtype)


def is_infinite(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    """ONNX IsInf."""
    infinite = torch.isinf(x)
    if not detect_negative:
        infinite = infinite & (x > 0)
    return infinite if detect_positive else infinite & (x < 0)


def shifted(a: Tensor, b: Tensor, *, direction: str) -> Tensor:
    """ONNX BitShift of unsigned integers."""
    wide = a.long() << b.long() if direction == "LEFT" else a.long() >> b.long()
    return wide.to(a.dtype)


def cast_refusal(node: ir.Node) -> str | None:
    """Return why a Cast cannot be computed, or None."""
    dtype = ir.DataType(node.attributes["to"].as_int())
    return None if dtype in _TYPES else f"Cast to {dtype.name} has no function in torch here"
