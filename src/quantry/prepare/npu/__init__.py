"""Conversions to what an integer NPU computes, one file each; they change the float model as the hardware would."""

from quantry.prepare.npu.convert import convert, convert_for_npu
from quantry.prepare.npu.pools import pool_factor

__all__ = ["convert", "convert_for_npu", "pool_factor"]
