"""What is known of one tensor after the float pass; every calibration method starts from here."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from quantry.errors import InternalError
from quantry.observe.distribution import Distribution, histogram_distribution

FloatArray = npt.NDArray[np.float32]
Histogram = tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]
"""Codes that occurred, ascending, [k], and how often each did, [k]."""


@dataclass(frozen=True, eq=False)
class TensorStats:
    """Method-neutral statistics of one tensor; bounded in size, merged by addition.

    NaN and infinities are counted apart and take no part in anything else.

    Attributes:
        minimum: Smallest finite value, exact; plus infinity when there is none.
        maximum: Largest finite value, exact; minus infinity when there is none.
        count: Number of values seen, NaN and infinities included.
        nan_count: How many of them were NaN.
        inf_count: How many of them were infinite.
        batch_minima: Smallest finite value of each sample fed, float32 [n].
        batch_maxima: Largest finite value of each sample fed, float32 [n].
        codes: Codes that occurred, ascending, uint16 [k]; a code is the upper half of a float32's bits.
        counts: Number of finite values of each code, int64 [k].
        channel_minima: Smallest value of each channel, float32 [c]; None unless it was asked for.
        channel_maxima: Largest value of each channel, float32 [c]; None unless it was asked for.
    """

    minimum: float
    maximum: float
    count: int
    nan_count: int
    inf_count: int
    batch_minima: FloatArray = field(repr=False)
    batch_maxima: FloatArray = field(repr=False)
    codes: npt.NDArray[np.uint16] = field(repr=False)
    counts: npt.NDArray[np.int64] = field(repr=False)
    channel_minima: FloatArray | None = field(default=None, repr=False)
    channel_maxima: FloatArray | None = field(default=None, repr=False)

    @property
    def finite_count(self) -> int:
        """Number of values that are neither NaN nor infinite."""
        return self.count - self.nan_count - self.inf_count

    def merge(self, other: "TensorStats") -> "TensorStats":
        """Return the statistics of both sets of values together.

        Associative, and commutative but for the order of the batches. Channel extrema survive only if both have them.
        """
        codes, counts = add_histograms([(self.codes, self.counts), (other.codes, other.counts)])
        return TensorStats(
            minimum=min(self.minimum, other.minimum),
            maximum=max(self.maximum, other.maximum),
            count=self.count + other.count,
            nan_count=self.nan_count + other.nan_count,
            inf_count=self.inf_count + other.inf_count,
            batch_minima=np.concatenate([self.batch_minima, other.batch_minima]),
            batch_maxima=np.concatenate([self.batch_maxima, other.batch_maxima]),
            codes=codes,
            counts=counts,
            channel_minima=_join_channels(np.minimum, self.channel_minima, other.channel_minima),
            channel_maxima=_join_channels(np.maximum, self.channel_maxima, other.channel_maxima),
        )

    def distribution(self) -> Distribution:
        """Return the finite values as mass in ascending intervals, clipped to ``[minimum, maximum]``."""
        return histogram_distribution(self.codes, self.counts, self.minimum, self.maximum)


def add_histograms(parts: list[Histogram]) -> Histogram:
    """Return the sum of sparse histograms, codes ascending."""
    codes, position = np.unique(np.concatenate([codes for codes, _ in parts]), return_inverse=True)
    counts = np.zeros(len(codes), np.int64)
    np.add.at(counts, position, np.concatenate([counts for _, counts in parts]))
    return codes, counts


def _join_channels(
    join: Callable[[FloatArray, FloatArray], FloatArray], left: FloatArray | None, right: FloatArray | None
) -> FloatArray | None:
    if left is None or right is None:
        return None
    if left.shape != right.shape:
        raise InternalError(
            f"channel extrema can be merged only for equal channel counts, got {len(left)} and {len(right)}; "
            "TensorStats.merge"
        )
    return join(left, right)
