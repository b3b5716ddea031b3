"""Search configurations under AMD Quark's names, and the one table that maps them to `SearchOptions`."""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

from quantry.autosearch import SearchOptions
from quantry.errors import RecipeError, require_choice, require_known
from quantry.evaluate import find_metric
from quantry.onnx.auto_search.predefined_spaces import SPACES, default_space

OPTION_NAMES = {
    "search_algo": "sampler",
    "sampler_algo": "sampler",
    "search_metric_tolerance": "tolerance",
    "iteration_limit": "n_trials",
    "n_trials": "n_trials",
    "time_limit": "budget",
    "find_n_candidates": "n_candidates",
    "find_best_candidate": "patience",
    "search_racing": "racing",
    "search_seed": "seed",
    "seed": "seed",
    "n_jobs": "n_jobs",
    "search_devices": "devices",
    "search_trial_timeout": "trial_timeout",
    "search_output_dir": "output_dir",
    "output_dir": "output_dir",
    "search_log_path": "log_path",
    "study_storage_db": "storage",
}
"""AMD Quark's names, to the fields of `SearchOptions`. Nowhere else is an option of a search renamed."""

_SAMPLERS = {
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
_LIMITS = ("find_n_candidates", "find_best_candidate", "iteration_limit", "time_limit")
_ADVANCED = ("sampler_algo", "direction", "n_trials", "checkpoint_every")


def search_options(settings: Mapping[str, Any]) -> SearchOptions:
    """Return the options that AMD Quark's names stand for.

    Args:
        settings: Names of `OPTION_NAMES` to values; other names are ignored.

    Raises:
        RecipeError: A value is invalid; the message has AMD Quark's name.
    """
    values: dict[str, Any] = {}
    for name in (name for name in settings if name in OPTION_NAMES):
        field_name, value = OPTION_NAMES[name], settings[name]
        if field_name == "sampler":
            value = sampler_name(value, name)
        elif field_name == "devices":
            value = device_names(value)
        elif isinstance(value, float) and value.is_integer() and field_name in ("n_trials", "n_candidates", "patience"):
            value = int(value)  # Quark's documents write limits as floats, too
        try:
            SearchOptions(**{field_name: value})
        except RecipeError as error:
            raise RecipeError(f"{error}; given as {name!r}") from error
        values[field_name] = value
    return SearchOptions(**values)


def sampler_name(name: object, option: str) -> str:
    """Return the sampler that AMD Quark's name of an algorithm stands for.

    Raises:
        RecipeError: There is no such algorithm; the message has the nearest spelling.
    """
    sampler = _SAMPLERS.get(str(name).casefold().replace("sampler", "").replace("-", ""))
    if sampler is None:
        require_choice(option, name, _SAMPLERS)
    return str(sampler)


def device_names(text: object) -> tuple[str, ...]:
    """Return the devices that "cpu", "cuda:0" or "cuda:0,1" stand for; empty for the CPU.

    Raises:
        RecipeError: It is none of these.

    Example:
        >>> device_names("cuda:0,1")
        ('cuda:0', 'cuda:1')
    """
    kind, colon, numbers = str(text).partition(":")
    if kind == "cpu" and not colon:
        return ()
    if kind in ("cuda", "rocm") and all(number.strip().isdecimal() for number in (numbers or "0").split(",")):
        return tuple(f"cuda:{int(number)}" for number in (numbers or "0").split(","))
    raise RecipeError(f"search_devices must be 'cpu', 'cuda:0' or 'cuda:0,1', got {text!r}")


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


_FOLDER = "auto_search"


@dataclass(frozen=True)
class Settings:
    """The attributes of an AutoSearchConfig; defaults are AMD Quark's, except for one worker and the CPU.

    Attributes:
        search_space: Nested dictionary of lists.
        search_metric: Built-in metric: L2, L1, cos, psnr, ssim or sqnr.
        search_algo: "grid_search", "random", "TPE", "CmaEs", "GPS", "NSGAII" or "QMC".
        search_evaluator: The user's evaluator; None uses the metric.
        search_metric_tolerance: Largest accepted difference to the float model: a number, or "1%".
        search_cache_dir: Where results of stages go; None is the output directory.
        search_output_dir: The one folder where models, the log, search.json and recipe.yaml go.
        search_log_path: The log file; None is auto_search.log in the output directory, or in the current one if no
            output directory is given, as AMD's document says.
        search_stop_condition: Limits; a missing entry or -1 is no limit.
        two_stage_search: Search calibration first, then finetuning of the best.
        advanced_fastft_search: Search iterations and learning rate of finetuning as numbers.
        advanced_fastft_params: Options of that search: sampler_algo, direction and n_trials; and checkpoint_every, an
            addition of quantry: iterations after which a longer trial can resume from a shorter one (AdaQuant).
        n_jobs: Worker processes.
        search_devices: "cpu", "cuda:0", "cuda:0,1" and so on.
        search_racing: Stop evaluating configurations that are unlikely to win; for the built-in metrics.
        search_seed: Random seed.
        search_trial_timeout: Seconds after which a trial counts as failed.
    """

    search_space: Mapping[str, Any] = field(default_factory=default_space)
    search_metric: str = "L2"
    search_algo: str = "grid_search"
    search_evaluator: Callable[..., float] | None = None
    search_metric_tolerance: float | str | None = 2e4
    search_cache_dir: str | Path | None = None
    search_output_dir: str | Path = _FOLDER
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
            RecipeError: An attribute that starts with ``search_`` is unknown, or a value is invalid.
        """
        if config is None:
            return cls()
        if isinstance(config, Mapping):
            return cls.of(_DictConfig(**config))
        names = [entry.name for entry in fields(cls)]
        # Users keep alternative spaces and evaluators in the same class, such as search_space_XINT8.
        alternatives = ("search_space", "search_evaluator")
        searched = (name for name in dir(config) if name.startswith("search_") and not name.startswith(alternatives))
        require_known(_name(config), tuple(searched), names, "have known attributes")
        values = {name: _attribute(config, name) for name in names if hasattr(config, name)}
        if values.get("search_output_dir") in (None, _FOLDER) and values.get("search_log_path") is None:
            values["search_log_path"] = "auto_search.log"
        settings = cls(**{name: value for name, value in values.items() if value is not None})
        settings.check(_name(config))
        return settings

    def check(self, config_name: str) -> None:
        """Reject invalid values before any work.

        Args:
            config_name: Name of the configuration, for messages.

        Raises:
            RecipeError: A value is invalid.
        """
        find_metric(self.search_metric, f"{config_name}.search_metric")
        self.options()
        if not isinstance(self.search_space, Mapping):
            raise RecipeError(f"{config_name}.search_space must be a dict, got {type(self.search_space).__name__}")
        if self.search_evaluator is not None and not callable(self.search_evaluator):
            raise RecipeError(
                f"{config_name}.search_evaluator must be callable with a model path, got "
                f"{type(self.search_evaluator).__name__}"
            )
        require_known(f"{config_name}.advanced_fastft_params", self.advanced_fastft_params, _ADVANCED)
        self.advanced_options()

    def options(self) -> SearchOptions:
        """Return the options of the search.

        Raises:
            RecipeError: A value is invalid.
        """
        require_known("search_stop_condition", self.search_stop_condition, _LIMITS)
        return search_options({**vars(self), **self.search_stop_condition})

    def advanced_options(self) -> SearchOptions:
        """Return the options of the search of finetuning parameters, with ``n_trials`` for each worker.

        Raises:
            RecipeError: A value is invalid.
        """
        params = {**_advanced_default(), **self.advanced_fastft_params}
        # "minimize" refers to the difference to the float model, "maximize" to the evaluator's score. Both mean the
        # same: metrics and evaluators know their own direction.
        require_choice("advanced_fastft_params['direction']", params["direction"], ("minimize", "maximize"))
        advanced = search_options({name: params[name] for name in ("sampler_algo", "n_trials")})
        if advanced.n_trials is None:
            raise RecipeError(f"advanced_fastft_params['n_trials'] must be at least 1, got {params['n_trials']!r}")
        jobs = max(self.n_jobs, len(device_names(self.search_devices)) or 1)
        options = self.options().without_limits()
        return replace(options, sampler=advanced.sampler, n_trials=advanced.n_trials * jobs, n_jobs=jobs, racing=False)


class AutoSearchConfig:
    """The configuration of a search: the class, an instance, a subclass or any object with such attributes.

    A search reads it and never writes to it. `Settings` documents the attributes; they have its defaults.

    Example:
        >>> config = AutoSearchConfig()
        >>> config.search_metric = "cos"
        >>> config.search_metric_tolerance = 0.01
    """

    search_space: dict[str, Any]
    search_metric: str
    search_metric_tolerance: float | str
    search_stop_condition: dict[str, Any]


class AutoSearchConfig_Default(AutoSearchConfig):  # noqa: N801  the name in AMD Quark's examples
    """The configuration of AMD Quark's examples, with all of its predefined spaces.

    The search stops at the first candidate within tolerance. Finetuning runs on the CPU, except in
    ``search_space_with_GPU``.
    """

    search_metric_tolerance: float | str = 0.60001
    search_stop_condition: dict[str, Any] = {  # noqa: RUF012  users assign to it, as to any attribute of these classes
        "find_n_candidates": 1,
        "find_best_candidate": -1,
        "iteration_limit": 10_000,
        "time_limit": 1_000_000.0,
    }


for _part in fields(Settings):
    setattr(AutoSearchConfig, _part.name, copy.deepcopy(getattr(Settings(), _part.name)))
for _space, _content in SPACES.items():
    setattr(AutoSearchConfig_Default, _space, copy.deepcopy(_content))


def _name(config: object) -> str:
    return config.__name__ if isinstance(config, type) else type(config).__name__


def _attribute(config: object, name: str) -> Any:
    """Return an attribute; a function in the body of a class is not bound, unless its first parameter is ``self``."""
    value = inspect.getattr_static(config, name)
    if isinstance(value, FunctionType):
        parameters = list(inspect.signature(value).parameters)
        if not (parameters and parameters[0] == "self") or isinstance(config, type):
            return value
    return getattr(config, name)
