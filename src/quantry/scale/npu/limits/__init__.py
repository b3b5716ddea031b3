"""The limits, one file each, in the order in which they are made to hold.

To add a limit: write it in a file here, name it in `LIMITS` and give it a switch in `quantry.recipe.NpuLimits`.
"""

from quantry.scale.npu.limits.align import Align
from quantry.scale.npu.limits.hard_sigmoid import HardSigmoid
from quantry.scale.npu.limits.limit import Finding, Limit
from quantry.scale.npu.limits.shift_bias import ShiftBias
from quantry.scale.npu.limits.shift_cut import ShiftCut
from quantry.scale.npu.limits.shift_read import ShiftRead
from quantry.scale.npu.limits.shift_write import ShiftWrite
from quantry.scale.npu.limits.swish import Swish

LIMITS: tuple[Limit, ...] = (
    Align("align_concat", ("Concat",)),
    Align("align_pool", ("MaxPool", "AveragePool", "GlobalAveragePool")),
    Align("align_pad", ("Pad",)),
    Align("align_slice", ("Slice",)),
    ShiftRead(),
    ShiftWrite(),
    ShiftCut(),
    ShiftBias(),
    HardSigmoid(),
    Swish(),
)

__all__ = ["LIMITS", "Finding", "Limit"]
