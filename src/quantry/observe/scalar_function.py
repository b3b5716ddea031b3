"""Functions of one number, as chains of elementwise operators make them."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

MAX_OPERATORS = 24
"""Longer chains are not followed: a formula that uses its argument twice doubles at each step."""

_ARGUMENT = "@"


@dataclass(frozen=True)
class ScalarFunction:
    """A function applied to every element of a tensor.

    Attributes:
        formula: Its text, in which ``@`` is the argument; two functions with one formula are one function.
        monotone: Whether it is known to only rise or only fall, so that extremes map to extremes.
        operators: Number of operators in the formula.
        evaluate: Computes it, float64 [k] to float64 [k].
    """

    formula: str
    monotone: bool = field(compare=False)
    operators: int = field(compare=False)
    evaluate: Callable[[Numbers], Numbers] = field(compare=False, repr=False)

    def after(self, inner: "ScalarFunction") -> "ScalarFunction":
        """Return the function that applies ``inner`` first and this one to its result."""
        if inner == IDENTITY:
            return self
        if self == IDENTITY:
            return inner
        return ScalarFunction(
            self.formula.replace(_ARGUMENT, inner.formula),
            self.monotone and inner.monotone,
            self.operators + self.formula.count(_ARGUMENT) * inner.operators,
            lambda x: self.evaluate(inner.evaluate(x)),
        )


IDENTITY = ScalarFunction(_ARGUMENT, monotone=True, operators=0, evaluate=lambda x: x)


def unary(name: str, evaluate: Callable[[Numbers], Numbers], *, monotone: bool = True) -> ScalarFunction:
    """Return the function of one operator.

    Args:
        name: Operator and parameters, part of the formula.
        evaluate: Computes it.
        monotone: Whether it only rises or only falls.
    """
    return ScalarFunction(f"{name}({_ARGUMENT})", monotone, 1, evaluate)


def binary(
    name: str, combine: Callable[[Numbers, Numbers], Numbers], left: ScalarFunction, right: ScalarFunction
) -> ScalarFunction:
    """Return the function that combines two functions of the same argument, such as ``x * sigmoid(x)``."""
    return ScalarFunction(
        f"{name}({left.formula},{right.formula})",
        monotone=False,
        operators=1 + left.operators + right.operators,
        evaluate=lambda x: combine(left.evaluate(x), right.evaluate(x)),
    )
