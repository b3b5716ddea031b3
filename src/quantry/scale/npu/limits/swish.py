"""The shifter that writes the product of a gate."""

from dataclasses import dataclass

from quantry.scale.npu.limits.limit import Finding, Positions
from quantry.scale.npu.unit import Unit

_LOW, _HIGH = 0, 15


@dataclass(frozen=True)
class Swish:
    """``0 <= ipos + ipos - opos <= 15`` for ``x * HardSigmoid(x)``.

    Below, the result is made coarser; above, x is, because the gate's position has a lowest value.
    """

    name: str = "swish"

    def find(self, unit: Unit, positions: Positions) -> Finding | None:
        """Compare the product's position with that of the result."""
        if not unit.swish or unit.output is None or len(unit.inputs) != 2:
            return None
        data, gate = unit.inputs
        total, result = positions[data] + positions[gate], positions[unit.output]
        shift = total - result
        if _LOW <= shift <= _HIGH:
            return None
        values = f"ipos {positions[data]} + ipos {positions[gate]} - opos {result} = {shift}, allowed {_LOW} to {_HIGH}"
        moves = {unit.output: total} if shift < _LOW else {data: positions[data] - (shift - _HIGH)}
        return Finding(values, moves)
