"""Limits of integer NPUs on the positions (fraction bits) of tensors, and the adjustment that satisfies them."""

from quantry.scale.npu.limits import LIMITS, Limit, ShiftViolation
from quantry.scale.npu.refine import refine_for_npu
from quantry.scale.npu.unit import Tensors, Unit, find_units, is_correction

__all__ = [
    "LIMITS",
    "Limit",
    "ShiftViolation",
    "Tensors",
    "Unit",
    "find_units",
    "is_correction",
    "refine_for_npu",
]
