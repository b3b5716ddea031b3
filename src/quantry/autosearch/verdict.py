"""Whether one configuration can still win against another."""

import math

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
"""How sure a verdict is."""


def cannot_win(
    challenger: NDArray[np.float64], champion: NDArray[np.float64], total: int, confidence: float = CONFIDENCE
) -> bool:
    """Say whether a challenger has no more than a slight chance of being shown better on all samples.

    Stochastic curtailment of a paired test (Lan, Simon and Halperin, 1982). With differences of mean ``m`` and
    deviation ``s`` over ``n`` of ``N`` samples, the mean over all of them is expected at ``m`` with the deviation
    ``s * sqrt(1/n - 1/N)``, and would have to be above ``z * s / sqrt(N)`` to show the challenger better. It cannot win
    when the probability of that is below half of one minus the confidence; half, because there are several looks. Of
    two that are equally good, one is often stopped at half of the samples.

    One sample on which they differ as much as samples differ from each other is added to the deviation: a few samples
    on which both do the same do not prove that they always will.

    Args:
        challenger: Scores of the first samples, shape (n,); more is better.
        champion: Scores of the same samples.
        total: How many samples there are in all.
        confidence: How sure to be, between 0.5 and 1.

    Returns:
        True when it can be stopped. After all samples, whether its mean is not above the champion's.

    Example:
        >>> import numpy as np
        >>> cannot_win(np.zeros(20), np.ones(20) + np.linspace(0, 0.1, 20), 100)
        True
    """
    count = len(challenger)
    difference = challenger - champion
    if not np.isfinite(difference).all():
        difference = np.sign(np.nan_to_num(challenger, posinf=1e300, neginf=-1e300) - champion)
        champion = np.zeros(count)
    mean = float(difference.mean())
    if count >= total:
        return mean <= 0
    spread = float(((difference - mean) ** 2).sum() + champion.var())
    deviation = math.sqrt(spread / count)
    if deviation == 0:
        return mean <= 0
    needed = _quantile(confidence) * deviation / math.sqrt(total)
    uncertain = deviation * math.sqrt(1 / count - 1 / total)
    return _tail((needed - mean) / uncertain) < (1 - confidence) / 2


def _tail(z: float) -> float:
    """Return the probability that a standard normal number is above ``z``."""
    return 0.5 * math.erfc(z / math.sqrt(2))


def _quantile(confidence: float) -> float:
    """Return the ``z`` below which a standard normal number is with this probability."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(confidence)
