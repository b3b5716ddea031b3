"""The quality results as a table of text."""

from typing import Any

from benchmarks.accuracy.schemes import GOALS
from benchmarks.markdown import table

_HEADINGS = ("model", "contestant", "metric", "value", "95 % interval", "minus float", "its 95 % interval", "goal")


def quality_table(entries: dict[str, Any]) -> str:
    """Return a line for each contestant; differences are of the same resamples, so they are the sharper comparison."""
    lines = []
    for name, entry in entries.items():
        reference = next((score["value"] for score in entry["scores"].values() if "value" in score), None)
        for place, (label, score) in enumerate(entry["scores"].items()):
            head = (name if place == 0 else "", label, entry["metric"] if place == 0 else "")
            goal = GOALS.get(name, {}).get(label.removeprefix("quantry "))
            lines.append((*head, *_cells(score, reference), _verdict(score, goal)))
    return table(_HEADINGS, lines)


def _verdict(score: dict[str, Any], goal: float | None) -> str:
    if goal is None or "value" not in score:
        return ""
    return f"{'yes' if score['value'] >= goal else '**NO**'}: >= {goal:g}"


def _cells(score: dict[str, Any], reference: float | None) -> tuple[str, ...]:
    if "value" not in score or reference is None:
        note = f"skipped: {score['skipped']}" if "skipped" in score else f"fails: {score.get('failure')}"
        return (note, "", "", "")
    return (
        f"{score['value']:.4f}",
        "{:.4f}..{:.4f}".format(*score["interval"]),
        f"{score['value'] - reference:+.4f}",
        "{:+.4f}..{:+.4f}".format(*score["difference_interval"]),
    )
