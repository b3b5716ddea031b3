"""Whether a change helps: a paired comparison of two models on the same held-out samples."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from quantry.evaluate.tasks import Closeness

CONFIDENCE = 0.95
"""Confidence of the one-sided test."""

CHEAP_GAIN, COSTLY_GAIN = 0.1, 0.5
"""Least gain in dB that is worth a change: of one that costs hardly anything at run time, and of another one."""

HALF_BIT = 3.0
"""Half a bit of resolution in dB."""

SPLIT_GAIN = HALF_BIT
"""Further gain in dB that is worth one more piece of the graph where float nodes run on another device."""

# With few samples no test can reach the confidence: the chance that four differences out of four are positive is 1/16.
# A bit of resolution is 6 dB, so 1 dB on each sample is no accident.
_LEAST_TESTED = 5
_UNTESTED_GAIN = 1.0

GOOD_AGREEMENT, GOOD_DB, GOOD_MAP_DB = 0.99, 30.0, 35.0
"""Agreement of decisions, or dB where outputs hold no decision, above which nothing is traded for accuracy.

A map such as a detector's output must have both: where objects are is decided long before the boxes are precise.
"""

POOR_AGREEMENT, POOR_DB = 0.9, 15.0
"""Agreement of decisions, or dB where outputs hold no decision, below which a model is far from usable."""


@dataclass(frozen=True)
class Gain:
    """The difference between two models on the same samples.

    Attributes:
        decibels: Mean difference in dB.
        agreement: Mean difference of the agreement of decisions, -1 to 1; None if outputs hold no decision.
        samples: Number of samples.
        surely_closer: Whether the paired test shows that the decibels rise.
        surely_disagrees: Whether the paired test shows that the agreement falls.
        surely_agrees: Whether the paired test shows that the agreement rises.
    """

    decibels: float
    agreement: float | None
    samples: int
    surely_closer: bool
    surely_disagrees: bool
    surely_agrees: bool

    @classmethod
    def between(cls, before: Closeness, after: Closeness) -> "Gain":
        """Compare two models.

        Args:
            before: The model to compare with.
            after: The changed model, on the same samples.
        """
        closer = after.decibels - before.decibels
        agreed = after.agreement - before.agreement
        agreed = agreed[~np.isnan(agreed)]
        return cls(
            decibels=float(closer.mean()),
            agreement=float(agreed.mean()) if len(agreed) else None,
            samples=len(closer),
            surely_closer=_surely_positive(closer, _UNTESTED_GAIN),
            surely_disagrees=_surely_positive(-agreed, 1.0),
            surely_agrees=_surely_positive(agreed, 1.0),
        )

    def supports(self, *, is_cheap: bool, pieces: int = 0) -> bool:
        """Return whether the change is worth keeping.

        Either the decibels rise and the agreement does not fall, or the agreement rises and the decibels do not fall.

        Args:
            is_cheap: Whether it costs hardly anything at run time, unlike layers in float or tensors of 16 bits.
            pieces: How many more pieces the graph falls into.
        """
        least = (CHEAP_GAIN if is_cheap else COSTLY_GAIN) + SPLIT_GAIN * pieces
        closer = self.surely_closer and self.decibels >= least and not self.surely_disagrees
        return closer or (self.surely_agrees and self.decibels >= SPLIT_GAIN * pieces)

    @property
    def is_loss(self) -> bool:
        """Whether the second model is worse, as far as these samples tell.

        Agreement of decisions outweighs decibels, unless these gain half a bit: then a few decisions more or less are
        those that the float model itself hardly decides.
        """
        return self.decibels < 0 or (self.surely_disagrees and self.decibels < HALF_BIT)


def is_good(closeness: Closeness) -> bool:
    """Return whether a model is so close to the float model that nothing must be traded for accuracy.

    Args:
        closeness: How close it is.
    """
    agreement, ties, decibels = closeness.mean_agreement, closeness.mean_ties, closeness.mean_decibels
    if agreement is None:
        return decibels >= GOOD_DB
    if ties is None:
        return agreement >= GOOD_AGREEMENT and decibels >= GOOD_MAP_DB
    return agreement >= GOOD_AGREEMENT and ties == 0.0


def is_poor(closeness: Closeness) -> bool:
    """Return whether a model is so far from the float model that fixing it is worth more time.

    Args:
        closeness: How close it is.
    """
    agreement = closeness.mean_agreement
    return closeness.mean_decibels < POOR_DB if agreement is None else agreement < POOR_AGREEMENT


def _surely_positive(differences: NDArray[np.float64], untested: float) -> bool:
    """Return whether differences are above zero by Wilcoxon's signed-rank test, one-sided.

    Ranks, because decibels of single samples have heavy tails: a sample on which both models fail may differ by 20 dB.
    With less than five samples no test can reach the confidence, so every difference must exceed a limit.
    """
    nonzero = differences[differences != 0]
    count = len(nonzero)
    if len(differences) < _LEAST_TESTED:
        return len(differences) > 0 and bool((differences >= untested).all())
    if count == 0 or differences.mean() <= 0:
        return False
    sizes = np.abs(nonzero)
    # Equal sizes share the mean of their ranks.
    ranks = (sizes[:, None] > sizes).sum(axis=1) + ((sizes[:, None] == sizes).sum(axis=1) + 1) / 2
    positive = float(ranks[nonzero > 0].sum())
    mean, deviation = ranks.sum() / 2, math.sqrt(float(np.square(ranks).sum()) / 4)
    # Half a rank less: the sum of ranks is a whole number and the normal distribution is not.
    return bool((positive - 0.5 - mean) / deviation > NormalDist().inv_cdf(CONFIDENCE))
