"""What `auto` reports: the steps with their gains, and what further gain would need."""

from collections.abc import Iterator
from dataclasses import dataclass

from quantry.auto.gain import is_good
from quantry.auto.loop import Outcome
from quantry.auto.trials import Tried
from quantry.evaluate import Quality, quality
from quantry.evaluate.tasks import Closeness
from quantry.recipe.json_result import JsonResult, Size

# With fewer samples in both halves together, a test finds large gains only.
_FEW_SAMPLES = 32


@dataclass(frozen=True)
class FirstAndLast(JsonResult):
    """A figure at the start and at the end.

    Attributes:
        first: That of the recipe at the start; null if there is none.
        last: That of the result.
    """

    first: float | None
    last: float | None


@dataclass(frozen=True)
class OutcomeFacts(JsonResult):
    """What was tried and kept.

    Attributes:
        calibrated_on: Number of calibration samples.
        compared_on: Number of held-out samples.
        both_ways: Whether both halves were calibrated on and compared on.
        kept: The changes that were kept.
        final_calibrated_on_all: Whether the result is calibrated on all samples.
        cpu_seconds: CPU time of all trials.
        decibels: Signal-to-noise ratio of the outputs.
        agreement: Share of decisions that are those of the float model.
        steps: Everything that was tried.
        further_gain_needs: What further gain would need.
    """

    calibrated_on: Size
    compared_on: Size
    both_ways: bool
    kept: tuple[str, ...]
    final_calibrated_on_all: bool
    cpu_seconds: float
    decibels: FirstAndLast
    agreement: FirstAndLast
    steps: tuple[Tried, ...]
    further_gain_needs: tuple[str, ...]


def closeness_text(closeness: Closeness) -> str:
    """Return ``24.8 dB, 98.4 % of decisions agree``.

    Args:
        closeness: How close a model is to the float model.
    """
    agreement = closeness.mean_agreement
    return f"{closeness.mean_decibels:.1f} dB" + ("" if agreement is None else f", {agreement:.1%} of decisions agree")


def step_text(step: Tried) -> str:
    """Return one line about a step.

    Args:
        step: The step.
    """
    if step.decibels is None:
        return f"{step.label}: failed: {step.reason}"
    gain = "" if step.gain is None else f" ({step.gain:+.2f} dB"
    if gain and step.agreement_gain is not None:
        gain += f", {100 * step.agreement_gain:+.1f} points of agreement"
    gain += ")" if gain else ""
    kept = "kept" if step.accepted else "not kept"
    return f"{step.label}: {step.decibels:.2f} dB{gain}, {kept}"


def outcome_facts(outcome: Outcome) -> OutcomeFacts:
    """Return what was found, for reports and JSON.

    Args:
        outcome: What was found.
    """
    return OutcomeFacts(
        calibrated_on=outcome.calibrated,
        compared_on=outcome.compared,
        both_ways=outcome.is_swapped,
        kept=outcome.kept,
        final_calibrated_on_all=outcome.uses_all,
        cpu_seconds=outcome.seconds,
        decibels=FirstAndLast(outcome.start.mean_decibels, outcome.closeness.mean_decibels),
        agreement=FirstAndLast(outcome.start.mean_agreement, outcome.closeness.mean_agreement),
        steps=outcome.steps,
        further_gain_needs=further_gain(outcome),
    )


def held_out_quality(outcome: Outcome) -> Quality:
    """Return how close the model is to the float model on the samples it was not calibrated on.

    Args:
        outcome: What was found.
    """
    found = outcome.closeness
    return quality(found.mean_decibels, found.mean_agreement, f"{outcome.compared} held-out samples")


def further_gain(outcome: Outcome) -> tuple[str, ...]:
    """Return what further gain would need, most useful first.

    Args:
        outcome: What was found.
    """
    return tuple(_further(outcome))


def _further(outcome: Outcome) -> Iterator[str]:
    if is_good(outcome.closeness):
        yield "nothing: the decisions are those of the float model on the held-out samples"
        return
    for label, reason in outcome.refused:
        yield f"{label}: {reason}"
    if outcome.skipped:
        yield f"more time (a higher effort): there was none for {', '.join(outcome.skipped)}"
    else:
        yield "training without labels (effort high)"
    samples = outcome.compared if outcome.is_swapped else outcome.calibrated + outcome.compared
    if samples < _FEW_SAMPLES:
        yield f"more calibration samples: there were {samples}; small gains show from {2 * _FEW_SAMPLES} on"
    falls = () if outcome.diagnosis is None else outcome.diagnosis.falls[:3]
    if falls:
        names = ", ".join(f"{fall.operator} {fall.node} ({fall.lost:.0f} dB)" for fall in falls)
        yield f"more bits or float where most is lost: {names}"


def summary_lines(outcome: Outcome) -> tuple[str, ...]:
    """Return the notes of a result that `auto` found.

    Args:
        outcome: What was found.
    """
    counts = f"calibrated on {outcome.calibrated} and compared on {outcome.compared} other samples"
    if outcome.is_swapped:
        counts = f"calibrated on half of the {outcome.compared} samples and compared on the other half, both ways"
    if outcome.compared == 1:
        counts = "calibrated and compared on the only sample, so nothing was tuned"
    changes = "; ".join(outcome.kept) or "no change of the recipe at the start"
    found = (
        f"auto tried {len(outcome.steps)} recipes in {outcome.seconds:.0f} s of CPU time, {counts}: "
        f"{closeness_text(outcome.start)} at first, {closeness_text(outcome.closeness)} now; kept: {changes}"
    )
    if not outcome.uses_all:
        found += "; the model of that trial was closer than the one calibrated on all samples, so it is the result"
    return (found, *(f"further gain would need {line}" for line in further_gain(outcome)))
