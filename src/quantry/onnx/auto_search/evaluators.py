"""Evaluators under AMD Quark's conventions: a user's function with keywords, or a built-in metric."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantry.autosearch import function_digest
from quantry.data.calibration_data import CalibrationData
from quantry.data.sample_cache import SampleCache
from quantry.errors import require_choice
from quantry.evaluate.tasks import OutputDistance


@dataclass(frozen=True)
class UserEvaluator:
    """A user's function, called with the model path as text and the keywords that it declares.

    Attributes:
        function: The function. Its score is maximized, unless its attribute ``direction`` is "minimize".
        keywords: Keywords it may declare.
        override_direction: "maximize" or "minimize", instead of the function's own direction.
    """

    function: Callable[..., Any]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    override_direction: str | None = None

    def __post_init__(self) -> None:
        require_choice("search_evaluator.direction", self.direction, ("maximize", "minimize"))

    @property
    def direction(self) -> str:
        """Whether the score is maximized or minimized."""
        return self.override_direction or str(getattr(self.function, "direction", "maximize"))

    @property
    def fingerprint(self) -> str:
        """Text that differs between functions: their own fingerprint, or a digest of the code."""
        own = getattr(self.function, "fingerprint", None)
        if own is not None:
            return str(own() if callable(own) else own)
        name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return f"{name} {function_digest(self.function)}"

    def __call__(self, model_path: str | Path) -> Any:
        """Return what the function returns; the search checks it."""
        return self.function(str(model_path), **self._declared())

    def _declared(self) -> dict[str, Any]:
        try:
            parameters = list(inspect.signature(self.function).parameters.values())[1:]
        except (TypeError, ValueError):  # functions written in C have no signature
            return {}
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return dict(self.keywords)
        return {
            parameter.name: self.keywords[parameter.name] for parameter in parameters if parameter.name in self.keywords
        }


def user_evaluator(function: Callable[..., Any], keywords: Mapping[str, Any]) -> Any:
    """Return the evaluator of a user's function; objects that are evaluators already, such as ours, are returned."""
    if hasattr(function, "fingerprint") and hasattr(function, "direction"):
        return function
    return UserEvaluator(function, keywords)


def metric_evaluator(model: Path, data: CalibrationData, metric: str) -> OutputDistance:
    """Return the evaluator that compares outputs with those of the float model.

    Args:
        model: The float model.
        data: Samples to run both models on.
        metric: L2, L1, cos, psnr, ssim or sqnr.
    """
    return OutputDistance(model, SampleCache(data), metric)
