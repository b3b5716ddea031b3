"""From the members of AMD Quark's calibration enumerations to calibration methods."""

import enum

from quantry.errors import RecipeError
from quantry.onnx.enums import (
    CalibMethod,
    CalibrationMethod,
    ExtendedCalibrationMethod,
    LayerWiseMethod,
    PowerOfTwoMethod,
)
from quantry.recipe import Entropy, LayerWisePercentile, Method, MinMax, MinMSE, NonOverflow, Percentile

_METHODS: dict[enum.Enum, Method] = {
    PowerOfTwoMethod.NonOverflow: NonOverflow(),
    PowerOfTwoMethod.MinMSE: MinMSE(),
    CalibrationMethod.MinMax: MinMax(),
    CalibrationMethod.Entropy: Entropy(),
    CalibrationMethod.Percentile: Percentile(),
    LayerWiseMethod.LayerWisePercentile: LayerWisePercentile(),
    ExtendedCalibrationMethod.MinMSE: MinMSE(),
    CalibMethod.MinMax: MinMax(),
    CalibMethod.MinMSE: MinMSE(),
    CalibMethod.Percentile: Percentile(),
    CalibMethod.Entropy: Entropy(),
    CalibMethod.LayerwisePercentile: LayerWisePercentile(),
}
_NEAREST = {
    "Distribution": "it is for float8 only and is not there; the nearest is CalibrationMethod.Percentile",
    "MinMax": "scales are float32 or powers of two, not M / 2**N; the nearest is CalibrationMethod.MinMax",
}


def method_of(member: enum.Enum, where: str) -> Method:
    """Return the calibration method that a member stands for.

    Args:
        member: One of our members.
        where: The field, for messages.

    Raises:
        RecipeError: There is no such method here; the message has the nearest.
    """
    method = _METHODS.get(member)
    if method is None:
        raise RecipeError(f"{where} cannot be {member}: {_NEAREST[member.name]}")
    return method
