"""The limits of an integer NPU on the positions of tensors, in the order in which they are enforced.

================  =====================================================================================================
Align             operators that copy or compare integers: all their tensors need one position
HardSigmoid       the positions that the NPU's HardSigmoid can read and write
ShiftBias         the shifter that aligns a bias with the accumulator
ShiftCut          the shifter that reduces the accumulator of a convolution to the result
ShiftRead         the shifter that aligns the operands of a sum
ShiftWrite        the shifter that writes the result of a sum or a product
Swish             the shifter that writes the product ``x * HardSigmoid(x)``
================  =====================================================================================================

To add a limit: write a class here, add it to `LIMITS`, and add a field to `quantry.recipe.NpuLimits`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from quantry.facts.operators import ALIGNED
from quantry.scale.npu.unit import WEIGHTED, Unit

Positions = Mapping[str, int]


@dataclass(frozen=True)
class ShiftViolation:
    """A violated limit.

    Attributes:
        values: The numbers, such as ``wpos 14 + ipos 6 - opos 0 = 20, allowed 0 to 16``.
        moves: Positions that satisfy the limit, by tensor.
    """

    values: str
    moves: Mapping[str, int]


class Limit(Protocol):
    """A relation between the positions of one unit that the NPU's shifters impose.

    Stateless. The moves of a violation satisfy its own limit; they may violate another one, so limits are applied in
    turn until all hold. If there is a choice, moves go to smaller positions: a coarser step loses bits that the
    arithmetic could not use, while a finer one would clip values.
    """

    @property
    def name(self) -> str:
        """Name of the field in `quantry.recipe.NpuLimits`."""
        ...

    def find(self, unit: Unit, positions: Positions) -> ShiftViolation | None:
        """Return how a unit violates the limit, or None if the limit holds or does not apply.

        Args:
            unit: The unit; it may be of any operator.
            positions: Positions of all quantized tensors by key.
        """
        ...


@dataclass(frozen=True)
class Align:
    """Inputs and output have the same position, the smallest of them.

    Attributes:
        name: Name of the field in `NpuLimits`.
        operators: Operator types that it applies to.
    """

    name: str
    operators: tuple[str, ...]

    def find(self, unit: Unit, positions: Positions) -> ShiftViolation | None:
        """Compare all tensors of the unit."""
        if unit.operator not in self.operators or unit.output is None:
            return None
        tied = dict.fromkeys((*unit.inputs, unit.output))
        positions_of = {tensor: positions[tensor] for tensor in tied}
        smallest = min(positions_of.values())
        if max(positions_of.values()) == smallest:
            return None
        inputs = ", ".join(str(positions[tensor]) for tensor in unit.inputs)
        return ShiftViolation(
            f"ipos {inputs} and opos {positions[unit.output]}, allowed one position",
            {tensor: smallest for tensor, position in positions_of.items() if position != smallest},
        )


_LOWEST_INPUT, _HIGHEST_INPUT = 0, 15
_LOWEST_OUTPUT = 7
_SLOPE_BITS = 14


@dataclass(frozen=True)
class HardSigmoid:
    """``0 <= ipos <= 15``, ``opos >= 7`` and ``14 + ipos - opos >= 0``: a slope of 14 bits and a result in [0, 1]."""

    name: str = "hard_sigmoid"

    def find(self, unit: Unit, positions: Positions) -> ShiftViolation | None:
        """Clamp input and output."""
        if unit.operator != "HardSigmoid" or unit.output is None or not unit.inputs:
            return None
        data, result = positions[unit.inputs[0]], positions[unit.output]
        wanted_data = min(max(data, _LOWEST_INPUT), _HIGHEST_INPUT)
        highest_output = _SLOPE_BITS + wanted_data
        wanted_result = min(max(result, _LOWEST_OUTPUT), highest_output)
        if (wanted_data, wanted_result) == (data, result):
            return None
        values = (
            f"ipos {data}, allowed {_LOWEST_INPUT} to {_HIGHEST_INPUT}; "
            f"opos {result}, allowed {_LOWEST_OUTPUT} to {highest_output}"
        )
        moves = {unit.inputs[0]: wanted_data, unit.output: wanted_result}
        return ShiftViolation(values, {tensor: move for tensor, move in moves.items() if positions[tensor] != move})


BIAS_SHIFT_HIGH = 15
_ACCUMULATOR_BITS, _BIAS_BITS = 24, 8


@dataclass(frozen=True)
class ShiftBias:
    """``min(0, -(24 - (8 + cut))) <= wpos + ipos - bpos <= 15`` for Conv and Gemm, with cut = wpos + ipos - opos.

    The lower end is 0 if a LeakyRelu follows. Below it, the bias has bits that the accumulator does not have, and is
    made coarser. Above the upper end, the weight is made coarser: its last bits are negligible compared with a bias
    that large, while a finer bias would be clipped.
    """

    name: str = "shift_bias"

    def find(self, unit: Unit, positions: Positions) -> ShiftViolation | None:
        """Compare the accumulator's position with that of the bias."""
        needed = (unit.weight, unit.bias, unit.output)
        if unit.operator not in WEIGHTED or None in needed or not unit.inputs:
            return None
        assert unit.weight is not None
        assert unit.bias is not None
        assert unit.output is not None
        weight, data, bias = positions[unit.weight], positions[unit.inputs[0]], positions[unit.bias]
        cut = weight + data - positions[unit.output]
        low = 0 if unit.leaky else min(0, cut + _BIAS_BITS - _ACCUMULATOR_BITS)
        shift = weight + data - bias
        if low <= shift <= BIAS_SHIFT_HIGH:
            return None
        values = f"wpos {weight} + ipos {data} - bpos {bias} = {shift}, allowed {low} to {BIAS_SHIFT_HIGH}"
        moves = {unit.bias: weight + data - low} if shift < low else {unit.weight: weight - (shift - BIAS_SHIFT_HIGH)}
        return ShiftViolation(values, moves)


_CUT_LOW, CUT_HIGH = 0, 16


@dataclass(frozen=True)
class ShiftCut:
    """``0 <= wpos + ipos - opos <= 16`` for Conv and Gemm.

    Above, the weight is made coarser. Below, the result has fraction bits that no product reaches, so it is made
    coarser; a finer weight would satisfy the limit as well but would be clipped.
    """

    name: str = "shift_cut"

    def find(self, unit: Unit, positions: Positions) -> ShiftViolation | None:
        """Compare the accumulator's position with that of the result."""
        if unit.operator not in WEIGHTED or unit.weight is None or unit.output is None or not unit.inputs:
            return None
        weight, data, result = positions[unit.weight], positions[unit.inputs[0]], positions[unit.output]
        cut = weight + data - result
        if _CUT_LOW <= cut <= CUT_HIGH:
            return None
        values = f"wpos {weight} + ipos {data} - opos {result} = {cut}, allowed {_CUT_LOW} to {CUT_HIGH}"
        moves = {unit.output: weight + data} if cut < _CUT_LOW else {unit.weight: result - data + CUT_HIGH}
        return ShiftViolation(values, moves)


_WIDEST = 7


@dataclass(frozen=True)
class ShiftRead:
    """``max(ipos) - min(ipos) <= 7`` for Add and Sub; larger positions are lowered."""

    name: str = "shift_read"

    def find(self, unit: Unit, positions: Positions) -> ShiftViolation | None:
        """Compare the operands."""
        if unit.operator not in ("Add", "Sub") or len(unit.inputs) < 2:
            return None
        positions_of = {tensor: positions[tensor] for tensor in unit.inputs}
        low, high = min(positions_of.values()), max(positions_of.values())
        if high - low <= _WIDEST:
            return None
        moves = {tensor: low + _WIDEST for tensor, position in positions_of.items() if position > low + _WIDEST}
        return ShiftViolation(f"ipos {high} - ipos {low} = {high - low}, allowed 0 to {_WIDEST}", moves)


_ADD = (-7, 25)
_MUL = (0, 32)


@dataclass(frozen=True)
class ShiftWrite:
    """``-7 <= min(ipos) - opos <= 25`` for Add, ``0 <= ipos + ipos - opos <= 32`` for Mul.

    A result with more fraction bits than the arithmetic provides is made coarser; so is an operand whose fraction bits
    the shifter cannot remove.
    """

    name: str = "shift_write"

    def find(self, unit: Unit, positions: Positions) -> ShiftViolation | None:
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
            return ShiftViolation(values, {unit.output: accumulator - low})
        pick = min if unit.operator == "Add" else max
        operand = pick(unit.inputs, key=positions.__getitem__)
        # A square has the same operand twice, so each step counts twice.
        excess = (shift - high + 1) // 2 if unit.operator == "Mul" and len(set(unit.inputs)) == 1 else shift - high
        return ShiftViolation(values, {operand: positions[operand] - excess})


_SWISH_LOW, _SWISH_HIGH = 0, 15


@dataclass(frozen=True)
class Swish:
    """``0 <= ipos + ipos - opos <= 15`` for ``x * HardSigmoid(x)``.

    Below, the result is made coarser. Above, x is made coarser, because the gate's position has a lower limit.
    """

    name: str = "swish"

    def find(self, unit: Unit, positions: Positions) -> ShiftViolation | None:
        """Compare the product's position with that of the result."""
        if not unit.swish or unit.output is None or len(unit.inputs) != 2:
            return None
        data, gate = unit.inputs
        total, result = positions[data] + positions[gate], positions[unit.output]
        shift = total - result
        if _SWISH_LOW <= shift <= _SWISH_HIGH:
            return None
        allowed = f"allowed {_SWISH_LOW} to {_SWISH_HIGH}"
        values = f"ipos {positions[data]} + ipos {positions[gate]} - opos {result} = {shift}, {allowed}"
        moves = {unit.output: total} if shift < _SWISH_LOW else {data: positions[data] - (shift - _SWISH_HIGH)}
        return ShiftViolation(values, moves)


LIMITS: tuple[Limit, ...] = (
    *(Align(switch, operators) for switch, operators in ALIGNED.items()),
    ShiftRead(),
    ShiftWrite(),
    ShiftCut(),
    ShiftBias(),
    HardSigmoid(),
    Swish(),
)

__all__ = ["BIAS_SHIFT_HIGH", "CUT_HIGH", "LIMITS", "Limit", "ShiftViolation"]
