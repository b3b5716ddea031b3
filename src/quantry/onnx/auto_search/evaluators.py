"""Evaluators of a search under AMD Quark's names: a user's function, or a built-in metric."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantry.autosearch import function_digest
from quantry.data.calibration_data import CalibrationData
from quantry.data.sample_cache import SampleBook
from quantry.errors import RecipeError, nearest_spelling
from quantry.evaluate.tasks import OutputDistance

_DIRECTIONS = ("maximize", "minimize")


@dataclass(frozen=True)
class UserEvaluator:
    """A user's function, called with the model's path as text and with those keywords that it declares.

    Attributes:
        function: The function. More is better, unless it has an attribute ``direction`` that says "minimize".
        keywords: What it may declare.
        towards: "maximize" or "minimize", in the place of what the function says of itself.
    """

    function: Callable[..., Any]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    towards: str | None = None

    def __post_init__(self) -> None:
        if self.direction not in _DIRECTIONS:
            raise RecipeError(
                f"search_evaluator.direction must be 'maximize' or 'minimize', got {self.direction!r}"
                f"{nearest_spelling(str(self.direction), _DIRECTIONS)}"
            )

    @property
    def direction(self) -> str:
        """Which way the score is better."""
        return self.towards or str(getattr(self.function, "direction", "maximize"))

    @property
    def fingerprint(self) -> str:
        """What tells the function from others: its own mark where it has one, else what its code does."""
        own = getattr(self.function, "fingerprint", None)
        if own is not None:
            return str(own() if callable(own) else own)
        name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return f"{name} {function_digest(self.function)}"

    def __call__(self, model_path: str | Path) -> float:
        """Return the function's score.

        Raises:
            RecipeError: It returned no number.
        """
        score = self.function(str(model_path), **self._declared())
        try:
            return float(score)
        except (TypeError, ValueError) as error:
            raise RecipeError(f"search_evaluator must return a number, got {score!r}") from error

    def _declared(self) -> dict[str, Any]:
        try:
            parameters = list(inspect.signature(self.function).parameters.values())[1:]
        except (TypeError, ValueError):  # functions written in C do not say
            return {}
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return dict(self.keywords)
        return {
            parameter.name: self.keywords[parameter.name] for parameter in parameters if parameter.name in self.keywords
        }


def user_evaluator(function: Callable[..., Any], keywords: Mapping[str, Any]) -> Any:
    """Return the evaluator of a user's function; an evaluator object, such as those of our tasks, is one already."""
    if hasattr(function, "fingerprint") and hasattr(function, "direction"):
        return function
    return UserEvaluator(function, keywords)


def metric_evaluator(model: Path, data: CalibrationData, metric: str) -> OutputDistance:
    """Return the evaluator that compares outputs with the float model's.

    Args:
        model: The float model.
        data: What both are run on.
        metric: L2, L1, cos, psnr, ssim or sqnr.
    """
    return OutputDistance(model, SampleBook(data), metric)
