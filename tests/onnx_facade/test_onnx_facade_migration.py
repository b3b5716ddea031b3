"""The import lines of docs/migration.md work."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"
LINES = re.findall(r"\| `((?:from|import) quantry[^`]*)` \|", PAGE.read_text())


@pytest.mark.parametrize("line", LINES)
def test_import_line_works(line: str) -> None:
    exec(line, {})


def test_page_has_import_lines() -> None:
    assert len(LINES) == 6
