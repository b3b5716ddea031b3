"""Where a tensor's values lie, as mass in intervals; what every calibration method integrates over."""

from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Number = TypeVar("Number", np.uint16, np.int64)

NEGATIVE = 0x8000
"""The sign bit of a code; a code is the upper half of a float32's bits."""


@dataclass(frozen=True, eq=False)
class Distribution:
    """Mass in disjoint intervals, ascending; spread evenly inside each interval.

    Attributes:
        lower: Left ends, float64 [k].
        upper: Right ends, float64 [k]; equal to ``lower`` for a point mass.
        counts: Number of values in each interval, float64 [k], all above zero.

    Example:
        >>> Distribution(np.array([0.0]), np.array([2.0]), np.array([5.0])).total
        5.0
    """

    lower: npt.NDArray[np.float64]
    upper: npt.NDArray[np.float64]
    counts: npt.NDArray[np.float64]

    @property
    def total(self) -> float:
        """Number of values in all intervals together."""
        return float(self.counts.sum())


def code_bounds(codes: npt.NDArray[np.uint16]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the ends of the values that share each code, in ascending order of value within each pair.

    A code is the upper half of a float32: all floats with equal sign, exponent and upper seven bits of the mantissa.

    Args:
        codes: Codes of finite values, [k].

    Returns:
        Left and right ends, float64 [k] each. The ends of the two codes around zero are both zero, because the only
        other values there are denormals below 1e-40.
    """
    lower, upper = _all_bounds()
    return lower[codes].astype(np.float64), upper[codes].astype(np.float64)


@cache
def _all_bounds() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return the ends for every code, which float32 holds exactly; those of infinities and NaN mean nothing."""
    magnitude = np.arange(NEGATIVE, dtype=np.uint32)
    near = (magnitude << 16).view(np.float32)
    far = ((magnitude + 1) << 16).view(np.float32)
    far[0] = 0.0
    return np.concatenate([near, -far]), np.concatenate([far, -near])


def histogram_distribution(
    codes: npt.NDArray[np.uint16], counts: npt.NDArray[np.int64], minimum: float, maximum: float
) -> Distribution:
    """Return the distribution of a float-bits histogram.

    Args:
        codes: Ascending codes of finite values, [k].
        counts: Number of values of each code, [k].
        minimum: Smallest value, exact.
        maximum: Largest value, exact.

    Returns:
        Its intervals in ascending order of value, clipped to ``[minimum, maximum]``; both zeros are one point mass.
    """
    codes, counts = _join_zeros(codes, counts)
    first_negative = int(np.searchsorted(codes, NEGATIVE))
    lower, upper = code_bounds(_ascending(codes, first_negative))
    for ends in (lower, upper):
        np.minimum(np.maximum(ends, minimum, out=ends), maximum, out=ends)
    return Distribution(lower, upper, _ascending(counts, first_negative).astype(np.float64))


def _ascending(of_codes: npt.NDArray[Number], first_negative: int) -> npt.NDArray[Number]:
    """Return what belongs to ascending codes in ascending order of their values: negative codes count down."""
    return np.concatenate([of_codes[first_negative:][::-1], of_codes[:first_negative]])


def _join_zeros(
    codes: npt.NDArray[np.uint16], counts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]:
    """Count minus zero as zero."""
    minus_zero = int(np.searchsorted(codes, NEGATIVE))
    if minus_zero == len(codes) or codes[minus_zero] != NEGATIVE:
        return codes, counts
    minus = counts[minus_zero]
    codes, counts = np.delete(codes, minus_zero), np.delete(counts, minus_zero)
    if len(codes) and codes[0] == 0:
        counts[0] += minus
        return codes, counts
    return np.concatenate([np.zeros(1, np.uint16), codes]), np.concatenate([minus[None], counts])
