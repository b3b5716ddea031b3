"""Pieces of HTML that every page has, and the page around them; nothing is fetched from elsewhere."""

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources


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
        identity: ``main`` for the one table of the page that can be sorted and filtered.
    """
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    name = f" id={identity}" if identity else ""
    return f"<div class=wide><table{name}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
