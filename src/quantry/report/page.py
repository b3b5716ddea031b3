"""The facts as one HTML page that needs nothing else: no script from elsewhere, no font, no picture."""

import math
from collections.abc import Sequence
from html import escape

from quantry.report.drawing import line_chart, quality_bar, shape_chart
from quantry.report.facts import Plain, ReportFacts
from quantry.report.html_pieces import bullets, cards, document, section, table

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
            "<p>Signal over noise of every tensor along the graph, in dB, with all the error gathered before it. "
            "Higher is better: 40 dB is a hundredth, 20 dB a tenth. Dots mark the largest falls; what is lost above "
            "40 dB does not count.</p>"
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
                f"{facts.latency['quantized_ms']:.2f} ms after {facts.latency['float_ms']:.2f} ms on this machine",
            )
        )
    return cards(boxes)


def _interval(interval: tuple[float, float] | None) -> str:
    return "of one sample" if interval is None else f"95 % within {interval[0]:.4g} to {interval[1]:.4g}"


def _bytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1_000_000 else f"{size / 1e3:.0f} kB"


def _findings(findings: Sequence[Plain]) -> str:
    if not findings:
        return "<p>No known cause of loss was found.</p>"
    return "".join(
        f"<details class=finding open><summary>{escape(finding['title'])}</summary><p><b>What helps:</b> "
        f"{escape(finding['remedy'])}</p>{_names(finding['tensors'])}</details>"
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
        f"{shape['sqnr']:.1f} dB by itself</figcaption></figure>"
        for shape in shapes
    )
    hint = "<p>How often each value occurs (logarithm); lines are the ends of what the integers reach.</p>"
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
    rest = f"<p>The {left} best are left out.</p>" if left > 0 else ""
    headings = ("tensor", "kind", "operator", "type", "scale", "range", "seen", "clipping", "peak / rms", "dB")
    hint = (
        "<p>Each by itself, worst first. <i>Clipping</i> is the share of its noise from values outside the range; "
        "the rest is rounding. <label>Show only <input id=filter placeholder='part of a name'></label></p>"
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
