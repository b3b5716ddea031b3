"""`SearchOptions`: how to search and when to stop, with the same names in Python, on the command line and in YAML."""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from numbers import Integral
from pathlib import Path
from typing import Any

from quantry.errors import RecipeError, nearest_spelling, unknown_argument

SAMPLERS = ("grid", "random", "tpe", "cmaes", "gp", "nsga2", "qmc")
"""Names of the sampling algorithms."""

OBJECTIVES = ("accuracy", "latency", "size", "bit_operations")
"""What a search can optimize; accuracy is the evaluator's score."""

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
class SearchOptions:
    """How to search and when to stop.

    `quantry.search` takes these fields as keyword arguments, ``quantry search`` as options (``--n-trials`` for
    ``n_trials``), and the configuration file of a search as keys. The search stops at the first limit it reaches. A
    resumed search counts what it did before the interruption. None and -1 switch a limit off.

    Attributes:
        sampler: Chooses the next configuration: "grid" (all of them, cheapest first), "random", "tpe", "cmaes", "gp",
            "nsga2" or "qmc".
        tolerance: Largest accepted drop from the float model's score: a number, or a percentage of the float score
            such as "1%". None accepts every trial that completes.
        n_trials: Stop after this many trials. Invalid and duplicate configurations do not count.
        budget: Stop after this much time, such as "30min", "2h" or a number of seconds (stored as seconds). A trial
            starts only if it is expected to finish in time; one that takes longer is stopped once the budget is
            exceeded by 20 %.
        n_candidates: Stop when this many trials are within tolerance.
        patience: Stop after this many trials without an improvement of the best candidate.
        objectives: What to optimize. Accuracy comes first and may be omitted; a second objective gives a Pareto front.
        racing: Stop evaluating a configuration once it is unlikely to win; needs an evaluator with ``per_sample``.
        seed: Random seed; the same seed gives the same trials.
        n_jobs: Number of worker processes. Results do not depend on it.
        threads: onnxruntime threads per worker; None is all cores for one worker and one thread for each of several.
        devices: Devices assigned to the workers in round-robin order, such as ("cuda:0", "cuda:1"); empty is the CPU.
        trial_timeout: Seconds after which a trial is stopped and counts as failed; None is no limit.
        output_dir: Where the study, the log, search.json, the best model and its recipe go.
        log_path: The log file; None is auto_search.log in the output directory.
        keep_models: Which trials' models stay on disk: "accepted" (those within tolerance; without a tolerance the
            best and the Pareto front), "best" or "all". Every model can be rebuilt from its recipe.
        storage: SQLAlchemy URL of the database that stores the study, such as
            ``postgresql+psycopg://user@host/name``; None is study.journal in the output directory.
        cluster: Address of the Ray cluster that runs the trials, "auto" or "ray://host:10001", or "local" to start
            one; all its machines must see the same files. None is this machine.
        log_to: Other tools that record the trials: "mlflow", "wandb".
    """

    sampler: str = "tpe"
    tolerance: float | str | None = None
    n_trials: int | None = None
    budget: float | str | None = None
    n_candidates: int | None = None
    patience: int | None = None
    objectives: tuple[str, ...] = ("accuracy",)
    racing: bool = False
    seed: int = 0
    n_jobs: int = 1
    threads: int | None = None
    devices: tuple[str, ...] = ()
    trial_timeout: float | None = None
    output_dir: Path = Path("quantry_search")
    log_path: Path | None = None
    keep_models: str = "accepted"
    storage: str | None = None
    cluster: str | None = None
    log_to: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("sampler", "keep_models", "storage", "cluster"):
            if not isinstance(getattr(self, name), str | None):
                raise _refused(name, "text", getattr(self, name))
        if not isinstance(self.racing, bool):
            raise _refused("racing", "true or false", self.racing)
        self._normalize()
        _check_name("sampler", self.sampler, SAMPLERS)
        _check_name("keep_models", self.keep_models, ("accepted", "best", "all"))
        self._check_objectives()
        self._check_numbers()
        if self.storage is not None and "://" not in self.storage:
            raise RecipeError(
                f"SearchOptions.storage must be a database URL, such as 'sqlite:///study.db', got {self.storage!r}"
            )
        for name in self.log_to:
            _check_name("log_to", name, ("mlflow", "wandb"))
        for device in self.devices:
            if not re.fullmatch(r"cpu|cuda:[0-9]+", device):
                raise RecipeError(f"SearchOptions.devices must hold names such as 'cuda:0', got {device!r}")

    def _normalize(self) -> None:
        """Convert what the command line and YAML write as text or lists to the types of the fields."""
        values: dict[str, Any] = {"output_dir": Path(self.output_dir)}
        if self.log_path is not None:
            values["log_path"] = Path(self.log_path)
        for name in ("objectives", "devices", "log_to"):
            given = getattr(self, name)
            if not isinstance(given, str | list | tuple):
                raise _refused(name, "a list", given)
            values[name] = (given,) if isinstance(given, str) else tuple(given)
        if "accuracy" not in values["objectives"]:
            values["objectives"] = ("accuracy", *values["objectives"])
        values["budget"] = None if self.budget in (None, _OFF) else budget_seconds(self.budget)
        values["tolerance"] = _tolerance(self.tolerance)
        for name in ("n_trials", "n_candidates", "patience"):
            if getattr(self, name) == _OFF:
                values[name] = None
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check_objectives(self) -> None:
        for objective in self.objectives:
            _check_name("objectives", objective, OBJECTIVES)
        if self.objectives[0] != "accuracy" or len(set(self.objectives)) != len(self.objectives):
            raise RecipeError(
                f"SearchOptions.objectives must start with 'accuracy' and name each once, got {self.objectives}"
            )
        if len(self.objectives) > 1 and self.sampler == "cmaes":
            raise RecipeError(
                "the sampler 'cmaes' optimizes a single objective, got "
                f"{self.objectives}; use 'nsga2', 'tpe', 'gp' or 'grid'"
            )

    def _check_numbers(self) -> None:
        least = {"n_jobs": 1, "seed": 0, "threads": 1, "n_trials": 1, "n_candidates": 1, "patience": 1}
        for name, minimum in least.items():
            value = getattr(self, name)
            if value is None and name not in ("n_jobs", "seed"):
                continue
            if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
                raise _refused(name, f"a whole number, at least {minimum}", value)
        if self.budget is not None and not self.budget > 0:  # type: ignore[operator]  # normalized to seconds
            raise _refused("budget", "above 0", self.budget)
        timeout = self.trial_timeout
        if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0):
            raise _refused("trial_timeout", "a number of seconds above 0", timeout)

    @property
    def seconds(self) -> float | None:
        """The time budget in seconds; None is no limit."""
        assert not isinstance(self.budget, str)
        return self.budget

    @property
    def log_file(self) -> Path:
        """Where the log goes."""
        return self.output_dir / "auto_search.log" if self.log_path is None else self.log_path

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
    known = (*SearchOptions.names(), *others)
    meant = OTHER_NAMES.get(name.casefold())
    return unknown_argument(where, name, known, meant=meant if meant in known else None)


def split_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of `SearchOptions` among some values, and the other values."""
    names = SearchOptions.names()
    options = {name: value for name, value in given.items() if name in names}
    return options, {name: value for name, value in given.items() if name not in names}


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
        raise RecipeError(f"tolerance must be a number, or a percentage such as '1%', got {tolerance!r}")
    if number < 0:
        raise RecipeError(f"tolerance must be at least 0, the accepted drop, got {tolerance!r}")
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
        raise RecipeError(f"budget must be a duration such as '30min', '2h' or seconds, got {budget!r}")
    for _, unit in parts:
        _check_name("the unit of budget", unit, tuple(_UNITS))
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _refused(name: str, wanted: str, value: object) -> RecipeError:
    return RecipeError(f"SearchOptions.{name} must be {wanted}, got {value!r}")


def _check_name(where: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise RecipeError(
            f"{where} must be one of {', '.join(known)}; got {given!r}{nearest_spelling(str(given), known)}"
        )
