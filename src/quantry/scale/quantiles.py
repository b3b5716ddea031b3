"""Quantiles of binned values, interpolated inside the bins."""

import numpy as np

from quantry.scale.moments import Moments


def quantile(moments: Moments, fraction: float) -> float:
    """Return the smallest value that has at least this fraction of the mass at or below it.

    Args:
        moments: The values.
        fraction: In [0, 1].
    """
    return _value_at(moments, fraction * moments.total)


def magnitude_quantile(moments: Moments, fraction: float) -> float:
    """Return the smallest ``t`` for which at least this fraction of the mass lies in ``[-t, t]``.

    Args:
        moments: The values.
        fraction: In [0, 1].
    """
    if fraction >= 1:
        return float(max(-moments.lower[0], moments.upper[-1], 0.0))
    # Neither tail alone may hold more than what is cut off, so t is no smaller than either quantile.
    right = quantile(moments, fraction)
    if right >= -moments.lower[0]:
        return max(right, 0.0)  # nothing lies left of -t
    bound = max(right, -quantile(moments, 1.0 - fraction), 0.0)
    outer = (moments.upper >= bound) | (moments.lower <= -bound)
    inner_mass = float(moments.counts[~outer].sum())
    tails = folded(Moments(moments.lower[outer], moments.upper[outer], moments.counts[outer]))
    return _value_at(tails, fraction * moments.total - inner_mass)


def folded(moments: Moments) -> Moments:
    """Return the distribution of ``|x|``.

    Folding makes bins overlap; they are cut at each other's ends, which changes nothing because mass is spread evenly.

    Args:
        moments: The distribution of x.
    """
    point = moments.lower == moments.upper
    edges = np.sort(np.abs(np.concatenate([[0.0], moments.lower, moments.upper])))
    # As numpy.unique does, which loads numpy.ma when it is first called.
    edges = edges[np.append(True, edges[1:] != edges[:-1])]
    # A point at each edge, and between two edges an interval.
    counts = np.zeros(2 * len(edges) - 1)
    np.add.at(counts, 2 * np.searchsorted(edges, np.abs(moments.lower[point])), moments.counts[point])
    if not point.all():
        spread = Moments(moments.lower[~point], moments.upper[~point], moments.counts[~point])
        mass = spread.between(np.concatenate([-edges[:0:-1], edges])).mass
        half = len(edges) - 1
        counts[1::2] = mass[half:] + mass[:half][::-1]
    lower = np.repeat(edges, 2)[:-1]
    upper = np.repeat(edges, 2)[:-1].copy()
    upper[1::2] = edges[1:]
    kept = counts > 0
    return Moments(lower[kept], upper[kept], counts[kept])


def _value_at(moments: Moments, mass: float) -> float:
    """Return the smallest value that has at least this mass at or below it."""
    running = moments.cumulative
    index = min(int(running.searchsorted(mass)), len(running) - 1)
    lower, upper = float(moments.lower[index]), float(moments.upper[index])
    missing = float(running[index] - mass) / float(moments.counts[index])
    return min(max(upper - (upper - lower) * missing, lower), upper)
