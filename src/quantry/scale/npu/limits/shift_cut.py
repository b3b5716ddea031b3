"""The shifter that cuts the accumulator of a convolution down to the result."""

from dataclasses import dataclass

from quantry.scale.npu.limits.limit import Finding, Positions
from quantry.scale.npu.unit import Unit

LOW, HIGH = 0, 16


@dataclass(frozen=True)
class ShiftCut:
    """``0 <= wpos + ipos - opos <= 16`` for Conv and Gemm.

    Above, the weight is made coarser. Below, the result has fraction bits that no product reaches, so it is made
    coarser; a finer weight would hold the limit as well and would saturate.
    """

    name: str = "shift_cut"

    def find(self, unit: Unit, positions: Positions) -> Finding | None:
        """Compare the accumulator's position with that of the result."""
        if unit.operator not in ("Conv", "Gemm") or unit.weight is None or unit.output is None or not unit.inputs:
            return None
        weight, data, result = positions[unit.weight], positions[unit.inputs[0]], positions[unit.output]
        cut = weight + data - result
        if LOW <= cut <= HIGH:
            return None
        values = f"wpos {weight} + ipos {data} - opos {result} = {cut}, allowed {LOW} to {HIGH}"
        moves = {unit.output: weight + data} if cut < LOW else {unit.weight: result - data + HIGH}
        return Finding(values, moves)
