"""The page of two models of any tools: how far their outputs are apart, and where the difference arises."""

import math
from html import escape

from quantry.diagnosis import Fall, PairDiagnosis
from quantry.diagnosis.evidence import counted
from quantry.evaluate import UNITS, Latency, bytes_text, quality, score_texts, size_text, speed_text
from quantry.report.facts import Plain
from quantry.report.html import cards, chart, document, filter_box, hint, quality_bar, summary, table
from quantry.targets.compare import ModelComparison


def render_pair_page(
    title: str, diagnosis: PairDiagnosis, target: str | None = None, latency: Latency | None = None
) -> str:
    """Return the page of two models.

    Args:
        title: The heading, usually both file names.
        diagnosis: How they differ.
        target: The target that the second model ran on; None if it was simulated.
        latency: Times of both; None if they were not measured.
    """
    departures = "" if diagnosis.departures is None else _falls(diagnosis.departures)
    sections = (
        ("", _summary(diagnosis, latency, target) + _cards(diagnosis, latency)),
        ("How close the outputs are", _scores(diagnosis.outputs)),
        ("Where accuracy is lost", _where(diagnosis)),
        (f"Where {target} departs from the simulation", departures),
        ("Every tensor that both have", _tensors(diagnosis)),
    )
    below = f"outputs compared on {counted(diagnosis.outputs.samples, 'sample')}, tensors on {diagnosis.samples}" + (
        "" if target is None else f"; the second model runs on {escape(target)}"
    )
    strip = [
        {"node": name, "operator": "", "tensor": name, "weight_name": "", "gathered": _short(value)}
        | {"activation": None, "weight": None}
        for name, value in diagnosis.gathered.items()
    ]
    facts: Plain = {"strip": strip, "falls": [fall.tensor for fall in diagnosis.falls], "histograms": {}}
    return document("model", title, below, sections, facts)


def _short(decibel: float) -> float | str:
    return round(decibel, 2) if math.isfinite(decibel) else str(decibel)


def _summary(diagnosis: PairDiagnosis, latency: Latency | None, target: str | None) -> str:
    """Return how close both models are, what the second one costs, and what to do next."""
    decibels = diagnosis.outputs.metrics["sqnr"].value
    answer = quality(decibels, where=counted(diagnosis.outputs.samples, "sample"), reference="the first model")
    ours, theirs = diagnosis.outputs.sizes
    speed = "" if latency is None else f"{speed_text(latency.float_ms, latency.quantized_ms)} on {target or 'ort-cpu'}"
    cost = f"{bytes_text(theirs)}, {size_text(ours, theirs)}" + (f", {speed}" if speed else "")
    labels = "<code>quantry evaluate SECOND --data images/ --labels labels.csv</code>"
    why = "<code>quantry diagnose FIRST SECOND --data images/</code> names the nodes that lose most; so does this page"
    then = f"Confirm it with labels: {labels}" if answer.level == "good" else why
    return summary(answer.level, answer.words, answer.evidence, [("Second model", cost), ("Next", then)])


def _cards(diagnosis: PairDiagnosis, latency: Latency | None) -> str:
    ours, theirs = diagnosis.outputs.sizes
    boxes = [
        (f"{score_texts(score.value, score.interval)[0]} {UNITS.get(name, '')}".strip(), f"{name} of all outputs")
        for name, score in diagnosis.outputs.metrics.items()
    ]
    boxes.append((size_text(ours, theirs), f"{bytes_text(ours)} and {bytes_text(theirs)}"))
    if latency is not None:
        speed = speed_text(latency.float_ms, latency.quantized_ms)
        boxes.append((speed, f"{latency.float_ms:.2f} and {latency.quantized_ms:.2f} ms"))
    if diagnosis.on_target is not None:
        boxes.append((f"{diagnosis.on_target.metrics['sqnr'].value:.1f} dB", "of the simulated outputs on the target"))
    return cards(boxes)


def _scores(compared: ModelComparison) -> str:
    rows = (
        (f"<code>{escape(output)}</code>", metric, *score_texts(score.value, score.interval))
        for output, scores in compared.outputs.items()
        for metric, score in scores.items()
    )
    return table(("output", "metric", "value", "95 % interval"), rows)


def _where(diagnosis: PairDiagnosis) -> str:
    if not diagnosis.gathered:
        return "<p>The two models have no tensor in common that could be compared.</p>"
    legend = "<h3>Error that has accumulated, from input to output</h3>" + hint(
        "Signal-to-noise ratio of the second model along the first, in dB: at 40 dB the error is 1 % of the signal, at "
        "20 dB 10 %. Dots mark the largest losses. Factors by which a tool equalized channels are not counted."
    )
    drawn = chart("line", "accumulated signal-to-noise ratio along the graph", "low")
    return legend + drawn + "<h3>Worst nodes</h3>" + _falls(diagnosis.falls)


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


def _tensors(diagnosis: PairDiagnosis) -> str:
    rows = ((f"<code>{escape(name)}</code>", quality_bar(value)) for name, value in diagnosis.gathered.items())
    legend = hint("In the order of the graph. Headings sort, by mouse or with Tab and Enter.")
    return legend + filter_box("main", "Show only rows with") + table(("tensor", "dB"), rows, identity="main")
