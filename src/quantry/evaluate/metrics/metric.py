"""The base class of all metrics, and what their formulas share: comparable arrays, decibels and spans."""

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
    """Return both outputs as finite float64 arrays of one shape, or None if that is impossible.

    - Labels (booleans, strings, and 32 or 64-bit integers as from ArgMax, TopK and NonZero) are compared for equality:
      class 3 is not closer to class 4 than to class 90. The reference becomes ones; the quantized output becomes one
      if it is equal and zero otherwise. L1 is then the fraction of wrong labels.
    - Integers of 8 and 16 bits are quantities, such as pixels, and are compared as numbers, like floats.
    - An element that is NaN in both, or the same infinity in both, counts as equal, because masks contain minus
      infinity. If an element is not finite in only one of them, the outputs are not comparable.

    Args:
        reference: The float model's output.
        quantized: The quantized model's output.

    Returns:
        The pair, or None if the shapes differ or if only one of the two has a NaN or an infinity at some place.
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
    """A number that measures how close the quantized model's output is to the float model's.

    An abstract class instead of a protocol, because the handling of NaN, infinities, integers and several outputs is
    the same for all metrics. A metric has no state: one instance serves any number of threads.

    A subclass defines `formula` and the class attributes. The formula gets two finite, non-empty float64 arrays of one
    shape and any rank, and must not change them.

    Attributes:
        name: Name in recipes and reports; lower case.
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
        """Return the score of one output in the form that the models returned it, of any type and shape.

        Args:
            reference: The float model's output.
            quantized: The quantized model's output.

        Returns:
            The score; `worst` if `pair_outputs` returns None.
        """
        return self.score_pair(pair_outputs(reference, quantized))

    @final
    def score_pair(self, pair: Pair | None) -> float:
        """Return the score of one output that `pair_outputs` returned."""
        return self.score_outputs((pair,))

    @final
    def score_outputs(self, pairs: Sequence[Pair | None]) -> float:
        """Return one score for all outputs of a sample together.

        Args:
            pairs: One entry per output.

        Returns:
            The score; `worst` if any output is not comparable.
        """
        comparable = [pair for pair in pairs if pair is not None]
        if len(comparable) < len(pairs):
            return self.worst
        filled = [pair for pair in comparable if pair.reference.size]
        if not filled:
            return self.best
        # Squares of a float64 model's values may overflow. A formula that returns infinity then is right, and one that
        # returns NaN compared outputs that are as different as possible.
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
"""Decibels are limited to this, on both sides.

Rounding to float32 alone gives an output about this ratio, so no quantized model is better. The limit also keeps the
score of equal outputs finite: otherwise one equal sample would make every mean infinite.
"""


def decibels(signal: float, noise: float) -> float:
    """Return ``10 log10(signal / noise)`` within the limits.

    Args:
        signal: Power of the signal, 0 or more.
        noise: Power of the error, 0 or more; 0 gives the upper limit for any signal.
    """
    if noise == 0:
        return LIMIT_DB
    if signal == 0:
        return -LIMIT_DB
    # A difference of logarithms, because the ratio itself may exceed float64's range.
    return min(max(10 * (math.log10(signal) - math.log10(noise)), -LIMIT_DB), LIMIT_DB)


def unlimited_decibels(signal: float, noise: float) -> float:
    """Return ``10 log10(signal / noise)`` of one tensor; infinite if nothing is lost, so it must not be averaged.

    Args:
        signal: Power of the signal, 0 or more.
        noise: Power of the error, 0 or more.
    """
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def value_span(reference: NDArray[np.float64]) -> float:
    """Return the maximum minus the minimum; the magnitude of a constant array, and 1 for an array of zeros.

    Args:
        reference: Finite values, not empty.

    Returns:
        A positive number.
    """
    low, high = float(reference.min()), float(reference.max())
    return min(high - low, sys.float_info.max) or abs(high) or 1.0
