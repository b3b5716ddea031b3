"""Brings two outputs of any type into the one form that metrics are written for."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Pair(NamedTuple):
    """One output of both models, ready for a formula.

    Attributes:
        reference: The float model's output, float64, finite.
        quantized: The quantized model's output, float64, finite, of the same shape.
    """

    reference: NDArray[np.float64]
    quantized: NDArray[np.float64]


def pair_outputs(reference: NDArray[Any], quantized: NDArray[Any]) -> Pair | None:
    """Return both outputs as finite float64 arrays of one shape, or None where that is impossible.

    - Labels, that is booleans, strings and 32 or 64-bit integers as ArgMax, TopK and NonZero give them, are compared by
      agreement: class 3 is no nearer to class 4 than to class 90. The reference becomes ones, the quantized output one
      where it is equal and zero elsewhere. L1 is then the share of wrong labels.
    - Integers of 8 and 16 bits are amounts, such as pixels, and are compared as numbers, as floats are.
    - An element that is NaN in both, or the same infinity in both, counts as equal: masks are written with minus
      infinity. An element that is not finite in one only makes the outputs not comparable.

    Args:
        reference: The float model's output.
        quantized: The quantized model's output.

    Returns:
        The pair, or None when the shapes differ or only one of the two has a NaN or an infinity at some place.
    """
    if reference.shape != quantized.shape:
        return None
    if _is_label(reference.dtype) and _is_label(quantized.dtype):
        agreement = np.asarray(reference == quantized, dtype=np.float64)
        return Pair(np.ones_like(agreement), agreement)
    ours, theirs = reference.astype(np.float64), quantized.astype(np.float64)
    finite = np.isfinite(ours) & np.isfinite(theirs)
    if finite.all():
        return Pair(ours, theirs)
    if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True):
        return None
    return Pair(np.where(finite, ours, 0.0), np.where(finite, theirs, 0.0))


def _is_label(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "bOUST" or (dtype.kind in "iu" and dtype.itemsize >= 4)
