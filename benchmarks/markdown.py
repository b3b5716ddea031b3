"""Tables that read well both as text and as Markdown."""

from collections.abc import Sequence


def table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns."""
    cells = [[cell.replace("|", "\\|") for cell in line] for line in (headings, *lines)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(headings))]
    text = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text)


def replace_section(text: str, name: str, content: str) -> str:
    """Return the text with what stands between the two marks of that name replaced.

    Raises:
        ValueError: The marks are not there.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if begin not in text or end not in text:
        raise ValueError(f"the marks {begin} and {end} must be in the text")
    before, rest = text.split(begin, 1)
    after = rest.split(end, 1)[1]
    return f"{before}{begin}\n{content.strip()}\n{end}{after}"
