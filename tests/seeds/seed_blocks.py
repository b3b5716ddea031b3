"""The code blocks of the five documents: how they are extracted, and the copies that the tests run.

The copies are ``blocks/DOCUMENT_NUMBER.LANGUAGE``; the blocks of a document are numbered from 1 in order.
``python tests/seeds/seed_blocks.py DIRECTORY`` writes them from a directory of the documents.
"""

import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCKS = Path(__file__).with_name("blocks")
DOCUMENTS = ("000", "001", "002", "003", "004")

_DIRECTIVE = re.compile(r"^(\s*)(?:\.\. code(?:-block)?::\s*(\w+)|::)\s*$")
_FENCE = re.compile(r"^(\s*)```\s*(\w+)\s*$")


@dataclass(frozen=True)
class Block:
    """One code block as printed, without its indentation."""

    document: str
    number: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.document}_{self.number:02d}"


def extracted(document: str, text: str) -> tuple[Block, ...]:
    """The code blocks of a document in reStructuredText or Markdown."""
    found = enumerate(_cut(text.splitlines()), start=1)
    return tuple(Block(document, number, language, code) for number, (language, code) in found)


def stored_blocks() -> tuple[Block, ...]:
    """The copies, in order."""
    paths = sorted(path for path in BLOCKS.iterdir() if re.fullmatch(r"\d{3}_\d{2}", path.stem))
    return tuple(Block(path.stem[:3], int(path.stem[4:]), path.suffix[1:], path.read_text()) for path in paths)


def documents(folder: Path) -> Iterator[tuple[str, str]]:
    """Number and text of each document in a folder."""
    for number in DOCUMENTS:
        for path in folder.glob(f"{number}_*.txt"):
            yield number, path.read_text(encoding="utf-8")


def _cut(lines: list[str]) -> Iterator[tuple[str, str]]:
    index = 0
    while index < len(lines):
        directive, fence = _DIRECTIVE.match(lines[index]), _FENCE.match(lines[index])
        index += 1
        if directive:
            body = _indented(lines[index:], len(directive[1]))
            yield directive[2] or "text", _dedented(body)
            index += len(body)
        elif fence:
            end = next(i for i in range(index, len(lines)) if lines[i].strip() == "```")
            yield fence[2], _dedented(lines[index:end])
            index = end + 1


def _indented(lines: list[str], depth: int) -> list[str]:
    for count, line in enumerate(lines):
        if line.strip() and len(line) - len(line.lstrip()) <= depth:
            return lines[:count]
    return lines


def _dedented(lines: list[str]) -> str:
    return textwrap.dedent("\n".join(line.rstrip() for line in lines)).strip("\n") + "\n"


def _write(folder: Path) -> None:
    for number, text in documents(folder):
        for block in extracted(number, text):
            (BLOCKS / f"{block.name}.{block.language}").write_text(block.text)


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
