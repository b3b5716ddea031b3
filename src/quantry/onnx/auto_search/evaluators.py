"""What a search under AMD Quark's names runs on, and its evaluators: a user's function, or a built-in metric."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantry.autosearch import function_digest
from quantry.data.calibration_data import CalibrationData
from quantry.data.open_data import calibration_data
from quantry.data.sample_cache import SampleCache
from quantry.errors import require_choice
from quantry.evaluate.tasks import OutputDistance
from quantry.graph.float_model import input_signatures
from quantry.graph.load import model_source
from quantry.graph.save import write_model


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
        fingerprint = getattr(self.function, "fingerprint", None)
        if fingerprint is not None:
            return str(fingerprint() if callable(fingerprint) else fingerprint)
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


@dataclass(frozen=True)
class SearchInputs:
    """What a search runs on.

    Attributes:
        model: The float model's file.
        calibration: Samples to calibrate on.
        evaluation: Samples to evaluate on.
    """

    model: Path
    calibration: CalibrationData
    evaluation: CalibrationData

    @classmethod
    def opened(cls, model: Any, calibration: Any, evaluation: Any, folder: str | Path) -> "SearchInputs":
        """Open a model and its data, each once, because a reader can only be read once.

        Args:
            model: A path or a model, which is then written to the folder.
            calibration: Calibration data.
            evaluation: Evaluation data; None takes the calibration data.
            folder: The output directory.
        """
        source = model_source(model)
        path = Path(model) if isinstance(model, str | Path) else Path(folder) / "float.onnx"
        if not isinstance(model, str | Path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_model(source.load(), path)
        inputs = input_signatures(source.load())
        data = calibration_data(calibration, inputs)
        return cls(path, data, data if evaluation is None else calibration_data(evaluation, inputs))

    def metric_evaluator(self, metric: str) -> OutputDistance:
        """Return the evaluator that compares outputs with those of the float model.

        Args:
            metric: L2, L1, cos, psnr, ssim or sqnr.
        """
        return OutputDistance(self.model, SampleCache(self.evaluation), metric)


def metric_name(evaluator: Callable[..., Any] | None, metric: str) -> str:
    """Return the name of the score: that of the user's function if there is one."""
    return metric if evaluator is None else getattr(evaluator, "__name__", "evaluator")
