"""HTML shared by all report pages: the document, tables and cards. Pages load nothing from the network."""

import json
import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from quantry.report.facts import Plain

_TOP_DECIBEL = 60.0

# Cells of a column of numbers, with their units and words for special values.
_NUMBER = re.compile(r"[~±+-]?[\d.,]+(e[+-]?\d+)?( ?%| s| min| ms| kB| MB| dB)?|exact|failed|inf|-inf|nan")
_LONG = 60

# A table with more rows gets a scroll bar of its own, so that what comes after it stays in reach.
_MOST_ROWS = 16

# Nothing may be loaded; a page that `quantry serve` sends may talk to its own server.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'"
)


def document(kind: str, heading: str, below: str, sections: Iterable[tuple[str, str]], facts: Plain) -> str:
    """Return a whole page.

    Args:
        kind: Name of the page's script: ``search`` or ``model``.
        heading: Plain text.
        below: HTML of the line below the heading.
        sections: Titles with their HTML; a section with an empty title has no heading.
        facts: What the script reads.
    """
    filled = [(title, body) for title, body in sections if body]
    links = "".join(f"<a href=#{anchor(title)}>{escape(title)}</a>" for title, _ in filled if title)
    scripts = "".join(f"<script>{asset(name)}</script>" for name in ("charts.min.js", "page.js", f"{kind}.js"))
    # A script element ends at its end tag, wherever that is.
    data = json.dumps(facts, separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width, '
        f'initial-scale=1"><meta http-equiv=Content-Security-Policy content="{_POLICY}">'
        f"<title>quantry: {escape(heading)}</title><style>{asset('page.css')}</style><body data-page={kind}>"
        f'<a class=skip href="#content">To the content</a><header><h1>{escape(heading)}</h1><p id=below>{below}</p>'
        f'</header><nav class=parts aria-label="Sections">{links}</nav><main id=content>'
        f"{''.join(section(*section_parts) for section_parts in filled)}</main>"
        f"<script type=application/json id=facts>{data}</script>{scripts}</body></html>\n"
    )


def asset(name: str) -> str:
    """Return a file of the page: CSS or a script."""
    return resources.files("quantry.report").joinpath("assets", name).read_text(encoding="utf-8")


def anchor(heading: str) -> str:
    """Return the id of a section."""
    return heading.lower().replace(" ", "-")


def cards(entries: Iterable[tuple[str, str]]) -> str:
    """Return boxes with a large line and a small one each, both plain text."""
    boxes = "".join(f"<div><b>{escape(large)}</b>{escape(small)}</div>" for large, small in entries)
    return f"<div class=cards>{boxes}</div>"


def summary(level: str, words: str, evidence: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return the first thing to read: whether the result is good, where it is, and what to do next.

    Args:
        level: ``good``, ``fair``, ``bad``, or empty while it is not known.
        words: The answer in a few words; plain text.
        evidence: The numbers that show it; plain text.
        rows: Labels with HTML.
    """
    listed = "".join(f"<dt>{escape(label)}</dt><dd>{text}</dd>" for label, text in rows if text)
    return (
        f'<div class="summary {level}"><p><strong>{escape(_sentence(words))}.</strong> '
        f"{escape(_sentence(evidence))}.</p><dl>{listed}</dl></div>"
    )


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def section(title: str, body: str) -> str:
    """Return HTML under a heading."""
    return f"<section id={anchor(title)}><h2>{escape(title)}</h2>{body}</section>" if title else body


def bullets(items: Iterable[str]) -> str:
    """Return plain texts as a list."""
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def hint(text: str) -> str:
    """Return a paragraph that explains a chart or a table; HTML."""
    return f"<p class=hint>{text}</p>"


def chart(identity: str, description: str, size: str = "") -> str:
    """Return the place of a chart.

    Args:
        identity: The id that the script draws into.
        description: What the chart shows, for readers who cannot see it.
        size: ``low`` or ``tall``; empty is the usual height.
    """
    return f'<div class="chart {size}" id={identity} role=img aria-label="{escape(description)}"></div>'


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, identity: str = "", ids: Sequence[str] = ()
) -> str:
    """Return a table.

    Args:
        headings: Plain texts.
        rows: Cells as HTML.
        identity: An id makes the table sortable by its headings.
        ids: An id for each row, or none.
    """
    button = "<button type=button>{}</button>" if identity else "{}"
    lines = [tuple(row) for row in rows]
    kinds = [_kind(column) for column in zip(*lines, strict=True)] or [""] * len(headings)
    head = "".join(
        f"<th scope=col{' class=number' if kind == 'number' else ''}>{button.format(escape(heading))}</th>"
        for heading, kind in zip(headings, kinds, strict=True)
    )
    body = "".join(
        f"<tr{f' id={ids[index]}' if ids else ''}>{''.join(map(_cell, row, kinds))}</tr>"
        for index, row in enumerate(lines)
    )
    name = f" id={identity} class=sortable" if identity else ""
    is_long = len(lines) > _MOST_ROWS
    size = '"wide long"' if is_long else "wide"
    below = f"<p class=rows>{len(lines)} rows; scroll to see all</p>" if is_long else ""
    return (
        f'<div class={size} tabindex=0 role=group aria-label="{escape(headings[0])} table"><table{name}>'
        f"<thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>{below}"
    )


def _cell(cell: str, kind: str) -> str:
    return f"<td class={kind}>{cell}</td>" if kind else f"<td>{cell}</td>"


def _kind(cells: Sequence[str]) -> str:
    """Return the class of a column: numbers stand under each other, long texts get room."""
    texts = [cell for cell in cells if cell]
    if texts and all(_NUMBER.fullmatch(cell) for cell in texts):
        return "number"
    return "text" if any(len(cell) > _LONG for cell in texts) else ""


def filter_box(identity: str, label: str) -> str:
    """Return the input that filters a table, with the number of rows that are shown."""
    return (
        f"<div class=controls><label>{escape(label)} <input type=search data-table={identity} "
        f"id={'filter' if identity == 'main' else identity + '-filter'} placeholder='words'></label>"
        f"<span id={identity}-count role=status></span></div>"
    )


def quality_bar(decibel: float) -> str:
    """Return a bar from 0 to 60 dB, with the number next to it."""
    share = 1.0 if decibel == math.inf else min(max(decibel / _TOP_DECIBEL, 0.0), 1.0)
    hue = round(120 * share)
    text = "exact" if decibel == math.inf else f"{decibel:.1f}"
    return (
        f'<span class=meter><i style="width:{100 * share:.0f}%;background:hsl({hue} 60% 45%)"></i></span><b>{text}</b>'
    )
