"""Charts of the stored results."""

from pathlib import Path
from statistics import median
from typing import Any

_COLOURS = {"quantry": "#1f77b4", "onnxruntime": "#7f7f7f", "quark": "#d62728", "float": "#2ca02c"}


def plot_speed(entries: dict[str, Any], path: Path) -> None:
    """Draw time and peak memory of every tool for each row that compares tools.

    Args:
        entries: Stored rows.
        path: PNG file to write.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rows = [
        (name, entry) for name, entry in entries.items() if name.startswith(("quantize/", "method/", "growth/size"))
    ]
    figure, axes = plt.subplots(1, 2, figsize=(12, 1.5 + 0.45 * max(len(rows), 1)), sharey=True, layout="constrained")
    for axis, measure, unit, label in (
        (axes[0], "seconds", 1.0, "seconds (log)"),
        (axes[1], "peak_bytes", 2.0**20, "peak memory, MB (log)"),
    ):
        for offset, tool in enumerate(("quantry", "onnxruntime", "quark")):
            points = [
                (index + 0.27 * (offset - 1), median(entry["sides"][tool][measure]) / unit)
                for index, (_, entry) in enumerate(rows)
                if measure in entry["sides"].get(tool, {})
            ]
            if points:
                places, values = zip(*points, strict=True)
                # Points, not bars: a logarithmic axis has no zero for a bar to start from.
                axis.plot(values, places, "o", color=_COLOURS[tool], label=tool)
        axis.set_xscale("log")
        axis.set_xlabel(label)
        axis.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(range(len(rows)), [name for name, _ in rows])
    axes[0].invert_yaxis()
    axes[1].legend(loc="lower right")
    figure.suptitle("Quantizing the same model: time and memory, lower is better")
    _save(figure, path)


def plot_accuracy(entries: dict[str, Any], path: Path) -> None:
    """Draw the metric of every contestant with its confidence interval, one panel for each model.

    Args:
        entries: Stored suites.
        path: PNG file to write.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    most = max((len(entry["scores"]) for entry in entries.values()), default=1)
    figure, axes = plt.subplots(
        1,
        max(len(entries), 1),
        figsize=(4.2 * max(len(entries), 1), 1 + 0.26 * most),
        squeeze=False,
        layout="constrained",
    )
    for axis, (name, entry) in zip(axes[0], entries.items(), strict=False):
        scores = {label: score for label, score in entry["scores"].items() if "value" in score}
        for place, (label, score) in enumerate(scores.items()):
            low, high = score["interval"]
            axis.plot([low, high], [place, place], color=_COLOURS[label.split()[0]], linewidth=1.5)
            axis.plot(score["value"], place, "o", color=_COLOURS[label.split()[0]], markersize=4)
        axis.set_yticks(range(len(scores)), list(scores), fontsize=7)
        axis.invert_yaxis()
        axis.set_title(f"{name}: {entry['metric']}", fontsize=9)
        axis.grid(alpha=0.3)
    figure.suptitle("Quality on held-out data with 95 % intervals, higher is better")
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    plt.close(figure)
