"""The page of benchmarks, with charts, from the published results in benchmarks/results."""

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
_ROW = 26
_LABELS = 250
_WIDTH = 760

# Colours with enough contrast on light and on dark pages.
_OURS, _OTHERS, _FLOAT = "#3f6fd8", "#b0642a", "#7a7f87"


def benchmarks_page() -> str:
    """Return the page as Markdown with SVG charts; the numbers stand next to the bars."""
    results = json.loads((RESULTS / "accuracy.json").read_text(encoding="utf-8"))
    machine = results["machine"]
    measured = (
        f"Accuracy on labelled data, measured on {machine['cpus']} cores of {machine['processor']} with the versions "
        f"{_versions(results['versions'])}. Lines show 95 % intervals. How each was measured, speed, and where quantry "
        "loses: `benchmarks/README.md` of the repository."
    )
    parts = ["# Benchmarks", measured]
    for name, entry in results["entries"].items():
        calibrated = f"{entry['metric']}, calibrated on {entry['calibration_samples']} samples."
        parts += [f"## {name}", calibrated, _chart(entry)]
    return "\n\n".join(parts) + "\n"


def _versions(versions: Mapping[str, str]) -> str:
    shown = [name for name in ("quantry", "onnxruntime", "peer amd-quark") if name in versions]
    return ", ".join(f"{name.removeprefix('peer ')} {versions[name]}" for name in shown)


def _chart(entry: Mapping[str, Any]) -> str:
    scores = {name: score for name, score in entry["scores"].items() if isinstance(score.get("value"), int | float)}
    top = max([1e-9, *(end for score in scores.values() for end in (score["value"], *(score.get("interval") or ())))])
    bars = "".join(_bar(index, name, score, top) for index, (name, score) in enumerate(scores.items()))
    height = _ROW * len(scores) + 8
    label = escape("; ".join(f"{name} {score['value']:.4f}" for name, score in scores.items()))
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}" style="max-width:100%" '
        f'font-family="sans-serif" font-size="13" fill="currentColor">{bars}</svg>'
    )


def _bar(index: int, name: str, score: Mapping[str, Any], top: float) -> str:
    across = (_WIDTH - _LABELS - 70) / top
    middle, length = index * _ROW + 16, max(score["value"], 0.0) * across
    colour = _FLOAT if name == "float" else _OURS if "quantry" in name else _OTHERS
    low, high = (min(max(end, 0.0), top) * across + _LABELS for end in score.get("interval") or (score["value"],) * 2)
    return (
        f'<text x="{_LABELS - 8}" y="{middle + 4}" text-anchor="end">{escape(name)}</text>'
        f'<rect x="{_LABELS}" y="{middle - 8}" width="{length:.1f}" height="16" fill="{colour}" />'
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" stroke="currentColor" stroke-width="2" />'
        f'<text x="{_LABELS + max(length, high - _LABELS) + 6:.1f}" y="{middle + 4}">{score["value"]:.4f}</text>'
    )
