"""Keeps the results of a full run where they can be read: results/, charts/ and README.md."""

import html
import json
from pathlib import Path
from typing import Any

from benchmarks.locations import CHARTS, README, RESULTS
from benchmarks.markdown import replace_section, table
from benchmarks.plot import plot_accuracy, plot_speed
from benchmarks.speed_table import losses, measures_table, missed_goals, ratios_table

_RATIOS_EXPLAINED = (
    "Ratios: the median of pairwise ratios, in brackets the smallest and the largest. `noise` is the largest factor by "
    "which the same side differed between consecutive runs."
)


def publish_speed(content: dict[str, Any]) -> None:
    """Store the speed results, draw their chart and put their tables into README.md."""
    entries = content["entries"]
    _store("bench", content)
    plot_speed(entries, CHARTS / "bench.png")
    text = "\n\n".join(
        (
            _origin(content),
            _RATIOS_EXPLAINED,
            ratios_table(entries),
            "Medians of what was measured:",
            measures_table(entries),
            _list("Goals not reached", missed_goals(entries)),
            _list("Where quantry loses", losses(entries)),
            "![Time and memory](charts/bench.png)",
        )
    )
    _into_readme("bench", text)
    _page("bench", text)


def with_published_scores(content: dict[str, Any], published: dict[str, Any]) -> dict[str, Any]:
    """Return the results of a run of some models or contestants together with the published scores of all others.

    Args:
        content: What was measured.
        published: The published results.
    """
    entries: dict[str, Any] = dict(published["entries"])
    for name, entry in content["entries"].items():
        before = entries.get(name, {}).get("scores", {})
        entries[name] = {**entry, "scores": {**before, **entry["scores"]}}
    return {**content, "entries": entries}


def publish_accuracy(content: dict[str, Any], table: str) -> None:
    """Store the quality results, draw their chart and put their table into README.md."""
    for entry in content["entries"].values():
        for score in entry["scores"].values():
            score.pop("replicates", None)  # needed only to go on with a run
    _store("accuracy", content)
    plot_accuracy(content["entries"], CHARTS / "accuracy.png")
    text = "\n\n".join((_origin(content), table, "![Quality](charts/accuracy.png)"))
    _into_readme("accuracy", text)
    _page("accuracy", text)


def publish_deployment(content: dict[str, Any]) -> None:
    """Store the results on deployment targets and put their table into README.md."""
    # Rows come from several runs, each with its own number of samples.
    commands = dict.fromkeys(entry["command"] for entry in content["entries"].values())
    content = {**content, "command": "; ".join(commands)}
    _store("deployment", content)
    headings = (
        "model",
        "target",
        "preset",
        "nodes elsewhere",
        "metric: float, simulation, target",
        "target - simulation, 95 %",
        "dB: float, simulation",
        "dB: float, target",
        "dB: simulation, target",
        "speed-up",
    )
    rows = [_deployment_row(name, entry) for name, entry in content["entries"].items()]
    _into_readme("deployment", f"{_origin(content)}\n\n{table(headings, rows)}")


def _deployment_row(name: str, entry: dict[str, Any]) -> tuple[str, ...]:
    quality, latency = entry.get("quality"), entry.get("latency")
    scores, interval, ratios = "", "", [""] * 3
    if quality is not None:
        values = ", ".join(f"{value:.4f}" for value in quality["scores"].values())
        scores = f"{quality['metric']} {values} ({quality['samples']})"
        low, high = quality["target_minus_simulation"]
        interval = f"{low:+.4f} .. {high:+.4f}"
        ratios = [f"{value:.1f}" for value in quality["decibels"].values()]
    speed = "" if latency is None else f"{latency['speedup']:.2f}x"
    elsewhere = str(entry.get("elsewhere", ""))
    model = name.partition(" ")[0]
    return (model, entry["target"], entry["preset"], elsewhere, scores, interval, *ratios, speed)


def publish_zoo(content: dict[str, Any], text: str) -> None:
    """Store the results of the sweep over architectures, and put its table into README.md."""
    _store("zoo", content)
    _into_readme("zoo", f"{_origin(content)}\n\n{text}")


def _store(name: str, content: dict[str, Any]) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def _into_readme(name: str, text: str) -> None:
    README.write_text(replace_section(README.read_text(), name, text))


def _page(name: str, text: str) -> None:
    """Write the same text as an HTML page with the chart."""
    page = f"<!doctype html><meta charset=utf-8><title>quantry {name}</title><pre>{html.escape(text)}</pre>"
    picture = f'<img src="{name}.png" alt="chart">'
    Path(CHARTS, f"{name}.html").write_text(f"{page}\n{picture}\n")


def _origin(content: dict[str, Any]) -> str:
    machine = content["machine"]
    dates = sorted(entry["date"][:10] for entry in content["entries"].values())
    loads = [entry["load_before"] for entry in content["entries"].values() if "load_before" in entry]
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    span = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    load = f" Load average before the rows: at most {max(loads):.1f}." if loads else ""
    return (
        f"Measured {span} with `{content['command']}` on {machine['processor']}, {machine['cpus']} CPUs, "
        f"{machine['memory_gb']} GB, {machine['system']}.{load}\n\nVersions: {versions}."
    )


def _list(title: str, lines: list[str]) -> str:
    body = "\n".join(f"- {line}" for line in lines) or "- none"
    return f"{title}:\n\n{body}"
