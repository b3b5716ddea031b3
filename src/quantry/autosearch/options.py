"""How a search goes about it, and when it stops."""

import re
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path

from quantry.errors import RecipeError, nearest_spelling

SAMPLERS = ("grid", "random", "tpe", "cmaes", "gp", "nsga2", "qmc")
"""Names of the algorithms that choose what is tried next."""

OBJECTIVES = ("accuracy", "latency", "size", "bit_operations")
"""What a search can weigh against each other; accuracy is what the evaluator returns."""

_OFF = -1
_UNITS = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class StopConditions:
    """When to stop; whichever holds first. None and -1 switch a condition off.

    A search that goes on after an interruption counts what it did before.

    Attributes:
        n_candidates: So many trials are within tolerance.
        best_candidates: The best candidate within tolerance has not been bettered by so many trials after it.
        iterations: So many trials were run. Configurations that are invalid or equal to others do not count.
        seconds: So much time has passed. A trial is begun where it is expected to be finished by then; one that takes
            longer is stopped when it exceeds the limit by more than a fifth.
    """

    n_candidates: int | None = None
    best_candidates: int | None = None
    iterations: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("n_candidates", "best_candidates", "iterations", "seconds"):
            value = getattr(self, name)
            if value == _OFF:
                object.__setattr__(self, name, None)
            elif value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
                raise RecipeError(f"StopConditions.{name} must be above 0, or None or -1 for never, got {value!r}")


@dataclass(frozen=True)
class SearchOptions:
    """How to search.

    Attributes:
        sampler: Who chooses what is tried next: "grid" (everything, cheap first), "random", "tpe", "cmaes", "gp",
            "nsga2" or "qmc".
        tolerance: How far a score may be from the float model's: a number, or a share of the float model's score such
            as "1%". None accepts every trial that finishes.
        stop: When to stop.
        seed: Start of all random numbers; the same seed gives the same trials.
        n_jobs: How many worker processes. Results are the same for any number.
        threads: Threads of each worker in one operator; None is all cores for one worker and one for each of several.
        racing: Stop evaluating a configuration once it cannot win; needs an evaluator with `per_sample`.
        trial_timeout: Seconds after which a trial is stopped and counted as failed; None never.
        output_dir: Where the study, the log, search.json, the best model and its recipe go.
        objectives: What is weighed against each other; the first must be "accuracy". More than one gives a Pareto
            front.
        log_path: Where the log goes; None is auto_search.log in the output directory.
        devices: Which devices the workers take in turn, such as ("cuda:0", "cuda:1"); empty is the CPU.
        keep_models: Which trials' models stay on disk: "accepted" (with a tolerance the ones within it, else best and
            Pareto front), "best" or "all". Every model can be made again from its recipe.
        storage: The database that keeps the study, as SQLAlchemy names it, such as
            ``postgresql+psycopg://user@host/name``; None is study.journal in the output directory.
        cluster: Address of the Ray cluster whose machines run the trials, "auto" or "ray://host:10001", or "local" to
            start one; all of them must see the same files. None is this machine alone.
    """

    sampler: str = "tpe"
    tolerance: float | str | None = None
    stop: StopConditions = StopConditions()
    seed: int = 0
    n_jobs: int = 1
    threads: int | None = None
    racing: bool = False
    trial_timeout: float | None = None
    output_dir: Path = Path("quantry_search")
    objectives: tuple[str, ...] = ("accuracy",)
    log_path: Path | None = None
    devices: tuple[str, ...] = ()
    keep_models: str = "accepted"
    storage: str | None = None
    cluster: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "output_dir", Path(self.output_dir))
        for name in ("objectives", "devices"):
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))
        if self.log_path is not None:
            object.__setattr__(self, "log_path", Path(self.log_path))
        if self.storage is not None and "://" not in self.storage:
            raise RecipeError(
                f"SearchOptions.storage must be a database's URL, such as 'sqlite:///study.db', got {self.storage!r}"
            )
        _check_name("sampler", self.sampler, SAMPLERS)
        _check_name("keep_models", self.keep_models, ("accepted", "best", "all"))
        self._check_objectives()
        self._check_numbers()
        tolerance_of(self.tolerance, 1.0)

    def _check_objectives(self) -> None:
        for objective in self.objectives:
            _check_name("objectives", objective, OBJECTIVES)
        if self.objectives[:1] != ("accuracy",) or len(set(self.objectives)) != len(self.objectives):
            raise RecipeError(
                f"SearchOptions.objectives must begin with 'accuracy' and name each once, got {self.objectives}"
            )
        if len(self.objectives) > 1 and self.sampler == "cmaes":
            raise RecipeError(
                f"the sampler 'cmaes' weighs one objective, got {self.objectives}; use 'nsga2', 'tpe', 'gp' or 'grid'"
            )

    def _check_numbers(self) -> None:
        if not isinstance(self.stop, StopConditions):
            raise RecipeError(f"SearchOptions.stop must be a StopConditions, got {self.stop!r}")
        for name, least in (("n_jobs", 1), ("threads", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is None and name == "threads":
                continue
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise RecipeError(f"SearchOptions.{name} must be a whole number, at least {least}, got {value!r}")
        for device in self.devices:
            if not re.fullmatch(r"cpu|cuda:[0-9]+", device):
                raise RecipeError(f"SearchOptions.devices must hold names such as 'cuda:0', got {device!r}")
        if self.trial_timeout is not None and not self.trial_timeout > 0:
            raise RecipeError(f"SearchOptions.trial_timeout must be above 0 seconds, got {self.trial_timeout!r}")

    @property
    def log_file(self) -> Path:
        """Where the log goes."""
        return self.output_dir / "auto_search.log" if self.log_path is None else self.log_path


def tolerance_of(tolerance: float | str | None, reference: float) -> float | None:
    """Return the largest drop that is accepted, in the unit of the score.

    Args:
        tolerance: A number, or a share such as "1%".
        reference: The float model's score.

    Raises:
        RecipeError: It is neither, below 0, or a share of zero.

    Example:
        >>> tolerance_of("1%", 80.0)
        0.8
    """
    if tolerance is None or (isinstance(tolerance, int | float) and not isinstance(tolerance, bool)):
        if tolerance is not None and not tolerance >= 0:
            raise RecipeError(f"tolerance must be at least 0, the drop that is accepted, got {tolerance!r}")
        return None if tolerance is None else float(tolerance)
    share = re.fullmatch(r"\s*([0-9.]+)\s*%\s*", tolerance) if isinstance(tolerance, str) else None
    if share is None:
        raise RecipeError(f"tolerance must be a number, or a share such as '1%', got {tolerance!r}")
    if reference == 0:
        raise RecipeError(f"a tolerance of {tolerance!r} needs a float score other than 0; give it as a number")
    return float(share[1]) * abs(reference) / 100


def budget_seconds(budget: float | str) -> float:
    """Return the seconds of a budget such as ``"30min"``, ``"2h"``, ``"1h30m"``, or seconds as a number or ``"30"``.

    Raises:
        RecipeError: It is no time.

    Example:
        >>> budget_seconds("30min")
        1800.0
    """
    if isinstance(budget, int | float) and not isinstance(budget, bool):
        return float(budget)
    text = budget.replace(" ", "").lower() if isinstance(budget, str) else ""
    if re.fullmatch(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", text):
        return float(text)
    parts = re.findall(r"([0-9.]+)([a-z]+)", text)
    if not parts or "".join(f"{number}{unit}" for number, unit in parts) != text:
        raise RecipeError(f"a budget must be a time such as '30min', '2h' or seconds, got {budget!r}")
    for _, unit in parts:
        _check_name("budget's unit", unit, tuple(_UNITS))
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _check_name(where: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise RecipeError(f"{where} must be one of {', '.join(known)}; got {given!r}{nearest_spelling(given, known)}")
