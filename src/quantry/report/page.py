"""The report of a quantization as one self-contained HTML page: no external scripts, fonts or images."""

import math
from collections.abc import Sequence
from html import escape

from quantry.auto import AutoFacts
from quantry.diagnosis.evidence import sentence
from quantry.evaluate import UNITS, bytes_text, score_texts, size_text, speed_text
from quantry.report.facts import Plain, ReportFacts
from quantry.report.html import bullets, cards, chart, document, filter_box, hint, quality_bar, summary, table

_SHOWN_TENSORS = 400

# Names of tensors that a cause shows at first, and on a click.
_SHOWN_NAMES, _MOST_NAMES = 3, 40


def render_page(facts: ReportFacts) -> str:
    """Return the page.

    Args:
        facts: What to show.
    """
    sections = (
        ("", _summary(facts) + _cards(facts)),
        ("What auto tried", "" if facts.auto is None else _auto(facts.auto)),
        ("Why accuracy is lost", _findings(facts.findings, facts.rest)),
        ("Calibration data", bullets(facts.calibration.splitlines()) if facts.calibration else ""),
        ("Where it is lost", _where(facts)),
        ("Values and ranges", _histograms(facts.histograms)),
        ("Images that changed most", _pictures(facts.pictures)),
        ("Every quantized tensor", _tensors(facts.tensors)),
        ("Where it runs", _placement(facts.placement)),
        ("What stayed float", _declined(facts.declined)),
        ("Notes", bullets(facts.notes) if facts.notes else ""),
        ("What ran", _trace(facts.trace)),
        (
            "Recipe",
            f"<p>Save it and run it again with <code>--recipe</code>.</p><pre>{escape(facts.recipe)}</pre>",
        ),
    )
    below = f"quantized with <strong>{escape(facts.recipe_name)}</strong>"
    return document("model", facts.title, below, sections, _for_script(facts))


def _for_script(facts: ReportFacts) -> Plain:
    return {
        "strip": [{name: _finite(value) for name, value in layer.items()} for layer in facts.strip],
        "falls": [fall["tensor"] for fall in facts.falls],
        "histograms": {
            histogram["name"]: {name: _finite(value) for name, value in histogram.items() if name != "name"}
            for histogram in facts.histograms
        },
    }


def _finite(value: object) -> object:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _summary(facts: ReportFacts) -> str:
    """Return whether the model is good, where its file is, and what to do next."""
    before, after = facts.sizes
    purpose = f", for {escape(facts.target)}" if facts.target else ""
    file = f"<code>{escape(facts.file)}</code>, " if facts.file else ""
    model = f"{file}{bytes_text(after)}, {size_text(before, after)} than the float model{purpose}"
    rows = [("Model", model), ("Next", _next(facts))]
    return summary(facts.quality.level, facts.quality.words, facts.quality.evidence, rows)


def _next(facts: ReportFacts) -> str:
    """Return the step that helps most after this result, as HTML."""
    file = escape(facts.file or "quantized.onnx")
    labels = f"<code>quantry evaluate {file} --data images/ --labels labels.csv</code>"
    if facts.quality.level == "good":
        return f"Confirm it with labels, which no comparison with the float model replaces: {labels}"
    cause = "The first cause below says what helps." if facts.findings else ""
    model = escape(facts.float_file or "model.onnx")
    fix = f"<code>quantry diagnose {model} --data images/ --fix</code>"
    search = f"<code>quantry search {model} --data images/ --labels labels.csv</code>"
    # auto has tried the fixes already.
    tried = "Find" if facts.auto is not None else f"Try the fixes with {fix}, or find"
    return f"{cause} {tried} the best recipe by labels with {search}".strip()


def _cards(facts: ReportFacts) -> str:
    before, after = facts.sizes
    boxes = []
    final = None if facts.auto is None else facts.auto.reported
    agreement = None if facts.auto is None else facts.auto.agreement.last if final is None else final.agreement
    if facts.auto is not None and agreement is not None:
        samples = f"{facts.auto.compared_on} held-out" if final is None else f"{final.samples} unseen"
        compared = f"of decisions are the float model's on {samples} samples"
        boxes.append((f"{agreement:.1%}", compared))
    # Decibels first: they mean the same for every model.
    scores = sorted(facts.scores, key=lambda score: bool(score["name"] != "sqnr"))
    boxes += map(_score_card, scores[:1])
    boxes.append((size_text(before, after), f"{bytes_text(before)} to {bytes_text(after)}"))
    if facts.latency is not None:
        boxes.append(
            (
                speed_text(facts.latency["float_ms"], facts.latency["quantized_ms"]),
                f"{facts.latency['quantized_ms']:.2f} ms on this machine, {facts.latency['ratio']:.2f}x the float time",
            )
        )
    nodes, quantized = facts.nodes
    boxes.append((f"{quantized} of {nodes} nodes", "compute on quantized tensors"))
    return cards([*boxes, *map(_score_card, scores[1:])])


def _score_card(score: Plain) -> tuple[str, str]:
    better = "higher is better" if score["higher_is_better"] else "lower is better"
    value, interval = score_texts(score["value"], score["interval"])
    evidence = f"95 % interval {interval}" if interval else "one sample"
    return f"{value} {UNITS.get(score['name'], '')}".strip(), f"{score['name']}, {better}; {evidence}"


def _auto(auto: AutoFacts) -> str:
    """Return the steps with their gains, and what further gain would need."""
    rows = (
        (
            escape(step.label) + (f"<br><small>{escape(step.cause)}</small>" if step.cause else ""),
            "failed" if step.decibels is None else f"{step.decibels:.2f}",
            "" if step.gain is None else f"{step.gain:+.2f} over {escape(step.compared_with)}",
            "" if step.agreement is None else f"{step.agreement:.1%}",
            "" if step.agreement_gain is None else f"{100 * step.agreement_gain:+.1f}",
            "<b>kept</b>" if step.accepted else escape(step.reason) or "not kept",
            f"{step.seconds:.1f}",
        )
        for step in auto.steps
    )
    compared = "the other half, both ways" if auto.both_ways else f"{auto.compared_on} others"
    hint = (
        f"<p>Calibrated on {auto.calibrated_on} samples and compared with the float model on {compared}. "
        "A change is kept if a paired test on these supports it.</p>"
    )
    headings = ("tried", "dB", "gain in dB", "agreement", "gain in points", "decision", "CPU s")
    needs = auto.further_gain_needs
    nothing = needs[0].removeprefix("nothing: ") if len(needs) == 1 and needs[0].startswith("nothing: ") else None
    further = f"<p>Nothing more to gain: {escape(nothing)}.</p>" if nothing else "<p>Further gain would need:</p>"
    return hint + table(headings, rows) + further + ("" if nothing else bullets(needs))


def _findings(findings: Sequence[Plain], otherwise: str) -> str:
    if not findings:
        return "<p>No known cause of accuracy loss was found.</p>"
    listed = "".join(
        f"<details class=finding open id=cause-{number}><summary>{number}. {escape(sentence(finding['title']))}"
        f"</summary><dl>{_described(finding)}</dl></details>"
        for number, finding in enumerate(findings, 1)
    )
    return listed + (f"<p>{escape(sentence(otherwise))}.</p>" if otherwise else "")


def _described(finding: Plain) -> str:
    """Return what is known about a cause: what it costs, what helps, and where."""
    legend = (
        ("It costs:", escape(finding.get("cost") or "")),
        ("What helps:", escape(finding["fix"])),
        ("Measured:", escape(finding.get("gain") or "")),
        ("Where:", _names(finding["tensors"])),
    )
    return "".join(f"<dt>{label}</dt><dd>{text}</dd>" for label, text in legend if text)


def _names(names: Sequence[str]) -> str:
    def listed(some: Sequence[str]) -> str:
        # A browser may break a path after a slash.
        return ", ".join(f"<code>{escape(name).replace('/', '/<wbr>')}</code>" for name in some)

    more = names[_SHOWN_NAMES:]
    hidden = f"<details><summary>and {len(more)} more</summary>{listed(more[:_MOST_NAMES])}</details>" if more else ""
    return listed(names[:_SHOWN_NAMES]) + hidden


def _where(facts: ReportFacts) -> str:
    if not facts.strip:
        return "<p>The float and the quantized model have no tensor in common that could be compared.</p>"
    strip = hint(
        "One column per layer, from input to output; red loses most. Signal-to-noise ratio in dB: at 40 dB the error "
        "is 1 % of the signal, at 20 dB 10 %. <i>Accumulated</i> includes the error of all layers before. Drag the bar "
        "below, or hold Ctrl and scroll, to zoom; click a column to see its values."
    )
    line = hint("Higher is better. Dots mark the largest losses; losses above 40 dB are ignored.")
    return (
        "<h3>Error of every layer</h3>"
        + strip
        + chart("heat", "error of every layer as a heat map; the table of tensors has the same numbers", "low")
        + "<h3>Error that has accumulated, from input to output</h3>"
        + line
        + chart("line", "accumulated signal-to-noise ratio along the graph", "low")
        + "<h3>Worst layers</h3>"
        + _falls(facts.falls)
    )


def _falls(falls: Sequence[Plain]) -> str:
    def link(number: int) -> str:
        return f'<a href=#cause-{number} aria-label="cause {number}">{number}</a>' if number else ""

    worst = falls[:10]
    explained = any(fall["cause"] for fall in worst)
    rows = (
        (
            f"{escape(fall['operator'])} <code>{escape(fall['node'])}</code>",
            "exact" if fall["before"] == math.inf else f"{fall['before']:.1f}",
            f"{fall['after']:.1f}",
            f"{fall['lost']:.1f}",
            *((link(fall["cause"]),) if explained else ()),
        )
        for fall in worst
    )
    return table(("node", "dB before", "dB after", "lost", *(("cause",) if explained else ())), rows)


def _trace(trace: Sequence[tuple[str, str, str]]) -> str:
    """Return the time of each stage, longest first; a stage may run several times, for example to compare recipes."""
    stages: dict[str, list[float]] = {}
    for stage, outcome, seconds in trace:
        sums = stages.setdefault(stage, [0, 0, 0.0])
        sums[0] += outcome != "reused"
        sums[1] += outcome == "reused"
        sums[2] += float(seconds or 0)
    ordered = sorted(stages.items(), key=lambda stage: -stage[1][2])
    rows = [
        (escape(stage), f"{runs:.0f}", f"{reused:.0f}" if reused else "", f"{seconds:.2f}")
        for stage, (runs, reused, seconds) in ordered
    ]
    return table(("stage", "runs", "reused", "seconds"), rows)


def _histograms(histograms: Sequence[Plain]) -> str:
    if not histograms:
        return "<p>None: no tensor has an integer range.</p>"
    options = "".join(f"<option>{escape(histogram['name'])}</option>" for histogram in histograms)
    legend = hint(
        "How often each value occurs (logarithmic); dashed lines are the ends of the range that the integers "
        "represent. Worst tensors first."
    )
    return (
        f"{legend}<div class=controls><label>Tensor <select id=tensor>{options}</select></label></div>"
        f"<p id=tensor-facts role=status></p>{chart('histogram', 'histogram of the chosen tensor')}"
    )


def _pictures(pictures: Sequence[Plain]) -> str:
    if not pictures:
        return ""
    figures = "".join(
        f'<figure><svg viewBox="0 0 {picture["width"]} {picture["height"]}" role=img '
        f'aria-label="{escape(picture["name"])}">'
        f'<image href="data:image/jpeg;base64,{picture["jpeg"]}" width={picture["width"]} height={picture["height"]} />'
        f"{_boxes(picture['float_boxes'], 'green')}{_boxes(picture['quantized_boxes'], 'red')}</svg><figcaption>"
        f"{escape(picture['name'])}<br><span class=of-float>float: {escape(picture['float'])}</span><br>"
        f"<span class=of-quantized>quantized: {escape(picture['quantized'])}</span></figcaption></figure>"
        for picture in pictures
    )
    legend = hint(
        "The evaluation images on which the float and the quantized model disagree most. Green is the float model, red "
        "and dashed the quantized one."
    )
    return f"{legend}<div class=pictures>{figures}</div>"


def _boxes(boxes: Sequence[Plain], colour: str) -> str:
    dashed = " stroke-dasharray=4" if colour == "red" else ""
    return "".join(
        f"<rect x={box['x']} y={box['y']} width={box['width']} height={box['height']} fill=none "
        f'style="stroke:var(--{colour})" stroke-width=2{dashed} />'
        f'<text x={box["x"]} y={max(box["y"] - 2, 9)} font-size=9 style="fill:var(--{colour})">'
        f"{escape(box['label'])}</text>"
        for box in boxes
    )


def _tensors(tensors: Sequence[Plain]) -> str:
    rows = (
        (
            f"<code>{escape(tensor['name'])}</code>",
            escape(tensor["kind"]),
            escape(tensor["operator"]),
            escape(tensor["dtype"]),
            _span(*tensor["scales"]),
            f"{tensor['range'][0]:.3g} .. {tensor['range'][1]:.3g}",
            f"{tensor['seen'][0]:.3g} .. {tensor['seen'][1]:.3g}",
            f"{100 * tensor['clipped']:.0f} %",
            f"{tensor['peak']:.1f}",
            quality_bar(tensor["sqnr"]),
        )
        for tensor in tensors[:_SHOWN_TENSORS]
    )
    hidden = len(tensors) - _SHOWN_TENSORS
    footnote = f"<p>The {hidden} best are not shown.</p>" if hidden > 0 else ""
    headings = ("tensor", "kind", "operator", "type", "scale", "range", "seen", "clipping", "peak / rms", "dB")
    legend = hint(
        "Each tensor alone, worst first. <i>Clipping</i> is the share of its noise from values outside the range; the "
        "rest is rounding. Headings sort, by mouse or with Tab and Enter."
    )
    return legend + filter_box("main", "Show only rows with") + table(headings, rows, identity="main") + footnote


def _span(low: float, high: float) -> str:
    return f"{low:.4g}" if low == high else f"{low:.3g} .. {high:.3g}"


def _placement(placement: Sequence[Plain]) -> str:
    if not placement:
        return ""
    headings = tuple(heading for heading in placement[0] if heading != "target")
    rows = (tuple(escape(str(row[heading])) for heading in headings) for row in placement)
    legend = hint(
        f"What computes each node on {escape(placement[0]['target'])}, and why not with integers. For another target: "
        "<code>quantry placement MODEL --target NAME</code>."
    )
    return legend + filter_box("placement", "Show only rows with") + table(headings, rows, identity="placement")


def _declined(declined: Sequence[tuple[str, tuple[str, ...]]]) -> str:
    if not declined:
        return "<p>Nothing: every node computes on quantized tensors.</p>"
    return "".join(
        f"<details><summary>{len(nodes)}: {escape(reason)}</summary>{bullets(nodes)}</details>"
        for reason, nodes in declined
    )
