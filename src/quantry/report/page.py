"""The facts as one HTML page that needs nothing else: no script from elsewhere, no font, no picture."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from quantry.report.drawing import line_chart, quality_bar, shape_chart
from quantry.report.facts import Plain, ReportFacts

_SHOWN_TENSORS = 400


def render_page(facts: ReportFacts) -> str:
    """Return the page.

    Args:
        facts: What to show.
    """
    sections = (
        _cards(facts),
        _section("Why accuracy is lost", _findings(facts.findings)),
        _section(
            "Where it is lost",
            "<p>Signal over noise of every tensor along the graph, in dB, with all the error gathered before it. "
            "Higher is better: 40 dB is a hundredth, 20 dB a tenth. Dots mark the largest falls.</p>"
            + line_chart(facts.gathered, [fall["tensor"] for fall in facts.falls])
            + _falls(facts.falls),
        ),
        _section("Worst activations", _shapes(facts.shapes)),
        _section("Every quantized tensor", _tensors(facts.tensors)),
        _section("What stayed float", _declined(facts.declined)),
        _section("Notes", _list(facts.notes)) if facts.notes else "",
        _section("What ran", _table(("stage", "outcome", "seconds"), facts.trace)),
        _section(
            "Recipe", f"<p>Save it and run it again with <code>--recipe</code>.</p><pre>{escape(facts.recipe)}</pre>"
        ),
    )
    style = resources.files("quantry.report").joinpath("page.css").read_text(encoding="utf-8")
    script = resources.files("quantry.report").joinpath("page.js").read_text(encoding="utf-8")
    title = escape(f"{facts.title}, {facts.recipe_name}")
    return (
        f'<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">'
        f"<title>quantry: {title}</title><style>{style}</style>"
        f"<header><h1>{escape(facts.title)}</h1>"
        f"<p>quantized with <strong>{escape(facts.recipe_name)}</strong></p></header>"
        f"<main>{''.join(sections)}</main><script>{script}</script></html>\n"
    )


def _cards(facts: ReportFacts) -> str:
    before, after = facts.sizes
    cards = [(f"{before / after:.1f}x smaller", f"{_bytes(before)} to {_bytes(after)}")]
    for score in facts.scores:
        low, high = score["interval"]
        better = "higher is better" if score["higher_is_better"] else "lower is better"
        cards.append((f"{score['name']} {score['value']:.4g}", f"95 % within {low:.4g} to {high:.4g}; {better}"))
    nodes, quantized = facts.nodes
    cards.append((f"{quantized} of {nodes} nodes", "compute on quantized tensors"))
    if facts.latency is not None:
        cards.append(
            (
                f"{facts.latency['ratio']:.2f}x the float time",
                f"{facts.latency['quantized_ms']:.2f} ms after {facts.latency['float_ms']:.2f} ms on this machine",
            )
        )
    return "<div class=cards>" + "".join(f"<div><b>{escape(a)}</b>{escape(b)}</div>" for a, b in cards) + "</div>"


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
    return _table(("node", "dB before", "dB after", "lost"), rows, safe=True)


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
    return hint + _table(headings, rows, safe=True, identity="tensors") + rest


def _span(low: float, high: float) -> str:
    return f"{low:.4g}" if low == high else f"{low:.3g} .. {high:.3g}"


def _declined(declined: Sequence[tuple[str, tuple[str, ...]]]) -> str:
    if not declined:
        return "<p>Nothing: every node computes on quantized tensors.</p>"
    return "".join(
        f"<details><summary>{len(nodes)}: {escape(reason)}</summary>{_list(nodes)}</details>"
        for reason, nodes in declined
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, safe: bool = False, identity: str = "") -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{cell if safe else escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    name = f" id={identity}" if identity else ""
    return f"<div class=wide><table{name}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
