"""The shifter that brings operands of a sum to one position."""

from dataclasses import dataclass

from quantry.scale.npu.limits.limit import Finding, Positions
from quantry.scale.npu.unit import Unit

_WIDEST = 7


@dataclass(frozen=True)
class ShiftRead:
    """``max(ipos) - min(ipos) <= 7`` for Add and Sub; larger positions are lowered."""

    name: str = "shift_read"

    def find(self, unit: Unit, positions: Positions) -> Finding | None:
        """Compare the operands."""
        if unit.operator not in ("Add", "Sub") or len(unit.inputs) < 2:
            return None
        found = {tensor: positions[tensor] for tensor in unit.inputs}
        low, high = min(found.values()), max(found.values())
        if high - low <= _WIDEST:
            return None
        moves = {tensor: low + _WIDEST for tensor, position in found.items() if position > low + _WIDEST}
        return Finding(f"ipos {high} - ipos {low} = {high - low}, allowed 0 to {_WIDEST}", moves)
