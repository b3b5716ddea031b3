"""The shifter that brings a bias to the accumulator."""

from dataclasses import dataclass

from quantry.scale.npu.limits.limit import Finding, Positions
from quantry.scale.npu.unit import Unit

_HIGH = 15
_ACCUMULATOR_BITS, _BIAS_BITS = 24, 8


@dataclass(frozen=True)
class ShiftBias:
    """``min(0, -(24 - (8 + cut))) <= wpos + ipos - bpos <= 15`` for Conv and Gemm, with cut = wpos + ipos - opos.

    The lower end is 0 where a LeakyRelu follows. Below, the bias has bits that the accumulator has not and is made
    coarser. Above, the weight is made coarser: beside a bias that large its last bits count for nothing, while a finer
    bias would saturate.
    """

    name: str = "shift_bias"

    def find(self, unit: Unit, positions: Positions) -> Finding | None:
        """Compare the accumulator's position with that of the bias."""
        needed = (unit.weight, unit.bias, unit.output)
        if unit.operator not in ("Conv", "Gemm") or None in needed or not unit.inputs:
            return None
        assert unit.weight is not None
        assert unit.bias is not None
        assert unit.output is not None
        weight, data, bias = positions[unit.weight], positions[unit.inputs[0]], positions[unit.bias]
        cut = weight + data - positions[unit.output]
        low = 0 if unit.leaky else min(0, cut + _BIAS_BITS - _ACCUMULATOR_BITS)
        shift = weight + data - bias
        if low <= shift <= _HIGH:
            return None
        values = f"wpos {weight} + ipos {data} - bpos {bias} = {shift}, allowed {low} to {_HIGH}"
        moves = {unit.bias: weight + data - low} if shift < low else {unit.weight: weight - (shift - _HIGH)}
        return Finding(values, moves)
