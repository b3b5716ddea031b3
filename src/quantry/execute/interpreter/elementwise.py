"""Elementwise operators: activation functions, arithmetic, comparisons."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows

from quantry.execute.interpreter.attributes import Attributes

Inputs = list[Any]


def _unary(function: Callable[..., Any]) -> Callable[[Inputs, Attributes], Any]:
    return lambda inputs, _: function(inputs[0])


def _binary(function: Callable[..., Any]) -> Callable[[Inputs, Attributes], Any]:
    return lambda inputs, _: function(inputs[0], inputs[1])


def _folded(function: Callable[..., Any]) -> Callable[[Inputs, Attributes], Any]:
    return lambda inputs, _: reduce(function, inputs)


def _clip(inputs: Inputs, attributes: Attributes) -> Any:
    low = inputs[1] if len(inputs) > 1 else None
    high = inputs[2] if len(inputs) > 2 else None
    if "min" in attributes or "max" in attributes:
        low = torch.tensor(attributes.number("min", float("-inf")), device=inputs[0].device)
        high = torch.tensor(attributes.number("max", float("inf")), device=inputs[0].device)
    if low is None and high is None:
        return inputs[0]
    return torch.clamp(inputs[0], low, high)


def _prelu(inputs: Inputs, _: Attributes) -> Any:
    return torch.where(inputs[0] >= 0, inputs[0], inputs[0] * inputs[1])


def _gelu(inputs: Inputs, attributes: Attributes) -> Any:
    return F.gelu(inputs[0], approximate=attributes.text("approximate", "none"))


def _div(inputs: Inputs, _: Attributes) -> Any:
    if inputs[0].is_floating_point():
        return inputs[0] / inputs[1]
    return torch.div(inputs[0], inputs[1], rounding_mode="trunc")


def _hard_sigmoid(inputs: Inputs, attributes: Attributes) -> Any:
    return torch.clamp(inputs[0] * attributes.number("alpha", 0.2) + attributes.number("beta", 0.5), 0.0, 1.0)


def _mod(inputs: Inputs, attributes: Attributes) -> Any:
    return (torch.fmod if attributes.integer("fmod") else torch.remainder)(inputs[0], inputs[1])


ELEMENTWISE: dict[str, Callable[[Inputs, Attributes], Any]] = {
    "Relu": _unary(torch.relu),
    "Sigmoid": _unary(torch.sigmoid),
    "Tanh": _unary(torch.tanh),
    "Erf": _unary(torch.erf),
    "Exp": _unary(torch.exp),
    "Log": _unary(torch.log),
    "Sqrt": _unary(torch.sqrt),
    "Abs": _unary(torch.abs),
    "Neg": _unary(torch.neg),
    "Sign": _unary(torch.sign),
    "Floor": _unary(torch.floor),
    "Ceil": _unary(torch.ceil),
    "Round": _unary(torch.round),
    "Reciprocal": _unary(torch.reciprocal),
    "Sin": _unary(torch.sin),
    "Cos": _unary(torch.cos),
    "Not": _unary(torch.logical_not),
    "Identity": _unary(lambda value: value),
    "Dropout": _unary(lambda value: value),
    "Softplus": _unary(F.softplus),
    "Softsign": _unary(F.softsign),
    "Mish": _unary(F.mish),
    "HardSwish": _unary(F.hardswish),
    "HardSigmoid": _hard_sigmoid,
    "Gelu": _gelu,
    "LeakyRelu": lambda inputs, attributes: F.leaky_relu(inputs[0], attributes.number("alpha", 0.01)),
    "Elu": lambda inputs, attributes: F.elu(inputs[0], attributes.number("alpha", 1.0)),
    "PRelu": _prelu,
    "Clip": _clip,
    "Add": _binary(torch.add),
    "Sub": _binary(torch.sub),
    "Mul": _binary(torch.mul),
    "Div": _div,
    "Pow": _binary(torch.pow),
    "Mod": _mod,
    "Min": _folded(torch.minimum),
    "Max": _folded(torch.maximum),
    "Sum": _folded(torch.add),
    "Mean": lambda inputs, _: reduce(torch.add, inputs) / len(inputs),
    "Equal": _binary(torch.eq),
    "Greater": _binary(torch.gt),
    "GreaterOrEqual": _binary(torch.ge),
    "Less": _binary(torch.lt),
    "LessOrEqual": _binary(torch.le),
    "And": _binary(torch.logical_and),
    "Or": _binary(torch.logical_or),
    "Where": lambda inputs, _: torch.where(inputs[0], inputs[1], inputs[2]),
}
