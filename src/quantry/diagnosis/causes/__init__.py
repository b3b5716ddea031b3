"""Known causes of accuracy loss, one file each; each returns what was found and what helps.

To add one: a new file with a function from `Evidence` to findings, and a line in `CAUSES`.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from quantry.diagnosis.causes.coarse_outputs import coarse_outputs
from quantry.diagnosis.causes.collapsed_divisors import collapsed_divisors
from quantry.diagnosis.causes.conversions import conversions
from quantry.diagnosis.causes.joined_ranges import joined_ranges
from quantry.diagnosis.causes.poor_biases import poor_biases
from quantry.diagnosis.causes.poor_ranges import coarse_ranges, outliers, saturated_ranges, stretched_ranges
from quantry.diagnosis.causes.shifted_means import shifted_means
from quantry.diagnosis.causes.starved_activations import starved_activations
from quantry.diagnosis.causes.starved_weights import starved_weights
from quantry.diagnosis.causes.uneven_sums import uneven_sums
from quantry.diagnosis.causes.unexplained import unexplained
from quantry.diagnosis.counterfactual import Counterfactual, Gain
from quantry.diagnosis.evidence import Evidence, Finding
from quantry.evaluate.levels import HALF_BIT, NOTABLE
from quantry.recipe import BiasCorrection

# dB that losing all decisions counts for.
_DECIBELS_OF_DECISIONS = 20.0

_CHEAP = 1.2

# With more tensors than this, they are measured together only: each of them costs a run or two.
_MEASURED_TENSORS = 8


@dataclass(frozen=True)
class Cause:
    """A rule, and how to measure what its findings cost.

    Attributes:
        find: Returns what it finds in the evidence.
        gain: What the outputs gain without the cause, given the tensors that other causes blame; None leaves the
            tensors of a finding unrounded.
        tensor_by_tensor: Whether tensors whose rounding changes nothing are dropped from a finding.
        is_slow: Whether measuring its gain takes much longer than running the model.
    """

    find: Callable[[Evidence], Iterator[Finding]]
    gain: Callable[[Counterfactual, frozenset[str]], Gain | None] | None = None
    tensor_by_tensor: bool = True
    is_slow: bool = False


CAUSES: tuple[Cause, ...] = (
    Cause(conversions, lambda measure, _: measure.without_conversions(), tensor_by_tensor=False),
    Cause(collapsed_divisors),
    Cause(coarse_outputs),
    Cause(starved_activations),
    Cause(uneven_sums),
    Cause(poor_biases),
    # A scale per channel helps all weights, not only those that are named.
    Cause(starved_weights, lambda measure, _: measure.with_scales_per_channel()),
    Cause(saturated_ranges),
    Cause(outliers),
    Cause(stretched_ranges),
    Cause(joined_ranges),
    Cause(coarse_ranges),
    # Last, because its cost is what other causes leave: ranges that cut values off shift means, too.
    Cause(
        shifted_means,
        lambda measure, blamed: measure.with_corrected_biases(blamed),
        tensor_by_tensor=False,
        is_slow=True,
    ),
)
"""Every known cause; findings are ranked by what they cost."""


def find_causes(
    evidence: Evidence, measure: Counterfactual | None = None, *, brief: bool = False
) -> tuple[Finding, ...]:
    """Return what costs the outputs accuracy, most expensive first; if no rule knows it, the nodes that lose most.

    Args:
        evidence: What the rules read.
        measure: Measures what a cause costs; None returns what the rules find, in their order.
        brief: Whether to leave out slow causes, and not to measure tensors one by one.
    """
    able = measure if measure is not None and measure.is_able else None
    weights = evidence.plan.weights
    findings: list[Finding] = []
    for cause in CAUSES:
        if brief and cause.is_slow:
            continue
        cause = replace(cause, tensor_by_tensor=cause.tensor_by_tensor and not brief)  # noqa: PLW2901
        # Without weights: that their rounding shifts means is what the last cause is about.
        blamed = frozenset(name for entry in findings for name in entry.rounded or entry.tensors if name not in weights)
        findings += list(_findings(cause, evidence, able, blamed))
    if all(finding.cost is not None and finding.cost < HALF_BIT for finding in findings):
        # Small causes do not explain a large loss, and then the nodes that lose most say more.
        findings += list(_findings(Cause(unexplained), evidence, able, frozenset()))
    # What cannot be measured comes first and keeps the order of the rules.
    findings.sort(key=lambda finding: -math.inf if finding.cost is None else -_rank(finding))
    return tuple(findings)


def worth(gain: Gain) -> float:
    """Return what a gain is worth in dB, decisions included.

    Args:
        gain: What the outputs gain.
    """
    return gain.decibels + _DECIBELS_OF_DECISIONS * max(gain.agreement, 0.0)


def _rank(finding: Finding) -> float:
    # Decisions decide where the outputs' decibels do not show the loss, as with one class that is far below all others.
    rank = worth(Gain(finding.cost or 0.0, finding.decisions))
    # A bias costs nothing in the deployed model, so it comes first among causes of similar cost.
    steps = (step for fix in finding.fixes for step in fix.steps)
    return rank * (_CHEAP if any(isinstance(step, BiasCorrection) for step in steps) else 1.0)


def _findings(
    cause: Cause, evidence: Evidence, measure: Counterfactual | None, blamed: frozenset[str]
) -> Iterator[Finding]:
    def costs(finding: Finding, measure: Counterfactual) -> Gain | None:
        if cause.gain is not None:
            return cause.gain(measure, blamed)
        return measure.without_rounding(finding.rounded or finding.tensors)

    for finding in cause.find(evidence):
        if measure is None or not (finding.rounded or finding.tensors):
            yield finding
            continue
        is_single = cause.tensor_by_tensor and not finding.rounded
        harmless = _harmless(finding.tensors, measure) if is_single else frozenset()
        # The rule runs again, so that its title counts and names the remaining tensors only.
        harmful = cause.find(replace(evidence, harmless=evidence.harmless | harmless)) if harmless else (finding,)
        for remaining in harmful:
            yield from _with_cost(remaining, costs(remaining, measure))


def _harmless(tensors: tuple[str, ...], measure: Counterfactual) -> frozenset[str]:
    if not 1 < len(tensors) <= _MEASURED_TENSORS:
        return frozenset()
    together = measure.without_rounding(tensors)
    if not _is_notable(together):
        return frozenset()  # all of them are harmless, and so is the finding
    # Each is rounded where all others are not. Alone unrounded it would tell less: two tensors in a row hide each
    # other, because one changes nothing as long as the other is rounded.
    return frozenset(
        tensor
        for tensor in tensors
        if not _is_notable(_difference(together, measure.without_rounding(set(tensors) - {tensor})))
    )


def _difference(minuend: Gain | None, subtrahend: Gain | None) -> Gain | None:
    if minuend is None or subtrahend is None:
        return None
    return Gain(minuend.decibels - subtrahend.decibels, minuend.agreement - subtrahend.agreement)


def _with_cost(finding: Finding, gain: Gain | None) -> Iterator[Finding]:
    if gain is None:
        yield finding
    elif _is_notable(gain):
        yield replace(finding, cost=gain.decibels, decisions=gain.agreement)


def _is_notable(gain: Gain | None) -> bool:
    return gain is None or worth(gain) >= NOTABLE


__all__ = ["CAUSES", "Cause", "find_causes", "worth"]
