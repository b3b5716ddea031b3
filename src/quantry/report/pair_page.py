"""The page of two models of any tools: how far their outputs are apart, and where the difference arises."""

import math
from html import escape

from quantry.diagnosis import Fall, PairDiagnosis
from quantry.evaluate import UNITS, Latency, bytes_text, score_texts, size_text, speed_text
from quantry.report.facts import Plain
from quantry.report.html import cards, chart, document, filter_box, hint, quality_bar, table
from quantry.targets.compare import ModelComparison


def render_pair_page(
    title: str, found: PairDiagnosis, target: str | None = None, latency: Latency | None = None
) -> str:
    """Return the page of two models.

    Args:
        title: The heading, usually both file names.
        found: How they differ.
        target: The target that the second model ran on; None if it was simulated.
        latency: Times of both; None if they were not measured.
    """
    sections = (
        ("", _cards(found, latency)),
        ("How close the outputs are", _scores(found.outputs)),
        ("Where accuracy is lost", _where(found)),
        (f"Where {target} departs from the simulation", _departures(found, target)),
        ("Every tensor that both have", _tensors(found)),
    )
    below = f"compared on {found.samples} samples" + ("" if target is None else f", with {escape(target)}")
    strip = [
        {"node": name, "operator": "", "tensor": name, "weight_name": "", "gathered": _short(value)}
        | {"activation": None, "weight": None}
        for name, value in found.gathered.items()
    ]
    facts: Plain = {"strip": strip, "falls": [fall.tensor for fall in found.falls], "histograms": {}}
    return document("model", title, below, sections, facts)


def _short(decibel: float) -> float | str:
    return round(decibel, 2) if math.isfinite(decibel) else str(decibel)


def _cards(found: PairDiagnosis, latency: Latency | None) -> str:
    ours, theirs = found.outputs.sizes
    boxes = [
        (f"{score_texts(score.value, score.interval)[0]} {UNITS.get(name, '')}".strip(), f"{name} of all outputs")
        for name, score in found.outputs.metrics.items()
    ]
    boxes.append((size_text(ours, theirs), f"{bytes_text(ours)} and {bytes_text(theirs)}"))
    if latency is not None:
        speed = speed_text(latency.float_ms, latency.quantized_ms)
        boxes.append((speed, f"{latency.float_ms:.2f} and {latency.quantized_ms:.2f} ms"))
    if found.on_target is not None:
        boxes.append((f"{found.on_target.metrics['sqnr'].value:.1f} dB", "of the simulated outputs on the target"))
    return cards(boxes)


def _scores(compared: ModelComparison) -> str:
    rows = (
        (f"<code>{escape(output)}</code>", metric, *score_texts(score.value, score.interval))
        for output, scores in compared.outputs.items()
        for metric, score in scores.items()
    )
    return table(("output", "metric", "value", "95 % interval"), rows)


def _where(found: PairDiagnosis) -> str:
    if not found.gathered:
        return "<p>The two models have no tensor in common that could be compared.</p>"
    told = hint("The signal-to-noise ratio of the second model along the first, in dB; dots mark the largest losses.")
    drawn = chart("line", "accumulated signal-to-noise ratio along the graph", "low")
    return told + drawn + "<h3>Worst nodes</h3>" + _falls(found.falls)


def _departures(found: PairDiagnosis, target: str | None) -> str:
    return "" if target is None or found.departures is None else _falls(found.departures)


def _falls(falls: tuple[Fall, ...]) -> str:
    rows = (
        (
            f"{escape(fall.operator)} <code>{escape(fall.node)}</code>",
            "exact" if fall.before == math.inf else f"{fall.before:.1f}",
            f"{fall.after:.1f}",
            f"{fall.lost:.1f}",
        )
        for fall in falls
    )
    return table(("node", "dB before", "dB after", "lost"), rows) if falls else "<p>Nowhere.</p>"


def _tensors(found: PairDiagnosis) -> str:
    rows = ((f"<code>{escape(name)}</code>", quality_bar(value)) for name, value in found.gathered.items())
    return filter_box("main", "Show only rows with") + table(("tensor", "dB"), rows, identity="main")
