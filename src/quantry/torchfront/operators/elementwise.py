"""Operators that compute each element by itself."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from quantry.torchfront.operators.operator_entry import OperatorEntry


def clip(x: Tensor, *, low: float | None = None, high: float | None = None) -> Tensor:
    """ONNX Clip with constant bounds."""
    return x if low is None and high is None else torch.clamp(x, low, high)


def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    """ONNX LeakyRelu."""
    return functional.leaky_relu(x, alpha)


def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    """ONNX HardSigmoid."""
    return torch.clamp(alpha * x + beta, 0.0, 1.0)


def sigmoid(x: Tensor) -> Tensor:
    """ONNX Sigmoid; for the gradient it keeps its argument, which the product of a SiLU keeps anyway."""
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


def divide(a: Tensor, b: Tensor) -> Tensor:
    """ONNX Div, which truncates integers."""
    if a.is_floating_point():
        return torch.div(a, b)
    return torch.div(a, b, rounding_mode="trunc")


def cast(x: Tensor, *, to: int) -> Tensor:
    """ONNX Cast between the types both sides have."""
    return x.to(_TYPES[to])


def same(x: Tensor) -> Tensor:
    """ONNX Identity, and Dropout at inference."""
    return x


_TYPES = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    16: torch.bfloat16,
}

OPERATORS = {
    "Relu": OperatorEntry(torch.relu),
    "Sigmoid": OperatorEntry(sigmoid),
    "Tanh": OperatorEntry(torch.tanh),
    "Softplus": OperatorEntry(functional.softplus),
    "Exp": OperatorEntry(torch.exp),
    "Log": OperatorEntry(torch.log),
    "Sqrt": OperatorEntry(torch.sqrt),
    "Abs": OperatorEntry(torch.abs),
    "Neg": OperatorEntry(torch.neg),
    "Erf": OperatorEntry(torch.erf),
    "Reciprocal": OperatorEntry(torch.reciprocal),
    "Clip": OperatorEntry(clip, {1: "low", 2: "high"}),
    "LeakyRelu": OperatorEntry(leaky_relu),
    "HardSigmoid": OperatorEntry(hard_sigmoid),
    "Add": OperatorEntry(torch.add),
    "Sub": OperatorEntry(torch.sub),
    "Mul": OperatorEntry(torch.mul),
    "Div": OperatorEntry(divide),
    "Pow": OperatorEntry(torch.pow),
    "Where": OperatorEntry(torch.where),
    "Cast": OperatorEntry(cast),
    "Identity": OperatorEntry(same),
    "Dropout": OperatorEntry(same),
}
