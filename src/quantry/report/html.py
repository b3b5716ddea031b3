"""HTML shared by all report pages: the document, tables, cards and SVG charts. Pages load nothing from the network."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from quantry.report.facts import Plain


def document(title: str, heading: str, below: str, body: str) -> str:
    """Return a whole page.

    Args:
        title: For the browser's tab, plain text.
        heading: Plain text.
        below: HTML of the line below the heading.
        body: HTML.
    """
    room = resources.files("quantry.report")
    style = room.joinpath("page.css").read_text(encoding="utf-8")
    script = room.joinpath("page.js").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">'
        f"<title>quantry: {escape(title)}</title><style>{style}</style>"
        f"<header><h1>{escape(heading)}</h1><p>{below}</p></header>"
        f"<main>{body}</main><script>{script}</script></html>\n"
    )


def cards(entries: Iterable[tuple[str, str]]) -> str:
    """Return boxes with a large line and a small one each, both plain text."""
    boxes = "".join(f"<div><b>{escape(large)}</b>{escape(small)}</div>" for large, small in entries)
    return f"<div class=cards>{boxes}</div>"


def section(title: str, body: str) -> str:
    """Return HTML under a heading."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def bullets(items: Iterable[str]) -> str:
    """Return plain texts as a list."""
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def table(headings: Sequence[str], rows: Iterable[Iterable[str]], *, identity: str = "") -> str:
    """Return a table.

    Args:
        headings: Plain texts.
        rows: Cells as HTML.
        identity: ``main`` for the table of the page that can be sorted and filtered.
    """
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    name = f" id={identity}" if identity else ""
    return f"<div class=wide><table{name}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 960, 260, 46, 22
_TOP_DECIBEL, _STEP = 60.0, 10


def line_chart(points: Sequence[tuple[str, float]], marked: Sequence[str]) -> str:
    """Return the signal-to-noise ratio along the graph, in dB.

    Args:
        points: Tensor names and values, in the order of the graph.
        marked: Tensors to mark: those that lose the most.
    """
    if not points:
        return ""
    lowest = min(0.0, *(value for _, value in points if math.isfinite(value)), 0.0)
    lowest = _STEP * math.floor(lowest / _STEP)
    place = {name: index for index, (name, _) in enumerate(points)}

    def across(index: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - 6) * index / max(len(points) - 1, 1)

    def down(value: float) -> float:
        share = (min(max(value, lowest), _TOP_DECIBEL) - lowest) / (_TOP_DECIBEL - lowest)
        return 6 + (_HEIGHT - _BOTTOM - 6) * (1 - share)

    grid = "".join(
        f"<line class=grid x1={_LEFT} x2={_WIDTH} y1={down(level):.1f} y2={down(level):.1f} />"
        f"<text class=axis x={_LEFT - 6} y={down(level) + 4:.1f} text-anchor=end>{level:.0f}</text>"
        for level in range(int(lowest), int(_TOP_DECIBEL) + 1, 2 * _STEP)
    )
    path = " ".join(f"{across(index):.1f},{down(value):.1f}" for index, (_, value) in enumerate(points))
    dots = "".join(
        f"<circle class=mark cx={across(place[name]):.1f} cy={down(points[place[name]][1]):.1f} r=4>"
        f"<title>{escape(name)}: {points[place[name]][1]:.1f} dB</title></circle>"
        for name in marked
        if name in place
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role=img aria-label="signal to noise along the graph">{grid}'
        f'<polyline class=line points="{path}" />{dots}'
        f"<text class=axis x={_LEFT} y={_HEIGHT - 4}>input</text>"
        f"<text class=axis x={_WIDTH} y={_HEIGHT - 4} text-anchor=end>output</text></svg>"
    )


def shape_chart(shape: Plain) -> str:
    """Return the distribution of one tensor, with the ends of the representable range."""
    width, height = 300, 110
    heights = shape["heights"]
    top = max(heights) or 1.0
    step = width / len(heights)
    bars = "".join(
        f"<rect class=bar x={index * step:.1f} y={height - value / top * (height - 18):.1f} width={step:.2f} "
        f"height={value / top * (height - 18):.1f} />"
        for index, value in enumerate(heights)
        if value > 0
    )
    span = shape["high"] - shape["low"]
    ends = "".join(
        f"<line class=end x1={(end - shape['low']) / span * width:.1f} x2={(end - shape['low']) / span * width:.1f} "
        f"y1=0 y2={height} />"
        for end in shape["range"]
    )
    return (
        f'<svg viewBox="0 0 {width} {height + 14}" role=img aria-label="distribution">{bars}{ends}'
        f"<text class=axis x=0 y={height + 12}>{shape['low']:.3g}</text>"
        f"<text class=axis x={width} y={height + 12} text-anchor=end>{shape['high']:.3g}</text></svg>"
    )


def quality_bar(decibel: float) -> str:
    """Return a bar from 0 to 60 dB, with the number next to it."""
    share = 1.0 if decibel == math.inf else min(max(decibel / _TOP_DECIBEL, 0.0), 1.0)
    hue = round(120 * share)
    text = "exact" if decibel == math.inf else f"{decibel:.1f}"
    return (
        f'<span class=meter><i style="width:{100 * share:.0f}%;background:hsl({hue} 60% 45%)"></i></span><b>{text}</b>'
    )
