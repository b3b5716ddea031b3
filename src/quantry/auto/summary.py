"""What `auto` reports: the steps with their gains, and what further gain would need."""

from collections.abc import Iterator
from dataclasses import dataclass

from quantry.auto.recipe_search import AutoReport
from quantry.auto.trials import StepRecord
from quantry.evaluate import Quality, quality
from quantry.evaluate.levels import is_as_good
from quantry.evaluate.tasks import Closeness
from quantry.recipe.json_result import JsonResult, Size

# With fewer samples in both halves together, a test finds large gains only.
_FEW_SAMPLES = 32


@dataclass(frozen=True)
class FirstAndLast(JsonResult):
    """A figure at the start and at the end, on the held-out samples.

    Attributes:
        first: That of the recipe at the start; null if there is none.
        last: That of the result's recipe.
    """

    first: float | None
    last: float | None


@dataclass(frozen=True)
class Reported(JsonResult):
    """How close the written model is on samples that neither calibrated nor chose anything.

    Attributes:
        samples: Number of samples.
        decibels: Signal-to-noise ratio of the outputs.
        agreement: Share of decisions that are those of the float model; null if outputs hold no decision.
    """

    samples: Size
    decibels: float
    agreement: float | None


@dataclass(frozen=True)
class AutoFacts(JsonResult):
    """What was tried and kept.

    Attributes:
        calibrated_on: Number of calibration samples of the trials.
        compared_on: Number of held-out samples.
        both_ways: Whether both halves were calibrated on and compared on.
        kept: The changes that were kept.
        seconds: Time until the result, by the clock.
        decibels: Signal-to-noise ratio of the outputs.
        agreement: Share of decisions that are those of the float model.
        reported: The figures of the written model; null if there were too few samples.
        steps: Everything that was tried.
        further_gain_needs: What further gain would need.
    """

    calibrated_on: Size
    compared_on: Size
    both_ways: bool
    kept: tuple[str, ...]
    seconds: float
    decibels: FirstAndLast
    agreement: FirstAndLast
    reported: Reported | None
    steps: tuple[StepRecord, ...]
    further_gain_needs: tuple[str, ...]


def closeness_text(closeness: Closeness) -> str:
    """Return ``24.8 dB, 98.4 % of decisions agree``.

    Args:
        closeness: How close a model is to the float model.
    """
    agreement = closeness.mean_agreement
    return f"{closeness.mean_decibels:.1f} dB" + ("" if agreement is None else f", {agreement:.1%} of decisions agree")


def step_text(step: StepRecord) -> str:
    """Return one line about a step.

    Args:
        step: The step.
    """
    if step.decibels is None:
        return f"{step.label}: failed: {step.reason}"
    gain = "" if step.gain is None else f" ({step.gain:+.2f} dB"
    if gain and step.agreement_gain is not None:
        gain += f", {100 * step.agreement_gain:+.1f} points of agreement"
    gain += f" over {step.compared_with})" if gain else ""
    kept = "kept" if step.accepted else "not kept"
    return f"{step.label}: {step.decibels:.2f} dB{gain}, {kept}"


def auto_facts(report: AutoReport) -> AutoFacts:
    """Return what was found, for reports and JSON.

    Args:
        report: What was found.
    """
    final = report.reported
    return AutoFacts(
        calibrated_on=report.calibrated,
        compared_on=report.compared,
        both_ways=report.is_swapped,
        kept=report.kept,
        seconds=report.seconds,
        decibels=FirstAndLast(report.start.mean_decibels, report.closeness.mean_decibels),
        agreement=FirstAndLast(report.start.mean_agreement, report.closeness.mean_agreement),
        reported=None if final is None else Reported(len(final.decibels), final.mean_decibels, final.mean_agreement),
        steps=report.steps,
        further_gain_needs=further_gain(report),
    )


def final_quality(report: AutoReport) -> Quality:
    """Return how close the result is to the float model.

    The figure comes from samples that neither calibrated nor chose anything, if there are enough; if not, the text says
    that the samples chose the recipe.

    Args:
        report: What was found.
    """
    measured = report.closeness if report.reported is None else report.reported
    count = len(measured.decibels)
    where = f"the {count} samples that chose the recipe" if report.reported is None else f"{count} unseen samples"
    return quality(measured.mean_decibels, measured.mean_agreement, where)


def further_gain(report: AutoReport) -> tuple[str, ...]:
    """Return what further gain would need, most useful first.

    Args:
        report: What was found.
    """
    return tuple(_further(report))


def _further(report: AutoReport) -> Iterator[str]:
    if is_as_good(report.closeness):
        yield "nothing: the decisions are those of the float model on the held-out samples"
        return
    for label, reason in report.refused:
        yield f"{label}: {reason}"
    if report.skipped:
        yield f"more time (a higher effort): there was none for {', '.join(report.skipped)}"
    else:
        yield "training without labels (effort high)"
    samples = report.compared if report.is_swapped else report.calibrated + report.compared
    if samples < _FEW_SAMPLES:
        yield f"more calibration samples: there were {samples}; small gains show from {2 * _FEW_SAMPLES} on"
    falls = () if report.diagnosis is None else report.diagnosis.falls[:3]
    if falls:
        names = ", ".join(f"{fall.operator} {fall.node} ({fall.lost:.0f} dB)" for fall in falls)
        yield f"more bits or float where most is lost: {names}"


def summary_lines(report: AutoReport) -> tuple[str, ...]:
    """Return the notes of a result that `auto` found.

    Args:
        report: What was found.
    """
    counts = f"calibrated on {report.calibrated} and compared on {report.compared} other samples"
    if report.is_swapped:
        counts = f"calibrated on half of the {report.compared} samples and compared on the other half, both ways"
    if report.compared == 1:
        counts = "calibrated and compared on the only sample, so nothing was tuned"
    changes = "; ".join(report.kept) or "no change of the recipe at the start"
    found = (
        f"auto tried {len(report.steps)} recipes, {counts}: {closeness_text(report.start)} at first, "
        f"{closeness_text(report.closeness)} now; kept: {changes}"
    )
    if report.reported is not None:
        count = len(report.reported.decibels)
        found += (
            f"; the result, calibrated on all other samples, has {closeness_text(report.reported)} on {count} samples "
            "that neither calibrated nor chose it"
        )
    return (found, *(f"further gain would need {line}" for line in further_gain(report)))
