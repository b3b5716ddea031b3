"""Writes docs/reference/options.md from the option table.

``python -m quantry.onnx.options.page > docs/reference/options.md`` updates the page.
"""

import sys
from collections.abc import Iterable

from quantry.onnx.options import FIELDS, NESTED, SECTIONS, OptionRow

_HEAD = """# Options of AMD Quark and vai_q_onnx

How quantry treats each field of `QuantizationConfig` and each key of `extra_options`. This page is generated from the
table that translates the options (`src/quantry/onnx/options/`); a test compares the two.

The last column has one of these:

- the fields of a [recipe](../../README.md#recipes) that the option sets;
- *same as*: another name for a field of `QuantizationConfig`;
- *no effect*: every value has the same result, for the reason given;
- *not supported*: an error with this text, except for the value named.

An unknown key is an error that suggests the nearest spelling. An option of a feature that is off (`Percentile` with
MinMax) has no effect, as in AMD Quark, and is logged.
"""
_COLUMNS = "| name | type | default | meaning | in quantry |\n|---|---|---|---|---|\n"


def options_page() -> str:
    """Return the page as Markdown."""
    sections = [_HEAD, "\n## Fields of QuantizationConfig\n\n", _table(FIELDS.values())]
    for title, rows in SECTIONS:
        sections += [f"\n## extra_options: {title}\n\n", _table(rows)]
    for key, rows in NESTED.items():
        sections += [f"\n## extra_options: keys of {key}\n\n", _table(rows)]
    return "".join(sections)


def _table(rows: Iterable[OptionRow]) -> str:
    return _COLUMNS + "".join(
        f"| `{row.key}` | {row.kind.value} | {_cell(row.default)} | {_cell(row.meaning)} | {_cell(_outcome(row))} |\n"
        for row in rows
    )


def _outcome(row: OptionRow) -> str:
    if row.spelling_of:
        return f"*same as* `{row.spelling_of}`"
    if row.satisfied:
        return f"*no effect*: {row.satisfied}"
    if row.refused:
        harmless = " or ".join(f"`{value!r}`" for value in row.harmless)
        return f"*not supported* except {harmless}: {row.refused}"
    return row.becomes


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(options_page())
