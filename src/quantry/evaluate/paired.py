"""Is variant B better than A? Three questions about the scores of both on the same samples, answered in one place.

- *Is it better?* Wilcoxon's signed-rank test, one-sided. Ranks, because scores of single samples have heavy tails: a
  sample on which both models fail may differ by 20 dB.
- *Is it not worse than a margin?* The lower end of a bootstrap interval of the mean. The mean, because a margin limits
  what a user loses over all samples, however few of them lose it.
- *Can it still win?* Stochastic curtailment of the comparison on samples that are not evaluated yet.

A search asks the first question many times on the same samples. `Trust` therefore spends the allowed error like a
budget (docs/adr/0017-one-judge.md).
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from quantry.evaluate.comparison import bootstrap_interval
from quantry.evaluate.levels import CERTAIN, HALF_BIT, NOTABLE, WORTH_ITS_COST
from quantry.evaluate.tasks.float_agreement import Closeness

CONFIDENCE = 0.95
"""Confidence of every answer."""

# With few samples no test can reach the confidence: the chance that four differences out of four are positive is 1/16.
_FEWEST_TESTED = 5

Scores = NDArray[np.float64]


@dataclass
class Trust:
    """How much evidence the next comparison of a search needs.

    Alpha investing (Foster and Stine, 2008): the k-th comparison since the last change that was kept may be wrong with
    probability ``(1 - CONFIDENCE) / (k (k + 1))``, which adds up to ``1 - CONFIDENCE`` however many there are, and a
    change that is kept renews the budget. At most that share of all changes that are kept is expected to be useless.
    """

    _asked: int = 0

    def confidence(self) -> float:
        """Return the confidence that the next comparison needs, and count it."""
        self._asked += 1
        return 1 - (1 - CONFIDENCE) / (self._asked * (self._asked + 1))

    def renew(self) -> None:
        """Start a new budget, because a change was kept."""
        self._asked = 0


def is_better(ours: Scores, theirs: Scores, confidence: float = CONFIDENCE, certain: float = CERTAIN) -> bool:
    """Return whether scores are higher than others on the same samples, by Wilcoxon's signed-rank test.

    Args:
        ours: Scores of the variant, shape (n,); more is better.
        theirs: Scores of what it is compared with on the same samples.
        confidence: Confidence of the one-sided test.
        certain: With less than five samples, every difference must reach this, because no test can tell.
    """
    differences = ours - theirs
    nonzero = differences[differences != 0]
    if len(differences) < _FEWEST_TESTED:
        return len(differences) > 0 and bool((differences >= certain).all())
    if not len(nonzero) or differences.mean() <= 0:
        return False
    sizes = np.abs(nonzero)
    # Equal sizes share the mean of their ranks.
    ranks = (sizes[:, None] > sizes).sum(axis=1) + ((sizes[:, None] == sizes).sum(axis=1) + 1) / 2
    positive = float(ranks[nonzero > 0].sum())
    mean, deviation = ranks.sum() / 2, math.sqrt(float(np.square(ranks).sum()) / 4)
    # Half a rank less: the sum of ranks is a whole number and the normal distribution is not.
    return bool((positive - 0.5 - mean) / deviation > NormalDist().inv_cdf(confidence))


def is_not_worse(ours: Scores, theirs: Scores, margin: float = 0.0) -> bool:
    """Return whether the mean of scores may be lower than that of others by at most a margin.

    Args:
        ours: Scores of the variant, shape (n,); more is better.
        theirs: Scores of what it is compared with on the same samples.
        margin: What may be lost. Without a margin, only a loss that is more than chance counts.
    """
    low, high = difference_interval(ours, theirs) or (-math.inf, math.inf)
    return low >= -margin if margin else high >= 0


def difference_interval(ours: Scores | None, theirs: Scores | None) -> tuple[float, float] | None:
    """Return the 95 % bootstrap interval of the mean difference of scores on the same samples.

    Args:
        ours: Scores of the variant, shape (n,); None or empty if unknown.
        theirs: Scores of what it is compared with.

    Returns:
        The interval; None if they are unknown, or not of the same samples.
    """
    if ours is None or theirs is None or not len(ours) or len(ours) != len(theirs):
        return None
    return bootstrap_interval(ours - theirs)


def cannot_win(ours: Scores, theirs: Scores, total: int, confidence: float = CONFIDENCE) -> bool:
    """Return whether a variant is unlikely to be shown better than another one on all samples.

    Stochastic curtailment of a paired test (Lan, Simon and Halperin, 1982). With differences of mean ``m`` and standard
    deviation ``s`` over ``n`` of ``N`` samples, the mean over all samples is expected at ``m`` with standard deviation
    ``s * sqrt(1/n - 1/N)``, and must exceed ``z * s / sqrt(N)`` to show that the variant is better. It cannot win if
    the probability of that is below half of one minus the confidence; half, because it is asked several times. Of two
    equally good variants, one is often given up at half of the samples.

    One pseudo-sample, on which both differ as much as samples differ from each other, is added to the variance: a few
    samples with equal scores do not prove that all others are equal too.

    Args:
        ours: Scores of the first samples, shape (n,); more is better.
        theirs: Scores of the same samples, shape (n,).
        total: Number of all samples.
        confidence: Confidence level, between 0.5 and 1.

    Returns:
        Whether to give it up. After all samples, whether its mean is not above the other's.

    Example:
        >>> import numpy as np
        >>> cannot_win(np.zeros(20), np.ones(20) + np.linspace(0, 0.1, 20), 100)
        True
    """
    count = len(ours)
    difference = ours - theirs
    if not np.isfinite(difference).all():
        # Infinite scores (PSNR of equal images) have no variance; only which one is larger is compared.
        difference = np.sign(np.nan_to_num(ours, posinf=1e300, neginf=-1e300) - theirs)
        theirs = np.zeros(count)
    mean = float(difference.mean())
    if count >= total:
        return mean <= 0
    deviation = math.sqrt(float(((difference - mean) ** 2).sum() + theirs.var()) / count)
    if deviation == 0:
        return mean <= 0
    needed = NormalDist().inv_cdf(confidence) * deviation / math.sqrt(total)
    uncertainty = deviation * math.sqrt(1 / count - 1 / total)
    probability = 0.5 * math.erfc((needed - mean) / uncertainty / math.sqrt(2))
    return probability < (1 - confidence) / 2


@dataclass(frozen=True)
class PairedCloseness:
    """How the closeness of two models to the float model differs, on the same samples.

    Attributes:
        variant: The closeness of the variant.
        base: That of the model it is compared with.
    """

    variant: Closeness
    base: Closeness

    @property
    def decibels(self) -> float:
        """Mean gain in dB."""
        return float((self.variant.decibels - self.base.decibels).mean())

    @property
    def agreement(self) -> float | None:
        """Mean gain of the agreement of decisions, -1 to 1; None if outputs hold no decision."""
        ours, theirs = self._agreements
        return float((ours - theirs).mean()) if len(ours) else None

    def is_better(self, *, is_cheap: bool = True, split: float = 0.0, confidence: float = CONFIDENCE) -> bool:
        """Return whether the variant is worth keeping.

        Either the decibels rise and the agreement does not fall, or the agreement rises and the decibels do not fall.

        Args:
            is_cheap: Whether it costs hardly anything at run time, unlike layers in float or tensors of 16 bits.
            split: Further dB that it must gain, because it cuts the graph into more pieces.
            confidence: Confidence of the tests.
        """
        least = (NOTABLE if is_cheap else WORTH_ITS_COST) + split
        ours, theirs = self._agreements
        agrees = is_better(ours, theirs, confidence)
        if self.decibels >= split and agrees:
            return True
        is_closer = self.decibels >= least and is_better(self.variant.decibels, self.base.decibels, confidence)
        return is_closer and not self.loses_decisions

    @property
    def loses_decisions(self) -> bool:
        """Whether the agreement of decisions falls by more than chance."""
        ours, theirs = self._agreements
        return is_better(theirs, ours)

    @property
    def is_worse(self) -> bool:
        """Whether the variant is worse, as far as these samples tell.

        Agreement of decisions outweighs decibels, unless these gain half a bit: then a few decisions more or less are
        those that the float model itself hardly decides.
        """
        return self.decibels < 0 or (self.loses_decisions and self.decibels < HALF_BIT)

    @property
    def _agreements(self) -> tuple[Scores, Scores]:
        both = ~np.isnan(self.variant.agreement) & ~np.isnan(self.base.agreement)
        return self.variant.agreement[both], self.base.agreement[both]
