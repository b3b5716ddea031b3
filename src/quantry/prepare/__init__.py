"""Stage 1: read a float model, check it, and clean its graph up without changing what it computes."""

from quantry.prepare.npu import convert
from quantry.prepare.stage import prepare

__all__ = [
    "convert",
    "prepare",
]
