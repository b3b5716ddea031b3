"""The last step of a search for a target with a backend: its leaders run there, and the best on the target wins.

Trials are screened in simulation, which is fast. A target rounds in its own way, so the order of leaders may change.
Few samples fit into the time, and scores on few samples are rough. So leaders are ranked by their score in simulation
on all samples plus the difference between target and simulation on the same few: where the simulation is right, its
order stays.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quantry.autosearch.context import SearchContext
from quantry.autosearch.evaluator import EvaluatorAdapter, Score
from quantry.autosearch.state import SearchState
from quantry.autosearch.trial import Trial
from quantry.autosearch.trial_runner import TrialRunner
from quantry.errors import QuantryError
from quantry.targets import Backend, Target, backend_of, find_target, on_target, simulated_for

LEADERS = 3
"""How many of the best trials run on the target; one that does not run there loses to any that does."""

SAMPLES = 64
"""How many samples each of them is scored on there; an emulator takes about a second per image."""

_FEW_SAMPLES = 8
"""With fewer samples for each, fewer leaders run."""

_SHARE = 0.25
"""Share of the time limit that trials leave to the target."""


def reserve_time(state: SearchState, context: SearchContext, target: Target | str | None) -> None:
    """Let the trials of a search leave time for its target, which is part of the limit.

    Args:
        state: The search, before its first trial.
        context: What all trials share.
        target: The target of its recipes; None or empty is none.
    """
    if state.time.limit is not None and _ranked_on(target, context) is not None:
        state.time.reserved = _SHARE * state.time.limit


@dataclass(frozen=True)
class _Ranked:
    trial: Trial
    simulated: Score
    on_target: Score
    samples: int | None

    @property
    def estimate(self) -> float:
        """The score on all samples as the target would have it."""
        assert self.trial.score is not None
        return self.trial.score + self.on_target.value - self.simulated.value

    def __str__(self) -> str:
        there = self.on_target
        around = "" if there.interval is None else f" [{there.interval[0]:.4f}, {there.interval[1]:.4f}]"
        counted = "all samples" if self.samples is None else f"the same {self.samples} samples"
        return (
            f"trial {self.trial.number} has {there.value:.4f}{around} there and {self.simulated.value:.4f} in "
            f"simulation, on {counted}"
        )


@dataclass(frozen=True)
class _Effort:
    """How much runs on the target.

    Attributes:
        leaders: How many trials.
        samples: On how many samples; None is all, for evaluators that cannot take a part of them.
        seconds: Expected duration; None if it was not measured because there is no limit.
    """

    leaders: int
    samples: int | None
    seconds: float | None = None


def rank_on_target(state: SearchState, context: SearchContext) -> tuple[str, ...]:
    """Score the leaders of a search on its target and make the best of them the best of the search.

    Args:
        state: The search; its best trial may change.
        context: What all trials share.

    Returns:
        Notes on the scores there; empty if the recipes name no target, or it has no backend here.
    """
    best = state.best
    backend = None if best is None else _ranked_on(best.recipe.target, context)
    if best is None or backend is None:
        return ()
    target = best.recipe.target
    notes: list[str] = []
    nothing_runs = f"on {target}: no trial that was tried runs there, so trial {best.number} stays the best"
    leaders = _leaders(state)
    effort = None
    while leaders and effort is None:
        try:
            effort = _effort(state, context, backend, leaders)
        except QuantryError as error:
            notes.append(f"on {target}: trial {leaders[0].number} does not run: {error}")
            leaders = leaders[1:]
    if effort is None:
        return (*notes, nothing_runs)
    if effort.seconds is not None:
        notes.append(f"on {target}: {_described(effort, state)}")
        state.message(notes[-1])
    ranked = []
    for trial in leaders[: effort.leaders]:
        try:
            ranked.append(_scored(trial, context, effort.samples))
        except QuantryError as error:
            notes.append(f"on {target}: trial {trial.number} does not run: {error}")
    if not ranked:
        return (*notes, nothing_runs)
    sign = 1.0 if state.direction == "maximize" else -1.0
    # Equal scores keep the order of the simulation.
    winner = max(ranked, key=lambda entry: sign * entry.estimate)
    notes += [f"on {target}: {entry}" for entry in ranked]
    if winner.trial.number != best.number:
        notes.append(f"trial {winner.trial.number} is best on {target}, trial {best.number} in simulation")
        state.prefer(winner.trial)
    return tuple(notes)


def _ranked_on(target: Target | str | None, context: SearchContext) -> Backend | None:
    """Return the backend that leaders run on; None if there is none here, or if every trial was scored there."""
    backend = backend_of(find_target(target)) if target else None
    if backend is None or backend.version() is None or backend.evaluates:
        return None
    return backend if hasattr(context.evaluator.evaluator, "fingerprint") else None


def _leaders(state: SearchState) -> list[Trial]:
    complete = [trial for trial in state.trials if trial.state == "complete" and trial.score is not None]
    distinct: dict[str, Trial] = {}
    for trial in complete:
        distinct.setdefault(trial.content or str(trial.number), trial)
    ordered = sorted(distinct.values(), key=lambda trial: state.drop(trial.score or 0.0))
    # The best of the search comes first, also among equal scores.
    return [*([state.best] if state.best is not None else []), *(t for t in ordered if t != state.best)][:LEADERS]


def _effort(state: SearchState, context: SearchContext, backend: Backend, leaders: Sequence[Trial]) -> _Effort:
    """Return how much fits into the time that is left; the best trial runs on at least one sample in any case."""
    size = _size(context.evaluator)
    most = None if size is None else min(size, SAMPLES)
    state.time.reserved = 0.0
    if state.time.left is None:
        return _Effort(len(leaders), most)
    opening, each = _measured(leaders[0], context, backend)
    left = max(state.time.left, 0.0)
    if size is None or most is None:
        seconds = opening + each * len(getattr(context.evaluator.evaluator, "samples", ()))
        count = max(1, min(len(leaders), int(left / seconds)))
        return _Effort(count, None, count * seconds)
    for count in range(len(leaders), 0, -1):
        samples = min(most, int((left / count - opening) / each))
        if samples >= min(_FEW_SAMPLES, most) or count == 1:
            break
    samples = max(samples, 1)
    return _Effort(count, samples, count * (opening + samples * each))


def _measured(trial: Trial, context: SearchContext, backend: Backend) -> tuple[float, float]:
    """Return the seconds in which the target opens the model of a trial, and those of one sample."""
    feeds = next(iter(context.data))
    with _model_file(trial, context) as path:
        started = time.perf_counter()
        runner = backend.open(path)
        opening = time.perf_counter() - started
        try:
            return opening, runner.milliseconds(feeds) / 1e3
        finally:
            runner.close()


def _described(effort: _Effort, state: SearchState) -> str:
    counted = "all samples" if effort.samples is None else f"{effort.samples} sample(s)"
    limit = state.time.limit or 0.0
    late = effort.seconds or 0.0
    over = "" if state.seconds + late <= limit else f", which exceeds the time limit of {limit:g} s"
    return f"the best {effort.leaders} trial(s) run on {counted}, about {late:.0f} s{over}"


@contextmanager
def _model_file(trial: Trial, context: SearchContext) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="quantry-") as folder:
        path = Path(folder) / "model.onnx"
        TrialRunner(context).write_model(trial.recipe, path)
        yield path


def _scored(trial: Trial, context: SearchContext, samples: int | None) -> _Ranked:
    with _model_file(trial, context) as path:
        with simulated_for(trial.recipe.target):
            simulated = _score(context.evaluator, path, samples)
        with on_target(trial.recipe.target, context.store):
            return _Ranked(trial, simulated, _score(context.evaluator, path, samples), samples)


def _size(adapter: EvaluatorAdapter) -> int | None:
    """Return the number of samples of an evaluator that can take a part of them; None for others."""
    if adapter.size is not None:
        return adapter.size
    return len(adapter.evaluator.samples) if hasattr(adapter.evaluator, "scored_on") else None  # type: ignore[attr-defined]


def _score(adapter: EvaluatorAdapter, path: Path, samples: int | None) -> Score:
    size = _size(adapter)
    if size is None or samples is None:
        return adapter.score(path)
    chosen = np.unique(np.linspace(0, size - 1, samples).round().astype(int)).tolist()
    evaluator: Any = adapter.evaluator
    if adapter.size is not None:
        return Score.of_samples(evaluator.per_sample(path, chosen))
    found = evaluator.scored_on(path, chosen)
    return Score(found.value, found.interval)
