"""Brings two outputs of any type into the one form that metrics are written for.

What a metric is: the contract every file beside this one fulfils.

Ratios on a logarithmic scale, with ends.

The span of values that an error is compared with.
"""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, final

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


class Metric(ABC):
    """A number that says how near the quantized model's output is to the float model's.

    An abstract class and not a protocol, because what every metric does with NaN, infinities, integers and several
    outputs is written once, here. A metric has no state: one instance serves any number of threads.

    Whoever adds one writes `formula` and four class attributes, and need not think of anything but two finite float64
    arrays of one shape. They may be of any rank, empty arrays excepted, and must not be changed.

    Attributes:
        name: What recipes and reports call it; lower case.
        aliases: Other names that `find_metric` accepts; lower case.
        higher_is_better: The direction.
        best: The score of an output that equals the reference.
        worst: The score of an output that cannot be compared: NaN or infinite where the float model's is not, or of
            another shape. No formula returns anything worse.
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    higher_is_better: ClassVar[bool]
    best: ClassVar[float]
    worst: ClassVar[float]

    @abstractmethod
    def formula(self, reference: NDArray[np.float64], quantized: NDArray[np.float64]) -> float:
        """Return the score of one output of one sample.

        Args:
            reference: The float model's output; finite, not empty.
            quantized: The quantized model's output, of the same shape; finite.
        """

    @final
    def score(self, reference: NDArray[Any], quantized: NDArray[Any]) -> float:
        """Return the score of one output as the models gave it, of any type and shape.

        Args:
            reference: The float model's output.
            quantized: The quantized model's output.

        Returns:
            The score; `worst` where `pair_outputs` finds the two not comparable.
        """
        return self.score_pair(pair_outputs(reference, quantized))

    @final
    def score_pair(self, pair: Pair | None) -> float:
        """Return the score of one output that went through `pair_outputs`."""
        return self.score_outputs((pair,))

    @final
    def score_outputs(self, pairs: Sequence[Pair | None]) -> float:
        """Return one score for all outputs of a sample together.

        Args:
            pairs: One entry for each output.

        Returns:
            The score; `worst` when any output is not comparable.
        """
        comparable = [pair for pair in pairs if pair is not None]
        if len(comparable) < len(pairs):
            return self.worst
        filled = [pair for pair in comparable if pair.reference.size]
        if not filled:
            return self.best
        # Values of a float64 model may square to more than float64 holds. A formula that then arrives at infinity is
        # right, and one that arrives at NaN compared outputs as far apart as there are.
        with np.errstate(all="ignore"):
            score = float(self.joint_formula(filled))
        return self.worst if math.isnan(score) else score

    def joint_formula(self, pairs: Sequence[Pair]) -> float:
        """Return the score of several outputs: by default that of all their elements as one vector.

        An output with large values or many elements therefore weighs more than a small one.

        Args:
            pairs: The outputs, at least one, none empty.
        """
        if len(pairs) == 1:
            return self.formula(*pairs[0])
        return self.formula(
            np.concatenate([pair.reference.ravel() for pair in pairs]),
            np.concatenate([pair.quantized.ravel() for pair in pairs]),
        )


LIMIT_DB = 150.0
"""Decibels end here, on both sides.

Rounding to float32 alone leaves an output at about this ratio, so no quantized model is better, and a score of equal
outputs stays finite: one equal sample would otherwise make every mean infinite.
"""


def decibels(signal: float, noise: float) -> float:
    """Return ``10 log10(signal / noise)`` within the limits.

    Args:
        signal: Power of the signal, 0 or more.
        noise: Power of the error, 0 or more; 0 gives the upper limit whatever the signal.
    """
    if noise == 0:
        return LIMIT_DB
    if signal == 0:
        return -LIMIT_DB
    # A difference of logarithms, because the ratio itself may leave float64's range.
    return min(max(10 * (math.log10(signal) - math.log10(noise)), -LIMIT_DB), LIMIT_DB)


def unlimited_decibels(signal: float, noise: float) -> float:
    """Return ``10 log10(signal / noise)`` of one tensor: infinite where nothing is lost, which no mean has to survive.

    Args:
        signal: Power of the signal, 0 or more.
        noise: Power of the error, 0 or more.
    """
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def value_span(reference: NDArray[np.float64]) -> float:
    """Return the maximum less the minimum, of a constant array its magnitude, and 1 of an array of zeros.

    Args:
        reference: Finite values, not empty.

    Returns:
        A number above 0.
    """
    low, high = float(reference.min()), float(reference.max())
    return min(high - low, sys.float_info.max) or abs(high) or 1.0
