"""The report of a quantization as one self-contained HTML page: no external scripts, fonts or images."""

import math
from collections.abc import Sequence
from html import escape

from quantry.report.facts import Plain, ReportFacts
from quantry.report.html import bullets, cards, document, line_chart, quality_bar, section, shape_chart, table

_SHOWN_TENSORS = 400


def render_page(facts: ReportFacts) -> str:
    """Return the page.

    Args:
        facts: What to show.
    """
    sections = (
        _cards(facts),
        section("Why accuracy is lost", _findings(facts.findings)),
        section(
            "Where it is lost",
            "<p>Signal-to-noise ratio of every tensor along the graph, in dB, including the error accumulated before "
            "it. Higher is better: at 40 dB the error is 1 % of the signal, at 20 dB 10 %. Dots mark the largest "
            "losses; losses above 40 dB are ignored.</p>"
            + line_chart(facts.gathered, [fall["tensor"] for fall in facts.falls])
            + _falls(facts.falls),
        ),
        section("Worst activations", _shapes(facts.shapes)),
        section("Every quantized tensor", _tensors(facts.tensors)),
        section("What stayed float", _declined(facts.declined)),
        section("Notes", bullets(facts.notes)) if facts.notes else "",
        section("What ran", table(("stage", "outcome", "seconds"), (map(escape, row) for row in facts.trace))),
        section(
            "Recipe", f"<p>Save it and run it again with <code>--recipe</code>.</p><pre>{escape(facts.recipe)}</pre>"
        ),
    )
    below = f"quantized with <strong>{escape(facts.recipe_name)}</strong>"
    return document(f"{facts.title}, {facts.recipe_name}", facts.title, below, "".join(sections))


def _cards(facts: ReportFacts) -> str:
    before, after = facts.sizes
    size = f"{before / after:.1f}x smaller" if before >= after else f"{after / before:.2f}x larger"
    boxes = [(size, f"{_bytes(before)} to {_bytes(after)}")]
    for score in facts.scores:
        better = "higher is better" if score["higher_is_better"] else "lower is better"
        boxes.append((f"{score['name']} {score['value']:.4g}", f"{_interval(score['interval'])}; {better}"))
    nodes, quantized = facts.nodes
    boxes.append((f"{quantized} of {nodes} nodes", "compute on quantized tensors"))
    if facts.latency is not None:
        boxes.append(
            (
                f"{facts.latency['ratio']:.2f}x the float time",
                f"{facts.latency['quantized_ms']:.2f} ms, float {facts.latency['float_ms']:.2f} ms on this machine",
            )
        )
    return cards(boxes)


def _interval(interval: tuple[float, float] | None) -> str:
    return "one sample" if interval is None else f"95 % interval {interval[0]:.4g} to {interval[1]:.4g}"


def _bytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1_000_000 else f"{size / 1e3:.0f} kB"


def _findings(findings: Sequence[Plain]) -> str:
    if not findings:
        return "<p>No known cause of accuracy loss was found.</p>"
    return "".join(
        f"<details class=finding open><summary>{escape(finding['title'])}</summary><p><b>What helps:</b> "
        f"{escape(finding['fix'])}</p>{_names(finding['tensors'])}</details>"
        for finding in findings
    )


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(f"<code>{escape(name)}</code>" for name in names[:12])
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return f"<p>{shown}{more}</p>" if names else ""


def _falls(falls: Sequence[Plain]) -> str:
    rows = (
        (
            f"{escape(fall['operator'])} <code>{escape(fall['node'])}</code>",
            "exact" if fall["before"] == math.inf else f"{fall['before']:.1f}",
            f"{fall['after']:.1f}",
            f"{fall['lost']:.1f}",
        )
        for fall in falls[:10]
    )
    return table(("node", "dB before", "dB after", "lost"), rows)


def _shapes(shapes: Sequence[Plain]) -> str:
    figures = "".join(
        f"<figure>{shape_chart(shape)}<figcaption><code>{escape(shape['name'])}</code> {escape(shape['dtype'])}, "
        f"{shape['sqnr']:.1f} dB alone</figcaption></figure>"
        for shape in shapes
    )
    hint = "<p>Frequency of each value (logarithmic); lines are the ends of the range that the integers represent.</p>"
    return hint + f"<div class=figures>{figures}</div>" if shapes else "<p>None.</p>"


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
    left = len(tensors) - _SHOWN_TENSORS
    rest = f"<p>The {left} best are not shown.</p>" if left > 0 else ""
    headings = ("tensor", "kind", "operator", "type", "scale", "range", "seen", "clipping", "peak / rms", "dB")
    hint = (
        "<p>Each tensor alone, worst first. <i>Clipping</i> is the share of its noise from values outside the range; "
        "the rest is rounding. <label>Filter <input id=filter placeholder='part of a name'></label></p>"
    )
    return hint + table(headings, rows, identity="main") + rest


def _span(low: float, high: float) -> str:
    return f"{low:.4g}" if low == high else f"{low:.3g} .. {high:.3g}"


def _declined(declined: Sequence[tuple[str, tuple[str, ...]]]) -> str:
    if not declined:
        return "<p>Nothing: every node computes on quantized tensors.</p>"
    return "".join(
        f"<details><summary>{len(nodes)}: {escape(reason)}</summary>{bullets(nodes)}</details>"
        for reason, nodes in declined
    )
