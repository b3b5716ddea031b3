"""The page of docs/reference/options.md, written from the table.

``python -m quantry.onnx.options.page > docs/reference/options.md`` writes it anew.
"""

import sys
from collections.abc import Iterable

from quantry.onnx.options import FIELDS, NESTED, SECTIONS, OptionRow

_HEAD = """# Options of AMD Quark and vai_q_onnx

What each field of `QuantizationConfig` and each key of `extra_options` becomes in quantry. This page is written from
the table that translates them (`src/quantry/onnx/options/`); a test holds the two together.

The last column says one of these:

- a field of a [recipe](../../README.md#recipes): the option sets it;
- *spelling of*: another name of a field of `QuantizationConfig`;
- *always so*: every value gives the same result here, for the reason given;
- *refused*: an error with this text, unless the value is the harmless one named.

An unknown key is an error with the nearest spelling. An option of a feature that is off (`Percentile` beside MinMax)
has no effect, as in AMD Quark, and is logged.
"""
_COLUMNS = "| name | type | default | asks for | becomes |\n|---|---|---|---|---|\n"


def options_page() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD, "\n## Fields of QuantizationConfig\n\n", _table(FIELDS.values())]
    for title, rows in SECTIONS:
        parts += [f"\n## extra_options: {title}\n\n", _table(rows)]
    for key, rows in NESTED.items():
        parts += [f"\n## extra_options: keys of {key}\n\n", _table(rows)]
    return "".join(parts)


def _table(rows: Iterable[OptionRow]) -> str:
    return _COLUMNS + "".join(
        f"| `{row.key}` | {row.kind.value} | {_cell(row.default)} | {_cell(row.meaning)} | {_cell(_outcome(row))} |\n"
        for row in rows
    )


def _outcome(row: OptionRow) -> str:
    if row.spelling_of:
        return f"*spelling of* `{row.spelling_of}`"
    if row.satisfied:
        return f"*always so*: {row.satisfied}"
    if row.refused:
        harmless = " or ".join(f"`{value!r}`" for value in row.harmless)
        return f"*refused* unless {harmless}: {row.refused}"
    return row.becomes


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(options_page())
