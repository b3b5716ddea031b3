"""Counts the codes of float32 values and finds their extremes, with the compiled kernel or NumPy."""

import functools
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from quantry.numerics import kernels

FloatArray = npt.NDArray[np.float32]
Counts = npt.NDArray[np.uint32]
Extremes = tuple[float, float]

CHUNK = 1 << 17
"""Values that numpy counts at a time: few enough for them and their codes to stay in the second-level cache."""

_ONE = np.uint32(1)


def code_counter() -> Callable[[FloatArray, Counts], Extremes]:
    """Return the fastest implementation of `count_codes`; all give the same results."""
    compiled = kernels.loaded()
    return count_codes if compiled is None else functools.partial(_count_compiled, compiled)


def count_codes(flat: FloatArray, histogram: Counts) -> Extremes:
    """Add the values' codes, the upper halves of their bits, to a histogram.

    Args:
        flat: Values, contiguous.
        histogram: Counts of all codes, [65536]; the caller sees to it that none overflows.

    Returns:
        Smallest and largest value, zeros without sign; NaN and NaN where any value is not finite.
    """
    low, high = math.inf, -math.inf
    codes = np.empty(min(CHUNK, flat.size), np.intp)
    # Little-endian: the second half of each float is its upper one.
    upper_halves = flat.view(np.uint16)[1::2]
    for start in range(0, flat.size, CHUNK):
        chunk = flat[start : start + CHUNK]
        # The fast passes come first: they bring the chunk into the cache for the slow ones.
        lowest, highest = float(np.minimum.reduce(chunk)), float(np.maximum.reduce(chunk))
        low, high = joined((low, high), (lowest, highest))
        np.copyto(codes[: chunk.size], upper_halves[start : start + CHUNK])
        np.add.at(histogram, codes[: chunk.size], _ONE)
    return low + 0.0, high + 0.0


def joined(one: Extremes, other: Extremes) -> Extremes:
    """Return the extremes of values of which some have these and the others those; NaN once any is not finite."""
    low, high = min(one[0], other[0]), max(one[1], other[1])
    return (low, high) if all(map(math.isfinite, other)) and not math.isnan(one[0]) else (math.nan, math.nan)


def _count_compiled(compiled: kernels.Kernels, flat: FloatArray, histogram: Counts) -> Extremes:
    if flat.size == 0:
        return math.inf, -math.inf
    ranks = np.array(compiled.count_codes(flat, histogram), np.int32)
    # Mapping bits to ranks is its own inverse.
    bits = np.where(ranks < 0, ranks ^ 0x7FFFFFFF, ranks).astype(np.int32)
    low, high = bits.view(np.float32).tolist()
    return joined((low + 0.0, high + 0.0), (low + 0.0, high + 0.0))
