"""Verifies an existing quantized model against what a target can run."""

from quantry.check.npu import check_npu
from quantry.check.rules import Violation

__all__ = ["Violation", "check_npu"]
