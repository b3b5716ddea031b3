"""Check an existing quantized model against the constraints of a target."""

from quantry.check.npu import check_npu
from quantry.check.rules import Violation

__all__ = ["Violation", "check_npu"]
