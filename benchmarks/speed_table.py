"""The speed results as tables of text."""

from statistics import median
from typing import Any

from benchmarks.markdown import table

_HEADINGS = ("row", "side", "time s", "CPU s", "peak MB", "with imports s", "note")
_EVEN = 0.98
"""Ratios from here to 1 are called even."""

_RATIO_HEADINGS = ("row", "ratio", "time", "CPU", "peak memory", "noise", "goal")


def measures_table(entries: dict[str, Any]) -> str:
    """Return a line for each side: medians of what was measured."""
    lines = []
    for name, entry in entries.items():
        lines += [(name, label, *_measures(side)) for label, side in entry["sides"].items()]
    return table(_HEADINGS, _without_repetition(lines))


def ratios_table(entries: dict[str, Any]) -> str:
    """Return a line for each comparison: median of pairwise ratios, with the smallest and the largest."""
    lines = []
    for name, entry in entries.items():
        lines += [(name, *_ratio_cells(comparison)) for comparison in entry["comparisons"] if comparison["ratios"]]
    return table(_RATIO_HEADINGS, _without_repetition(lines))


def missed_goals(entries: dict[str, Any]) -> list[str]:
    """Return a sentence for each goal that was not reached."""
    return [
        f"{name}: {comparison['numerator']} / {comparison['denominator']}: {goal['goal']} is not reached "
        f"(measured {goal.get('measured') or _ratio_text(comparison['ratios'].get(goal['goal'].split()[0]))})"
        for name, entry in entries.items()
        for comparison in entry["comparisons"]
        for goal in comparison["goals"]
        if not goal["reached"]
    ]


def losses(entries: dict[str, Any]) -> list[str]:
    """Return a sentence for each comparison with a peer in which quantry takes more time or memory."""
    found = []
    for name, entry in entries.items():
        for comparison in entry["comparisons"]:
            between = "quantry" not in comparison["numerator"] and "quantry" in comparison["denominator"]
            if not between or not comparison["larger_is_better"]:
                continue
            for measure, text in (("seconds", "time"), ("peak_bytes", "peak memory")):
                ratio = comparison["ratios"].get(measure)
                if ratio and ratio["median"] < _EVEN:
                    found.append(
                        f"{name}: {comparison['denominator']} takes {1 / ratio['median']:.2f}x the {text} of "
                        f"{comparison['numerator']}"
                    )
    return found


def _measures(side: dict[str, Any]) -> tuple[str, ...]:
    note = side.get("failure") or (f"skipped: {side['skipped']}" if "skipped" in side else "")
    note = note and f"fails: {note}" if "failure" in side else note
    if "seconds" not in side:
        return ("", "", "", "", note)
    note = note or side.get("facts", {}).get("note", "")
    return (
        f"{median(side['seconds']):.3g}",
        f"{median(side['cpu_seconds']):.3g}",
        f"{median(side['peak_bytes']) / 2**20:.0f}",
        f"{median(side['process_seconds']):.3g}",
        note,
    )


def _ratio_cells(comparison: dict[str, Any]) -> tuple[str, ...]:
    ratios = comparison["ratios"]
    goals = "; ".join(_goal_text(goal) for goal in comparison["goals"])
    noise = ratios["seconds"]["noise"]
    return (
        f"{comparison['numerator']} / {comparison['denominator']}",
        _ratio_text(ratios["seconds"]),
        _ratio_text(ratios["cpu_seconds"]) if "cpu_seconds" in ratios else "",
        _ratio_text(ratios["peak_bytes"]),
        "" if noise is None else f"{noise:.2f}",
        goals,
    )


def _goal_text(goal: dict[str, Any]) -> str:
    measured = f" ({goal['measured']})" if "measured" in goal else ""
    return f"{'yes' if goal['reached'] else '**NO**'}: {goal['goal']}{measured}"


def _ratio_text(ratio: dict[str, float] | None) -> str:
    if ratio is None:
        return "not measured"
    return f"{ratio['median']:.3g}x ({ratio['low']:.3g}..{ratio['high']:.3g})"


def _without_repetition(lines: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [("", *line[1:]) if index and lines[index - 1][0] == line[0] else line for index, line in enumerate(lines)]
