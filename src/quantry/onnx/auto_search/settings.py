"""What a search is asked for: an AutoSearchConfig in any of its forms, read once and never written to."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

from quantry.autosearch import SAMPLERS, StopConditions
from quantry.errors import RecipeError, nearest_spelling
from quantry.evaluate import find_metric
from quantry.onnx.auto_search.predefined_spaces import default_space

_ALGORITHMS = {
    "grid_search": "grid",
    "grid": "grid",
    "random": "random",
    "random_search": "random",
    "tpe": "tpe",
    "cmaes": "cmaes",
    "gps": "gp",
    "gp": "gp",
    "nsgaii": "nsga2",
    "nsga2": "nsga2",
    "qmc": "qmc",
}
_STOP = {
    "find_n_candidates": "n_candidates",
    "find_best_candidate": "best_candidates",
    "iteration_limit": "iterations",
    "time_limit": "seconds",
}
_ADVANCED = ("sampler_algo", "direction", "n_trials", "leg")


class _DictConfig(SimpleNamespace):
    """A configuration that was given as a dict."""


def _stop_default() -> dict[str, float]:
    return {
        "find_n_candidates": 1000,
        "find_best_candidate": -1,
        "iteration_limit": 100_000,
        "time_limit": 30 * 24 * 3600,
    }


def _advanced_default() -> dict[str, Any]:
    return {"sampler_algo": "TPE", "direction": "minimize", "n_trials": 10}


@dataclass(frozen=True)
class Settings:
    """The attributes of an AutoSearchConfig with the defaults of AMD Quark, one worker and the CPU excepted.

    Attributes:
        search_space: Nested dictionary of lists.
        search_metric: Built-in metric: L2, L1, cos, psnr, ssim or sqnr.
        search_algo: "grid_search", "random", "TPE", "CmaEs", "GPS", "NSGAII" or "QMC".
        search_evaluator: Own evaluator; None takes the metric.
        search_metric_tolerance: Largest difference to the float model that is accepted: a number, or "1%".
        search_cache_dir: Where results of stages are kept; None is the output directory.
        search_output_dir: Where models, the log, search.json and recipe.yaml go.
        search_log_path: The log; None is auto_search.log in the output directory.
        search_stop_condition: When to stop; a missing entry or -1 is never.
        two_stage_search: First calibration, then finetuning of the best.
        advanced_fastft_search: Search iterations and learning rate of finetuning as numbers.
        advanced_fastft_params: Of that search: sampler_algo, direction, n_trials; and leg, which is ours: iterations
            after which a longer trial can go on from a shorter one (AdaQuant).
        n_jobs: Worker processes.
        search_devices: "cpu", or "cuda:0,1" and the like.
        search_racing: Stop evaluating configurations that cannot win; goes with the built-in metrics.
        search_seed: Start of random numbers.
        search_trial_timeout: Seconds after which a trial counts as failed.
    """

    search_space: Mapping[str, Any] = field(default_factory=default_space)
    search_metric: str = "L2"
    search_algo: str = "grid_search"
    search_evaluator: Callable[..., float] | None = None
    search_metric_tolerance: float | str | None = 2e4
    search_cache_dir: str | Path | None = None
    search_output_dir: str | Path = "./"
    search_log_path: str | Path | None = None
    search_stop_condition: Mapping[str, float] = field(default_factory=_stop_default)
    two_stage_search: bool = False
    advanced_fastft_search: bool = False
    advanced_fastft_params: Mapping[str, Any] = field(default_factory=_advanced_default)
    n_jobs: int = 1
    search_devices: str = "cpu"
    search_racing: bool = False
    search_seed: int = 0
    search_trial_timeout: float | None = None

    @classmethod
    def of(cls, config: object) -> "Settings":
        """Read a class, an instance, a dict or any object with some attributes; missing or None ones get defaults.

        Raises:
            RecipeError: An attribute that begins with ``search_`` is misspelt, or a value cannot be used.
        """
        if config is None:
            return cls()
        if isinstance(config, Mapping):
            return cls.of(_DictConfig(**config))
        known = [part.name for part in fields(cls)]
        for name in dir(config):
            spaces = name.startswith(("search_space", "search_evaluator"))
            if name.startswith("search_") and name not in known and not spaces:
                raise RecipeError(
                    f"{_name(config)} must have known attributes, got {name!r}{nearest_spelling(name, known)}"
                )
        given = {name: _attribute(config, name) for name in known if hasattr(config, name)}
        settings = cls(**{name: value for name, value in given.items() if value is not None})
        settings.check(_name(config))
        return settings

    def check(self, where: str) -> None:
        """Refuse what cannot be used, before any work.

        Args:
            where: Name of the configuration, for messages.

        Raises:
            RecipeError: A value cannot be used.
        """
        try:
            find_metric(self.search_metric)
        except RecipeError as error:
            raise RecipeError(str(error).replace("EvaluateOptions.metrics", f"{where}.search_metric")) from error
        algorithm(self.search_algo, f"{where}.search_algo")
        assert self.stop is not None
        assert self.devices is not None
        if not isinstance(self.search_space, Mapping):
            raise RecipeError(f"{where}.search_space must be a dict, got {type(self.search_space).__name__}")
        if self.search_evaluator is not None and not callable(self.search_evaluator):
            raise RecipeError(
                f"{where}.search_evaluator must be callable with a model's path, got "
                f"{type(self.search_evaluator).__name__}"
            )
        _check_keys(self.advanced_fastft_params, _ADVANCED, f"{where}.advanced_fastft_params")
        self.advanced()

    @property
    def sampler(self) -> str:
        """The algorithm under its name in `quantry.autosearch`."""
        return algorithm(self.search_algo, "search_algo")

    @property
    def stop(self) -> StopConditions:
        """When to stop."""
        _check_keys(self.search_stop_condition, tuple(_STOP), "search_stop_condition")
        return StopConditions(**{_STOP[name]: value for name, value in self.search_stop_condition.items()})  # type: ignore[arg-type]

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of the workers, empty for the CPU."""
        return devices(self.search_devices)

    def advanced(self) -> tuple[str, int]:
        """Return sampler and number of trials of each worker of the search of finetuning.

        Raises:
            RecipeError: One of them, or the direction, is unknown.
        """
        params = {**_advanced_default(), **self.advanced_fastft_params}
        # "minimize" speaks of the difference to the float model, "maximize" of the evaluator's own score. Either way
        # the best model is looked for, because a metric and an evaluator know which way is better.
        if params["direction"] not in ("minimize", "maximize"):
            raise RecipeError(
                "advanced_fastft_params['direction'] must be 'minimize' or 'maximize', "
                f"got {params['direction']!r}{nearest_spelling(str(params['direction']), ('minimize', 'maximize'))}"
            )
        count = params["n_trials"]
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise RecipeError(f"advanced_fastft_params['n_trials'] must be a number from 1, got {count!r}")
        return algorithm(params["sampler_algo"], "advanced_fastft_params['sampler_algo']"), count


def algorithm(name: object, where: str) -> str:
    """Return an algorithm under its name in `quantry.autosearch`.

    Raises:
        RecipeError: There is no such algorithm; the message has the nearest spelling.
    """
    found = _ALGORITHMS.get(str(name).casefold().replace("sampler", "").replace("-", ""))
    if found is None:
        raise RecipeError(
            f"{where} must be one of {', '.join(_ALGORITHMS)}, got {name!r}{nearest_spelling(str(name), _ALGORITHMS)}"
        )
    assert found in SAMPLERS
    return found


def devices(text: object) -> tuple[str, ...]:
    """Return the devices that "cpu", "cuda:0" or "cuda:0,1" name.

    Raises:
        RecipeError: It names none.

    Example:
        >>> devices("cuda:0,1")
        ('cuda:0', 'cuda:1')
    """
    kind, colon, numbers = str(text).partition(":")
    if kind == "cpu" and not colon:
        return ()
    if kind in ("cuda", "rocm") and all(number.strip().isdecimal() for number in (numbers or "0").split(",")):
        return tuple(f"cuda:{int(number)}" for number in (numbers or "0").split(","))
    raise RecipeError(f"search_devices must be 'cpu', 'cuda:0' or 'cuda:0,1', got {text!r}")


def _check_keys(given: object, known: tuple[str, ...], where: str) -> None:
    if not isinstance(given, Mapping):
        raise RecipeError(f"{where} must be a dict, got {type(given).__name__}")
    for name in given:
        if name not in known:
            raise RecipeError(f"{where} must hold known keys, got {name!r}{nearest_spelling(str(name), known)}")


def _name(config: object) -> str:
    return config.__name__ if isinstance(config, type) else type(config).__name__


def _attribute(config: object, name: str) -> Any:
    """Return an attribute; a function in the body of a class stays a function of the path."""
    value = inspect.getattr_static(config, name)
    if isinstance(value, FunctionType):
        parameters = list(inspect.signature(value).parameters)
        if not (parameters and parameters[0] == "self") or isinstance(config, type):
            return value
    return getattr(config, name)
