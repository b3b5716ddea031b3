"""Which real numbers a scale may be."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FloatScale:
    """Any positive float32."""


@dataclass(frozen=True)
class PowerOfTwoScale:
    """``2**-position`` with an integer position, as integer NPUs shift instead of multiply."""


ScaleKind = FloatScale | PowerOfTwoScale
