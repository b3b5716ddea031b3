"""How many scales one tensor has."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PerTensor:
    """One scale and one zero point for the whole tensor."""


@dataclass(frozen=True)
class PerChannel:
    """One scale and one zero point for each index along one axis.

    Attributes:
        axis: The axis; None takes the axis the operator's rule names (output channels of a weight).
    """

    axis: int | None = None


Granularity = PerTensor | PerChannel
