"""Why a search ended."""

from dataclasses import dataclass
from enum import Enum


class StopKind(Enum):
    """Reasons to stop, with their texts."""

    ALL_TRIED = "every configuration was tried"
    TIME = "time limit of {amount:g} s reached; run it again with a larger budget to continue"
    TRIALS = "reached the limit of {amount:g} trials"
    CANDIDATES = "found {amount:g} candidates within tolerance"
    PATIENCE = "no improvement in {amount:g} trials"
    REQUEST = "stopped on request; run it again to continue"


@dataclass(frozen=True)
class Stop:
    """Why a search ended; ``str(stop)`` is the text for a reader.

    Attributes:
        kind: The reason.
        amount: The number in its text: seconds, trials or candidates.
    """

    kind: StopKind
    amount: float = 0.0

    def __str__(self) -> str:
        return self.kind.value.format(amount=self.amount)


ALL_TRIED = Stop(StopKind.ALL_TRIED)
