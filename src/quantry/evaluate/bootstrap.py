"""How sure a mean over samples is."""

import math

import numpy as np
from numpy.typing import NDArray

_CHUNK_ELEMENTS = 1 << 20


def bootstrap_interval(
    per_sample: NDArray[np.float64], *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Return an interval for the mean over samples, by the percentile bootstrap of Efron (1979).

    Samples are drawn with replacement, as many as there are, again and again; the interval holds the middle of the
    means. It says how far the score would move with other data of the same kind. Equal scores give equal intervals.

    Args:
        per_sample: One score for each sample, shape (n,), at least one; infinities are allowed, NaN is not.
        confidence: The share of the means inside the interval, between 0 and 1.
        resamples: How often to draw.
        seed: Start of the random numbers.

    Returns:
        Lower and upper end. Both are the score itself when there is only one sample.

    Example:
        >>> import numpy as np
        >>> low, high = bootstrap_interval(np.array([1.0, 2.0, 3.0]))
        >>> low < 2.0 < high
        True
    """
    count = per_sample.size
    generator = np.random.default_rng(seed)
    rows = max(1, _CHUNK_ELEMENTS // count)
    means = np.sort(
        np.concatenate(
            [
                per_sample[generator.integers(0, count, size=(min(rows, resamples - start), count))].mean(axis=1)
                for start in range(0, resamples, rows)
            ]
        )
    )
    # Ends are means that occurred, the outer neighbours: interpolating between infinities would give NaN.
    tail = (1 - confidence) / 2 * (resamples - 1)
    return float(means[math.floor(tail)]), float(means[resamples - 1 - math.floor(tail)])
