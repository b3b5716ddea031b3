"""Operators that copy or compare integers: all tensors need one position."""

from dataclasses import dataclass

from quantry.scale.npu.limits.limit import Finding, Positions
from quantry.scale.npu.unit import Unit


@dataclass(frozen=True)
class Align:
    """Inputs and output have the same position: the smallest among them.

    Attributes:
        name: Name of the switch.
        operators: Operator types that it is about.
    """

    name: str
    operators: tuple[str, ...]

    def find(self, unit: Unit, positions: Positions) -> Finding | None:
        """Compare all tensors of the unit."""
        if unit.operator not in self.operators or unit.output is None:
            return None
        tied = dict.fromkeys((*unit.inputs, unit.output))
        found = {tensor: positions[tensor] for tensor in tied}
        smallest = min(found.values())
        if max(found.values()) == smallest:
            return None
        inputs = ", ".join(str(positions[tensor]) for tensor in unit.inputs)
        return Finding(
            f"ipos {inputs} and opos {positions[unit.output]}, allowed one position",
            {tensor: smallest for tensor, position in found.items() if position != smallest},
        )
