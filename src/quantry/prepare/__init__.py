"""Stage 1: read a float model, check it, and clean its graph up without changing what it computes."""

from quantry.prepare.npu import convert
from quantry.prepare.stage import named_model, prepare

__all__ = [
    "convert",
    "named_model",
    "prepare",
]
