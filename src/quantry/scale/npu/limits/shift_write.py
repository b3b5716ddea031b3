"""The shifter that writes the result of a sum or a product."""

from dataclasses import dataclass

from quantry.scale.npu.limits.limit import Finding, Positions
from quantry.scale.npu.unit import Unit

_ADD = (-7, 25)
_MUL = (0, 32)


@dataclass(frozen=True)
class ShiftWrite:
    """``-7 <= min(ipos) - opos <= 25`` for Add, ``0 <= ipos + ipos - opos <= 32`` for Mul.

    A result with more fraction bits than the arithmetic gives is made coarser; so is an operand whose fraction bits
    the shifter cannot cut off.
    """

    name: str = "shift_write"

    def find(self, unit: Unit, positions: Positions) -> Finding | None:
        """Compare the accumulator's position with that of the result."""
        if unit.operator not in ("Add", "Mul") or unit.output is None or len(unit.inputs) != 2:
            return None
        operands = [positions[tensor] for tensor in unit.inputs]
        accumulator = min(operands) if unit.operator == "Add" else sum(operands)
        low, high = _ADD if unit.operator == "Add" else _MUL
        result = positions[unit.output]
        shift = accumulator - result
        if low <= shift <= high:
            return None
        label = "min(ipos)" if unit.operator == "Add" else "sum(ipos)"
        values = f"{label} {accumulator} - opos {result} = {shift}, allowed {low} to {high}"
        if shift < low:
            return Finding(values, {unit.output: accumulator - low})
        pick = min if unit.operator == "Add" else max
        operand = pick(unit.inputs, key=positions.__getitem__)
        # A square has one operand twice, so each step counts double.
        excess = (shift - high + 1) // 2 if unit.operator == "Mul" and len(set(unit.inputs)) == 1 else shift - high
        return Finding(values, {operand: positions[operand] - excess})
