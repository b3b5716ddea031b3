"""The positions that the NPU's HardSigmoid can read and write."""

from dataclasses import dataclass

from quantry.scale.npu.limits.limit import Finding, Positions
from quantry.scale.npu.unit import Unit

_LOWEST_INPUT, _HIGHEST_INPUT = 0, 15
_LOWEST_OUTPUT = 7
_SLOPE_BITS = 14


@dataclass(frozen=True)
class HardSigmoid:
    """``0 <= ipos <= 15``, ``opos >= 7`` and ``14 + ipos - opos >= 0``: a slope of 14 bits and a result in [0, 1]."""

    name: str = "hard_sigmoid"

    def find(self, unit: Unit, positions: Positions) -> Finding | None:
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
        return Finding(values, {tensor: move for tensor, move in moves.items() if positions[tensor] != move})
