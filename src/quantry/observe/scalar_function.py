"""Functions of one number, as chains of elementwise operators make them."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from quantry.observe.scalar_operator import OPERATORS, Numbers

MAX_OPERATORS = 24
"""Longer chains are not followed: a formula that uses its argument twice doubles at each step."""

_ARGUMENT = "argument"
_CONSTANT = "constant"


@dataclass(frozen=True)
class ScalarFunction:
    """A function applied to every element of a tensor: a tree of operators over its argument and constants.

    Attributes:
        operator: A key of `OPERATORS`, or "argument" or "constant" at a leaf.
        parameters: Parameters of the operator, or the constant.
        operands: What the operator is applied to.

    Example:
        >>> silu = ScalarFunction("Mul", (), (IDENTITY, ScalarFunction("Sigmoid", (), (IDENTITY,))))
        >>> silu.evaluate(np.array([0.0, 20.0])).round(6).tolist()
        [0.0, 20.0]
    """

    operator: str
    parameters: tuple[float, ...] = ()
    operands: tuple["ScalarFunction", ...] = ()

    @property
    def is_constant(self) -> bool:
        """Whether it is a constant leaf."""
        return self.operator == _CONSTANT

    @property
    def size(self) -> int:
        """Number of operators in the tree."""
        return sum(operand.size for operand in self.operands) + (1 if self.operands else 0)

    @property
    def monotone(self) -> bool:
        """Whether it is known to only rise or only fall, so that extremes map to extremes."""
        if not self.operands:
            return True
        operator = OPERATORS[self.operator]
        moving = [operand for operand in self.operands if not operand.is_constant]
        if len(moving) != 1 or not moving[0].monotone:
            return False
        if self.operands[0].is_constant:
            return operator.constant_first
        constants = [value for operand in self.operands[1:] for value in operand.parameters]
        return operator.monotone(*constants, *self.parameters)

    def evaluate(self, x: Numbers) -> Numbers:
        """Return the function of each number, of the same shape as ``x``; overflow gives infinity, in silence."""
        with np.errstate(all="ignore"):
            return self._evaluate(x)

    def after(self, inner: "ScalarFunction") -> "ScalarFunction":
        """Return the function that applies ``inner`` first and this one to its result."""
        if inner == IDENTITY:
            return self
        if not self.operands:
            return inner if self == IDENTITY else self
        operands = tuple(operand.after(inner) for operand in self.operands)
        return ScalarFunction(self.operator, self.parameters, operands)

    def to_plain(self) -> list[Any]:
        """Return it as nested lists of texts and numbers."""
        return [self.operator, list(self.parameters), [operand.to_plain() for operand in self.operands]]

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        """Return the function that ``to_plain`` wrote."""
        operator, parameters, operands = plain
        return cls(str(operator), tuple(map(float, parameters)), tuple(cls.from_plain(operand) for operand in operands))

    def _evaluate(self, x: Numbers) -> Numbers:
        if self.operator == _ARGUMENT:
            return x
        if self.operator == _CONSTANT:
            return np.float64(self.parameters[0])  # type: ignore[return-value]  # broadcasts like an array
        operands = [operand._evaluate(x) for operand in self.operands]
        return OPERATORS[self.operator].compute(*operands, *self.parameters)


IDENTITY = ScalarFunction(_ARGUMENT)


def constant(value: float) -> ScalarFunction:
    """Return the leaf of a constant."""
    return ScalarFunction(_CONSTANT, (value,))
