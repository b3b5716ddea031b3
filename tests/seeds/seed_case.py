"""Building blocks of the cases of a document.

``cases_DOCUMENT.py`` holds:

- ``CASES``: block number -> function of a `Seed` that runs the block and checks the result;
- ``REPAIRS``: changes to a block before it runs, besides the import root, and why;
- ``PENDING``: block number -> the missing feature that a block needs; empty in a release.
"""

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seed_blocks import Block

_ROOTS = (
    (re.compile(r"^import vai_q_onnx$", re.MULTILINE), "from quantry import vai_q_onnx"),
    (re.compile(r"\bquark\.(onnx|torch)\b"), r"quantry.\1"),
    (re.compile(r"\bonnxruntime\.quantization import shape_inference\b"), "quantry.vai_q_onnx import shape_inference"),
)


@dataclass(frozen=True)
class Repair:
    """One change to a block.

    Attributes:
        block: The block's number in its document.
        before: The text to replace; empty inserts ``after`` before the block.
        after: The new text.
        why: The mistake or the placeholder, in a few words.
    """

    block: int
    before: str
    after: str
    why: str


@dataclass(frozen=True)
class Seed:
    """A block that is ready to run.

    Attributes:
        block: The block as printed.
        repairs: Changes to it.
        folder: An empty directory for the files that the block writes.
    """

    block: Block
    repairs: tuple[Repair, ...]
    folder: Path

    @property
    def source(self) -> str:
        """The code after renaming the import root and applying the repairs."""
        text = self.block.text
        for pattern, ours in _ROOTS:
            text = pattern.sub(ours, text)
        for repair in self.repairs:
            if repair.block != self.block.number:
                continue
            if not repair.before:
                text = f"{repair.after}\n{text}"
                continue
            assert repair.before in text, f"{self.block.name}: nothing to repair at {repair.before!r}"
            text = text.replace(repair.before, repair.after)
        return text

    def run(self, **names: Any) -> dict[str, Any]:
        """Execute the code with these names defined and return all names afterwards."""
        space: dict[str, Any] = {"__name__": f"seed_{self.block.name}", **names}
        exec(compile(self.source, f"seed_{self.block.name}", "exec"), space)
        return space

    def commands(self) -> list[list[str]]:
        """The lines of a shell block as argument lists, this interpreter being ``python``."""
        lines = (line.strip().removeprefix("$ ") for line in self.source.splitlines())
        words = [shlex.split(line) for line in lines if line]
        return [[sys.executable if word == "python" else word for word in line] for line in words]


Case = Callable[[Seed], None]


def repaired(repairs: Sequence[Repair], block: Block, folder: Path) -> Seed:
    """The block with its repairs."""
    return Seed(block, tuple(repairs), folder)
