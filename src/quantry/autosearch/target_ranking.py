"""The last step of a search for a target with a backend: its leaders are scored there, and the best on the target wins.

Trials are screened in simulation, which is fast. A target rounds in its own way, so the order of leaders may change.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quantry.autosearch.context import SearchContext
from quantry.autosearch.evaluator import EvaluatorAdapter, Score
from quantry.autosearch.state import SearchState
from quantry.autosearch.trial import Trial
from quantry.autosearch.trial_runner import TrialRunner
from quantry.errors import QuantryError
from quantry.targets import Backend, backend_of, find_target, on_target, simulated_for

LEADERS = 3
"""How many of the best trials run on the target."""

SAMPLES = 64
"""How many samples each of them is scored on there; an emulator takes about a second per image."""


@dataclass(frozen=True)
class _Ranked:
    trial: Trial
    simulated: Score
    on_target: Score

    def __str__(self) -> str:
        there, samples = self.on_target, self.on_target.per_sample
        around = "" if there.interval is None else f" [{there.interval[0]:.4f}, {there.interval[1]:.4f}]"
        counted = "all" if samples is None else f"the same {len(samples)}"
        return (
            f"trial {self.trial.number} has {there.value:.4f}{around} there and {self.simulated.value:.4f} in "
            f"simulation, on {counted} samples"
        )


def rank_on_target(state: SearchState, context: SearchContext) -> tuple[str, ...]:
    """Score the leaders of a search on its target and make the best of them the best of the search.

    Args:
        state: The search; its best trial may change.
        context: What all trials share.

    Returns:
        Notes on the scores there; empty if the recipes name no target, or it has no backend here.
    """
    best = state.best
    backend = None if best is None or not best.recipe.target else _usable(best.recipe.target)
    if backend is not None and backend.evaluates:
        return ()  # every trial was scored there
    if best is None or backend is None or not hasattr(context.evaluator.evaluator, "fingerprint"):
        return ()
    ranked, notes = [], []
    for trial in _leaders(state):
        try:
            ranked.append(_scored(trial, context))
        except QuantryError as error:
            notes.append(f"on {best.recipe.target}: trial {trial.number} does not run: {error}")
    if not ranked:
        return tuple(notes)
    sign = 1.0 if state.direction == "maximize" else -1.0
    # Equal scores keep the order of the simulation.
    winner = max(ranked, key=lambda entry: sign * entry.on_target.value)
    notes += [f"on {best.recipe.target}: {entry}" for entry in ranked]
    if winner.trial.number != best.number:
        notes.append(f"trial {winner.trial.number} is best on {best.recipe.target}, trial {best.number} in simulation")
        state.prefer(winner.trial)
    return tuple(notes)


def _usable(target: str) -> Backend | None:
    backend = backend_of(find_target(target))
    return backend if backend is not None and backend.version() is not None else None


def _leaders(state: SearchState) -> list[Trial]:
    complete = [trial for trial in state.trials if trial.state == "complete" and trial.score is not None]
    distinct: dict[str, Trial] = {}
    for trial in complete:
        distinct.setdefault(trial.content or str(trial.number), trial)
    ordered = sorted(distinct.values(), key=lambda trial: state.drop(trial.score or 0.0))
    # The best of the search comes first, also among equal scores.
    return [*([state.best] if state.best is not None else []), *(t for t in ordered if t != state.best)][:LEADERS]


def _scored(trial: Trial, context: SearchContext) -> _Ranked:
    with tempfile.TemporaryDirectory(prefix="quantry-") as folder:
        path = Path(folder) / "model.onnx"
        TrialRunner(context).write_model(trial.recipe, path)
        with simulated_for(trial.recipe.target):
            simulated = _score(context.evaluator, path)
        with on_target(trial.recipe.target, context.store):
            return _Ranked(trial, simulated, _score(context.evaluator, path))


def _score(adapter: EvaluatorAdapter, path: Path) -> Score:
    size = adapter.size
    if size is None:
        return adapter.score(path)
    chosen = np.unique(np.linspace(0, size - 1, min(size, SAMPLES)).round().astype(int)).tolist()
    return Score.of_samples(adapter.evaluator.per_sample(path, chosen))  # type: ignore[attr-defined]
