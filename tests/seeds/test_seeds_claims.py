"""The tests that docs/seeds.md names exist."""

import re
from pathlib import Path

import pytest
from seed_blocks import DOCUMENTS, stored_blocks

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "seeds.md").read_text()
NAMED = sorted(set(re.findall(r"`((?:tests|benchmarks)/[\w/]+\.py(?:::\w+)?)`", PAGE)))
BLOCKS = {block.name for block in stored_blocks()}


@pytest.mark.parametrize("reference", NAMED)
def test_named_test_exists(reference: str) -> None:
    path, _, name = reference.partition("::")
    text = (ROOT / path).read_text()
    assert not name or f"def {name}(" in text


def test_every_block_is_named() -> None:
    assert set(re.findall(r"seeds (\d{3}_\d{2})", PAGE)) <= BLOCKS
    for document in DOCUMENTS[2:]:
        assert {block for block in BLOCKS if block.startswith(document)} <= set(
            re.findall(r"seeds (\d{3}_\d{2})", PAGE)
        )


def test_every_document_has_its_table() -> None:
    assert [f"## {document}:" in PAGE for document in DOCUMENTS] == [True] * len(DOCUMENTS)
