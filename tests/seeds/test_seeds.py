"""Every code block of the five documents runs."""

import importlib
import os
from pathlib import Path
from types import ModuleType

import pytest
from seed_blocks import DOCUMENTS, Block, documents, extracted, stored_blocks
from seed_case import repaired

BLOCKS = stored_blocks()
ORIGINALS = Path(os.environ.get("QUANTRY_SEEDS", Path(__file__).parents[3] / "shared" / "seeds"))


def cases(document: str) -> ModuleType:
    return importlib.import_module(f"cases_{document}")


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_block_runs_and_gives_what_the_document_says(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = cases(block.document)
    monkeypatch.chdir(tmp_path)
    module.CASES[block.number](repaired(module.REPAIRS, block, tmp_path))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_has_a_case(document: str) -> None:
    module = cases(document)
    numbers = {block.number for block in BLOCKS if block.document == document}
    assert set(module.CASES) == numbers
    assert not module.PENDING
    assert {repair.block for repair in module.REPAIRS} <= numbers


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_repair_has_something_to_repair(document: str, tmp_path: Path) -> None:
    module = cases(document)
    for block in BLOCKS:
        if block.document == document:
            source = repaired(module.REPAIRS, block, tmp_path).source
            assert block.language != "python" or compile(source, block.name, "exec")


@pytest.mark.skipif(not ORIGINALS.is_dir(), reason="the documents are not beside this checkout")
def test_stored_blocks_are_those_of_the_documents() -> None:
    found = tuple(block for number, text in documents(ORIGINALS) for block in extracted(number, text))
    assert found == BLOCKS


def test_blocks_are_cut_out_of_both_markups() -> None:
    text = "Say::\n\n.. code-block:: python\n\n    a = 1\n\n    b = 2\n\n"
    text += "more\n\n  ```bash\n  $ run\n  ```\n::\n\n   plain\n"
    assert [(block.language, block.text) for block in extracted("000", text)] == [
        ("python", "a = 1\n\nb = 2\n"),
        ("bash", "$ run\n"),
        ("text", "plain\n"),
    ]
