"""What a limit is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from quantry.scale.npu.unit import Unit

Positions = Mapping[str, int]


@dataclass(frozen=True)
class Finding:
    """A limit that does not hold.

    Attributes:
        values: The numbers at fault, such as ``wpos 14 + ipos 6 - opos 0 = 20, allowed 0 to 16``.
        moves: Positions with which the limit holds, by tensor.
    """

    values: str
    moves: Mapping[str, int]


class Limit(Protocol):
    """A relation between the positions of one unit that the NPU's shifters set.

    Stateless. The moves of a finding make its own limit hold; they may break another, so limits are applied in turn
    until all hold. Wherever there is a choice, moves go to smaller positions: a coarser step loses bits that the
    arithmetic could not use, a finer one would saturate.
    """

    @property
    def name(self) -> str:
        """Name of the switch in `quantry.recipe.NpuLimits`."""
        ...

    def find(self, unit: Unit, positions: Positions) -> Finding | None:
        """Return what is wrong with a unit, or None where the limit holds or does not apply.

        Args:
            unit: The unit; it may be of any operator.
            positions: Positions of all quantized tensors by key.
        """
        ...
