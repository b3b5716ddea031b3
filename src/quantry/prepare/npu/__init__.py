"""Conversions to what an integer NPU computes, one file each; they change the float model as the hardware would."""

from quantry.prepare.npu.convert import convert_for_npu
from quantry.prepare.npu.pool_factor import pool_factor
from quantry.prepare.npu.stage import convert

__all__ = ["convert", "convert_for_npu", "pool_factor"]
