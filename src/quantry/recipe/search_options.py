"""`SearchOptions`: how to search and when to stop, with the same names in Python, on the command line and in YAML."""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from quantry.errors import OptionError, RecipeError, nearest_spelling, unknown_argument
from quantry.recipe.option_fields import CheckedOptions, option

Sampler = Literal["grid", "random", "tpe", "cmaes", "gp", "nsga2", "qmc"]
Objective = Literal["accuracy", "latency", "size", "bit_operations"]

SAMPLERS: tuple[str, ...] = get_args(Sampler)
"""Names of the sampling algorithms."""

OBJECTIVES: tuple[str, ...] = get_args(Objective)
"""What a search can optimize; accuracy is the evaluator's score."""

_Positive = Annotated[int, ("minimum", 1)]
_Limit = _Positive | Literal[-1] | None
_Seconds = Annotated[float, ("unit", "seconds"), ("exclusiveMinimum", 0)]
_Device = Annotated[str, ("pattern", r"^(cpu|cuda:[0-9]+)$"), ("examples", ("cuda:0",))]
_DatabaseUrl = Annotated[str, ("pattern", "://"), ("examples", ("sqlite:///study.db",))]

LIMITS = ("n_trials", "budget", "n_candidates", "patience")
"""Options that end a search; -1 switches one off."""

_OFF = -1
_NAMES_OF_UNITS = {
    1.0: ("s", "sec", "second", "seconds"),
    60.0: ("m", "min", "minute", "minutes"),
    3600.0: ("h", "hour", "hours"),
    86400.0: ("d", "day", "days"),
}
_UNITS = {name: seconds for seconds, names in _NAMES_OF_UNITS.items() for name in names}

OTHER_NAMES = {
    "best_candidates": "patience",
    "calibration_data": "data",
    "candidates": "n_candidates",
    "eval_data": "evaluation_data",
    "image_options": "images",
    "iterations": "n_trials",
    "jobs": "n_jobs",
    "log": "log_path",
    "objective": "objectives",
    "output": "output_dir",
    "output_path": "output_dir",
    "preset": "recipe",
    "seconds": "budget",
    "time": "budget",
    "timeout": "trial_timeout",
    "trials": "n_trials",
    "workers": "n_jobs",
}
"""Names from other tools, for "did you mean" hints only: these are too different for a spelling check to find."""


@dataclass(frozen=True)
class SearchOptions(CheckedOptions):
    """How to search and when to stop.

    `quantry.search` takes these fields as keyword arguments, ``quantry search`` as options (``--n-trials`` for
    ``n_trials``), and the configuration file of a search as keys. The search stops at the first limit it reaches. A
    resumed search counts what it did before the interruption. None and -1 switch a limit off.

    Attributes:
        sampler: Chooses the next configuration: grid (all of them, cheapest first), random, tpe, cmaes, gp, nsga2 or
            qmc.
        tolerance: Largest accepted drop from the float model's score: a number such as 0.01, or a percentage of the
            float score such as 1%. None accepts every trial that completes.
        n_trials: Stop after this many trials. Invalid and duplicate configurations do not count.
        budget: Stop after this much time: 30min, 2h, or seconds. A trial starts only if it is expected to finish in
            time; one that takes longer is stopped once the budget is exceeded by 20 %. Without any limit, the default
            space gets 10 minutes.
        n_candidates: Stop when this many trials are within tolerance.
        patience: Stop after this many trials without an improvement of the best.
        objectives: What to optimize besides accuracy: latency, size or bit_operations. Accuracy comes first and may be
            omitted; a second objective gives a Pareto front.
        racing: Stop evaluating configurations that are unlikely to win. It needs an evaluator with ``per_sample``.
        seed: Random seed; the same seed gives the same trials.
        n_jobs: Number of worker processes. Results do not depend on it.
        threads: onnxruntime threads per worker; default: all cores for one worker, one thread for each of several.
        devices: Devices assigned to the workers in turn, such as cuda:0; default: the CPU.
        trial_timeout: Seconds after which a trial is stopped and counts as failed.
        output_dir: Folder for models, log and recipe. The study and search.json are there, too.
        log_path: Log file; default: auto_search.log in the output folder.
        keep_models: Which models stay on disk: accepted (those within tolerance), best or all. Without a tolerance,
            accepted keeps the best and the Pareto front. Every model can be rebuilt from its recipe.
        storage: Database URL of the study, such as sqlite:///study.db; default: a file in the output folder. Others
            are ``postgresql+psycopg://user@host/name``.
        cluster: Ray cluster that runs the trials: auto, ray://host:10001, or local to start one. All its machines must
            see the same files.
        log_to: Other tools that record the trials: mlflow, wandb.
    """

    sampler: Sampler = option("tpe", heading="Search")
    tolerance: float | str | None = None
    n_trials: _Limit = option(None, heading="When to stop")
    budget: float | str | None = None
    n_candidates: _Limit = option(None, heading="When to stop")
    patience: _Limit = option(None, heading="When to stop")
    objectives: tuple[Objective, ...] = option(("accuracy",), heading="Search")
    racing: bool = option(default=False, heading="Search")
    seed: Annotated[int, ("minimum", 0)] = option(0, heading="Search")
    n_jobs: _Positive = option(1, "--workers", "-j", heading="Workers")
    threads: _Positive | None = option(None, heading="Workers")
    devices: tuple[_Device, ...] = option((), heading="Workers")
    trial_timeout: Annotated[float, ("unit", "seconds"), ("exclusiveMinimum", 0)] | None = option(
        None, heading="When to stop"
    )
    output_dir: Path = option(Path("quantry_search"), "-o")
    log_path: Path | None = option(None, heading="Files")
    keep_models: Literal["accepted", "best", "all"] = option("accepted", heading="Files")
    storage: _DatabaseUrl | None = option(None, heading="Files")
    cluster: str | None = option(None, heading="Workers")
    log_to: tuple[Literal["mlflow", "wandb"], ...] = option((), heading="Files")

    def __post_init__(self) -> None:
        super().__post_init__()
        values: dict[str, Any] = {name: None for name in LIMITS if getattr(self, name) == _OFF}
        values["tolerance"] = _tolerance(self.tolerance)
        if self.budget not in (None, _OFF):
            values["budget"] = budget_seconds(self.budget)
            if not values["budget"] > 0:
                raise OptionError.of("budget", f"must be above 0, got {self.budget!r}")
        if "accuracy" not in self.objectives:
            values["objectives"] = ("accuracy", *self.objectives)
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._check_objectives()

    def _check_objectives(self) -> None:
        if self.objectives[0] != "accuracy" or len(set(self.objectives)) != len(self.objectives):
            raise OptionError.of("objectives", f"must start with 'accuracy' and name each once, got {self.objectives}")
        if len(self.objectives) > 1 and self.sampler == "cmaes":
            raise RecipeError(
                "the sampler 'cmaes' optimizes a single objective, got "
                f"{self.objectives}; use 'nsga2', 'tpe', 'gp' or 'grid'"
            )

    @property
    def seconds(self) -> float | None:
        """The time budget in seconds; None is no limit."""
        assert not isinstance(self.budget, str)
        return self.budget

    @property
    def log_file(self) -> Path:
        """Where the log goes."""
        return self.output_dir / "auto_search.log" if self.log_path is None else self.log_path

    @property
    def is_unlimited(self) -> bool:
        """Whether the search stops only when every configuration was tried."""
        return all(getattr(self, name) is None for name in LIMITS)

    def without_limits(self) -> "SearchOptions":
        """Return the options of a search that stops only when every configuration was tried."""
        return replace(self, n_trials=None, budget=None, n_candidates=None, patience=None)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all options."""
        return tuple(part.name for part in fields(cls))


def unknown_option(where: str, name: str, others: Collection[str] = ()) -> RecipeError:
    """Return the error for an option that does not exist, with the name the user probably meant.

    Args:
        where: What was called or read.
        name: The unknown name.
        others: Names accepted besides those of `SearchOptions`.
    """
    names = (*SearchOptions.names(), *others)
    meant = OTHER_NAMES.get(name.casefold())
    return unknown_argument(where, name, names, meant=meant if meant in names else None)


def split_options(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of `SearchOptions` among some values, and the other values."""
    names = SearchOptions.names()
    options = {name: value for name, value in values.items() if name in names}
    return options, {name: value for name, value in values.items() if name not in names}


def accepted_drop(tolerance: float | str | None, reference: float) -> float | None:
    """Return the largest accepted drop, in the unit of the score.

    Args:
        tolerance: A number, or a percentage such as "1%".
        reference: The float model's score.

    Raises:
        RecipeError: The tolerance is invalid, or a percentage of zero.

    Example:
        >>> accepted_drop("1%", 80.0)
        0.8
    """
    value = _tolerance(tolerance)
    if not isinstance(value, str):
        return value
    if reference == 0:
        raise RecipeError(f"a tolerance of {tolerance!r} needs a float score other than 0; give it as a number")
    return float(value.strip().rstrip("%")) * abs(reference) / 100


def _tolerance(tolerance: Any) -> float | str | None:
    """Check a tolerance and convert numbers, which arrive as text from the command line."""
    if tolerance is None or (isinstance(tolerance, str) and re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*%\s*", tolerance)):
        return tolerance
    try:
        number = math.nan if isinstance(tolerance, bool) else float(tolerance)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise OptionError.of("tolerance", f"must be a number, or a percentage such as '1%', got {tolerance!r}")
    if number < 0:
        raise OptionError.of("tolerance", f"must be at least 0, the accepted drop, got {tolerance!r}")
    return number


def budget_seconds(budget: float | str) -> float:
    """Return the seconds of a budget such as ``"30min"``, ``"2h"``, ``"1h30m"``, or seconds as a number or ``"30"``.

    Raises:
        RecipeError: It is not a duration.

    Example:
        >>> budget_seconds("30min")
        1800.0
    """
    if isinstance(budget, int | float) and not isinstance(budget, bool):
        return float(budget)
    text = budget.replace(" ", "").lower() if isinstance(budget, str) else ""
    if re.fullmatch(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", text):
        return float(text)
    parts = re.findall(r"([0-9]+(?:\.[0-9]*)?)([a-z]+)", text)
    if not parts or "".join(f"{number}{unit}" for number, unit in parts) != text:
        raise OptionError.of("budget", f"must be a duration such as '30min', '2h' or seconds, got {budget!r}")
    for _, unit in parts:
        if unit not in _UNITS:
            hint = nearest_spelling(unit, _UNITS)
            raise OptionError.of("budget", f"must have units such as 's', 'min' or 'h', got {unit!r}{hint}")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
