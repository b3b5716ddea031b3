"""Which trial of a search wins, and why: the best score, unless it needs wider types than others that are as good.

Types as narrow as the recommended ones are what the user came for: among these the score alone decides. A model with 16
bits, or one that the target computes in float, wins only if its score is better by more than noise.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantry.autosearch.context import SearchContext
from quantry.autosearch.state import SearchState
from quantry.autosearch.trial import Trial
from quantry.autosearch.trial_runner import TrialRunner
from quantry.evaluate.paired import difference_interval, is_not_worse

MUCH_CHEAPER = 0.75
"""A model wins by its cost if it has at most this share of the bit operations of the one with the best score."""

LARGEST_LOSS = 0.005
"""How much worse such a model may be, as a share of the float model's score, even if chance explains more.

What a score exceeds the float model's by does not count: rounding makes no model better, other than by chance.
"""

UNPAIRED_LOSS = 0.002
"""The same for scores that are no mean over samples, such as mAP: chance is not known for them."""

# Trials that are compared by cost, and costs that count as equal.
_COMPARED, _EQUAL_COST = 8, 1.05


@dataclass(frozen=True)
class _Rival:
    """A trial whose score may differ from the best by chance only.

    Attributes:
        trial: The trial.
        why: Why the difference may be chance.
    """

    trial: Trial
    why: str


def prefer_cheaper(state: SearchState, context: SearchContext) -> tuple[str, ...]:
    """Make a much cheaper trial the best one if the best has wide types and its score is better by chance only.

    It is never worse than the best recommended recipe, and it stays within the tolerance. Only the default space has
    recommended recipes; in any other space, and with other objectives, the user has said what counts.

    Args:
        state: The search; its best trial may change.
        context: What all trials share.

    Returns:
        Why the best trial is the best, for people; empty if there is none.
    """
    best, objectives = state.best, state.options.objectives
    if best is None or best.score is None:
        return ()
    if len(objectives) > 1 and state.tolerance is not None and best.accepted:
        return (f"trial {best.number} wins: it has the smallest {objectives[1]} within the tolerance",)
    if len(objectives) > 1 or not state.always:
        return (f"trial {best.number} wins: it has the best score",)
    runner = TrialRunner(context)
    cost = runner.kernel_cost(best.recipe)
    usual = [one.recipe for one in state.trials if one.state == "complete" and one.recipe in state.always]
    if cost <= _EQUAL_COST * min(map(runner.kernel_cost, usual), default=math.inf):
        return (f"trial {best.number} wins: it has the best score",)
    # Rivals are in the order of their scores.
    rivals = ((rival, runner.kernel_cost(rival.trial.recipe)) for rival in _rivals(state, best))
    chosen, lower = next((pair for pair in rivals if pair[1] <= MUCH_CHEAPER * cost), (None, cost))
    if chosen is None:
        return (f"trial {best.number} wins: it has the best score, and no much cheaper trial is as good within noise",)
    state.prefer(chosen.trial)
    loss, share = _loss(chosen.trial, best), lower / cost
    better = f"which scores better by {loss:.2g}: {chosen.why}" if loss else "which has the same score"
    beaten = f"trial {chosen.trial.number} wins over trial {best.number} ({best.score:.6g})"
    return (f"{beaten}, {better}; its products take {share:.0%} of the bit operations",)


def _rivals(state: SearchState, best: Trial) -> list[_Rival]:
    """Return the trials that are as good as the best within noise, best score first."""
    assert best.score is not None
    assert state.reference is not None
    recommended = [trial.drop for trial in state.trials if trial.recipe in state.always and trial.drop is not None]
    largest_drop = min(recommended, default=math.inf)
    size = abs(state.reference.value) or abs(best.score)
    able = [
        trial
        for trial in state.trials
        if trial.state == "complete" and trial.same_as is None and trial.number != best.number
    ]
    found = []
    for trial in sorted(able, key=lambda one: (one.drop, one.number)):
        if trial.drop is None or trial.drop > largest_drop or trial.accepted < best.accepted:
            continue
        loss = max(trial.drop, 0.0) - max(best.drop or 0.0, 0.0)
        ours, theirs = _scores(state, trial), _scores(state, best)
        interval = difference_interval(theirs, ours)
        if interval is None and loss <= UNPAIRED_LOSS * size:
            found.append(_Rival(trial, f"at most {UNPAIRED_LOSS:.1%} of the float model's score is lost"))
        elif interval is not None and loss <= LARGEST_LOSS * size and is_not_worse(ours, theirs):
            low, high = interval
            found.append(_Rival(trial, f"that is within noise (95 % interval {low:.2g} to {high:.2g})"))
    return found[:_COMPARED]


def _loss(trial: Trial, best: Trial) -> float:
    assert trial.drop is not None
    assert best.drop is not None
    return trial.drop - best.drop


def _scores(state: SearchState, trial: Trial) -> NDArray[np.float64]:
    """Return the scores of a trial's samples, more is better; empty if they are unknown."""
    scores = state.directory.read_scores(trial.number)
    return scores if state.direction == "maximize" else -scores
