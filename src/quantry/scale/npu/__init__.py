"""Limits of integer NPUs on power-of-two positions, and the refinement that makes them hold."""

from quantry.scale.npu.limits import LIMITS, Finding, Limit
from quantry.scale.npu.position import at_position, position_of
from quantry.scale.npu.refine import refine_for_npu
from quantry.scale.npu.unit import Tensors, Unit, find_units, is_correction

__all__ = [
    "LIMITS",
    "Finding",
    "Limit",
    "Tensors",
    "Unit",
    "at_position",
    "find_units",
    "is_correction",
    "position_of",
    "refine_for_npu",
]
