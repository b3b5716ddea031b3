"""The quality results as a table of text."""

from typing import Any

from benchmarks.accuracy.schemes import AUTO_SHARES, GOALS
from benchmarks.markdown import table

_HEADINGS = (
    *("model", "contestant", "metric", "value", "95 % interval", "minus float", "its 95 % interval"),
    *("of float", "dB", "agreement", "goal"),
)


def quality_table(entries: dict[str, Any]) -> str:
    """Return a line for each contestant; differences are of the same resamples, so they are the sharper comparison."""
    lines = []
    for name, entry in entries.items():
        reference = next((score["value"] for score in entry["scores"].values() if "value" in score), None)
        for place, (label, score) in enumerate(entry["scores"].items()):
            head = (name if place == 0 else "", label, entry["metric"] if place == 0 else "")
            goal = _goal(name, label.removeprefix("quantry "), reference)
            lines.append((*head, *_cells(score, reference), _verdict(score, goal)))
    return table(_HEADINGS, lines)


def _goal(suite: str, label: str, reference: float | None) -> float | None:
    # The effort, if it is not the default, comes after the target.
    share = AUTO_SHARES.get(" ".join(label.split()[:2]))
    if share is not None and reference is not None:
        return share * reference
    return GOALS.get(suite, {}).get(label)


def _verdict(score: dict[str, Any], goal: float | None) -> str:
    if goal is None or "value" not in score:
        return ""
    return f"{'yes' if score['value'] >= goal else '**NO**'}: >= {goal:.4g}"


def _cells(score: dict[str, Any], reference: float | None) -> tuple[str, ...]:
    if "value" not in score or reference is None:
        note = f"skipped: {score['skipped']}" if "skipped" in score else f"fails: {score.get('failure')}"
        return (note, "", "", "", "", "", "")
    return (
        f"{score['value']:.4f}",
        "{:.4f}..{:.4f}".format(*score["interval"]),
        f"{score['value'] - reference:+.4f}",
        # Missing where it was measured without the float model's own scores.
        "{:+.4f}..{:+.4f}".format(*score["difference_interval"]) if "difference_interval" in score else "",
        f"{score['value'] / reference:.1%}" if reference else "",
        *_closeness(score.get("details", {})),
    )


def _closeness(details: dict[str, Any]) -> tuple[str, str]:
    """Return decibels and agreement of decisions, which tell small differences apart; empty for the float model."""
    decibels, agreement = details.get("dB"), details.get("agreement")
    return "" if decibels is None else f"{decibels:.1f}", "" if agreement is None else f"{agreement:.1%}"
