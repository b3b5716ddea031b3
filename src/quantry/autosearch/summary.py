"""search.json: what is known about a search, for programs."""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from quantry.autosearch.evaluator import Direction, Score
from quantry.autosearch.result import SearchResult
from quantry.autosearch.state import SearchState
from quantry.autosearch.trial import Trial, TrialState
from quantry.recipe import to_plain
from quantry.recipe.json_result import Count, Interval, JsonResult, Number, PlainRecipe, Share, optional_key, plain

SUMMARY_VERSION = 2
"""Version of search.json."""

# search.json is rewritten at most every two seconds, and rarely enough to take less than 1/20 of the time: it grows
# with the number of trials.
_SUMMARY_SECONDS, _SUMMARY_SHARE = 2.0, 20


@dataclass(frozen=True)
class FloatSummary(JsonResult):
    """The float model.

    Attributes:
        score: Its score.
        interval: 95 % confidence interval; null if there is none.
        scores: Further scores.
    """

    score: float
    interval: Interval
    scores: Mapping[str, float]

    @classmethod
    def of_score(cls, score: Score) -> Self:
        """Return the summary of a score."""
        return cls(score.value, score.interval, score.named)


@dataclass(frozen=True)
class TrialSummary(JsonResult):
    """A trial.

    Attributes:
        number: Its number.
        space: Name of the space.
        assignment: Values of the parameters.
        state: How it ended.
        score: Its score; null if it failed.
        interval: 95 % confidence interval; null if there is none.
        drop: How much worse than the float model.
        accepted: Whether it is within tolerance.
        objectives: Their values.
        scores: Further scores that an evaluator returned.
        error: Why it failed; null if it did not.
        seconds: Its duration.
        at: Seconds since the start of the search.
        computed: Stages that were computed, with their seconds.
        reused: Stages that were reused.
        samples: Number of evaluated samples; null if unknown.
        same_as: Number of an earlier trial with the same model; null if there is none.
        model: File name of the model; null if it was not kept.
        recipe: All fields of its recipe.
    """

    number: Count
    space: str
    assignment: Mapping[str, str | float | bool | None]
    state: TrialState
    score: float | None
    interval: Interval
    drop: float | None
    accepted: bool
    objectives: Mapping[str, float]
    scores: Mapping[str, float]
    error: str | None
    seconds: float
    at: float | None
    computed: Mapping[str, float]
    reused: tuple[str, ...]
    samples: Count | None
    same_as: Count | None
    model: str | None
    recipe: PlainRecipe

    @classmethod
    def of_trial(cls, trial: Trial, at: float | None) -> Self:
        """Return the summary of a trial.

        Args:
            trial: The trial.
            at: Seconds since the start of the search at which it was recorded; None if unknown.
        """
        return cls.of(
            trial,
            assignment={
                name: value if value is None or isinstance(value, bool | int | float | str) else str(value)
                for name, value in trial.assignment.items()
            },
            at=at,
            model=None if trial.model_path is None else trial.model_path.name,
            recipe=to_plain(trial.recipe),
        )


@dataclass(frozen=True)
class SearchSummary(JsonResult):
    """A search.

    Attributes:
        version: Version of search.json.
        model: Name of the model.
        metric: Name of the score.
        stopped_by: Why it ended; null while it runs.
        stop: The kind of that reason; null also if it was interrupted.
        seconds: Its duration.
        direction: Direction of the score.
        objectives: Names of the objectives.
        tolerance: Largest accepted drop; null accepts every trial.
        float: The float model.
        best: Number of the best trial; null if there is none.
        candidates: Numbers of the trials within tolerance.
        pareto: Numbers of the trials on the Pareto front.
        notes: Notes for the user.
        trials: All trials, by number.
        evaluation_share: Samples evaluated, divided by those of evaluating every trial in full.
    """

    version: Literal[2]
    model: str
    metric: str
    stopped_by: str | None
    stop: Literal["all_tried", "time", "trials", "candidates", "patience", "request"] | None
    seconds: Number
    direction: Direction
    objectives: tuple[str, ...]
    tolerance: Number | None
    float: FloatSummary | None
    best: Count | None
    candidates: tuple[Count, ...]
    pareto: tuple[Count, ...]
    notes: tuple[str, ...]
    trials: tuple[TrialSummary, ...]
    evaluation_share: Share | None = optional_key()

    @classmethod
    def of_search(cls, search: SearchState | SearchResult, **values: Any) -> Self:
        """Return the summary of a search, running or finished.

        Args:
            search: The search.
            values: The fields that it does not have under the same names.
        """
        numbers = {name: tuple(trial.number for trial in getattr(search, name)) for name in ("candidates", "pareto")}
        return cls.of(
            search,
            version=SUMMARY_VERSION,
            float=None if search.reference is None else FloatSummary.of_score(search.reference),
            best=None if search.best is None else search.best.number,
            stop=None if search.stopped_by is None else search.stopped_by.kind.name.lower(),
            **{**numbers, "stopped_by": None if search.stopped_by is None else str(search.stopped_by), **values},
        )


def search_summary(result: SearchResult) -> dict[str, Any]:
    """Return a result as search.json has it.

    Args:
        result: The result of a search.
    """
    at = result.recorded_at
    trials = tuple(TrialSummary.of_trial(trial, at.get(trial.number)) for trial in result.trials)
    return dict(plain(SearchSummary.of_search(result, trials=trials)))


class SummaryFile:
    """Writes search.json atomically, after trials and at the end."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._due = -math.inf
        self._texts: dict[int, tuple[Trial, str]] = {}

    def on_start(self, state: SearchState, lines: list[str]) -> None:
        """Write the description of the search."""
        self._lines = lines
        self._write(state, None)

    def on_trial(self, state: SearchState, trial: Trial) -> None:
        """Write all trials, if the last write was long enough ago or this trial is the best."""
        is_best = state.best is not None and state.best.number == trial.number
        if is_best or time.monotonic() >= self._due:
            self._write(state, None)

    def on_message(self, state: SearchState, line: str) -> None:
        """Do nothing: messages are for the log."""

    def on_end(self, state: SearchState, reason: str) -> None:
        """Write everything."""
        self._write(state, reason)

    def _write(self, state: SearchState, reason: str | None) -> None:
        started = time.monotonic()
        overview = SearchSummary.of_search(
            state,
            model=state.model_name,
            stopped_by=reason,
            objectives=tuple(state.options.objectives),
            notes=(*self._lines, *state.reasons),
            trials=(),
            evaluation_share=None,
        )
        opening = {name: value for name, value in plain(overview).items() if name != "trials"}
        trials = ",\n".join(self._text(trial, state.recorded_at.get(trial.number)) for trial in state.trials)
        content = f'{json.dumps(opening, indent=1)[:-2]},\n "trials": [\n{trials}\n ]\n}}'
        state.directory.write(state.directory.summary, content.encode())
        now = time.monotonic()
        self._due = now + max(_SUMMARY_SECONDS, _SUMMARY_SHARE * (now - started))

    def _text(self, trial: Trial, at: float | None) -> str:
        """Return a trial as one line; cached, because a search may have thousands of trials."""
        cached = self._texts.get(trial.number)
        if cached is None or cached[0] is not trial:
            text = json.dumps(plain(TrialSummary.of_trial(trial, at)))
            cached = self._texts[trial.number] = (trial, f"  {text}")
        return cached[1]
