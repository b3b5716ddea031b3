"""Quantiles of binned values, interpolated inside the bins."""

import numpy as np

from quantry.scale.moments import Moments


def quantile(moments: Moments, fraction: float) -> float:
    """Return the smallest value that has at least this fraction of the mass at or below it.

    Args:
        moments: The values.
        fraction: In [0, 1].
    """
    running = np.cumsum(moments.counts)
    target = fraction * running[-1]
    index = int(np.searchsorted(running, target))
    lower, upper = moments.lower[index], moments.upper[index]
    missing = (running[index] - target) / moments.counts[index]
    return float(np.clip(upper - (upper - lower) * missing, lower, upper))


def folded(moments: Moments) -> Moments:
    """Return the distribution of ``|x|``.

    Folding makes bins overlap; they are cut at each other's ends, which changes nothing because mass is spread evenly.

    Args:
        moments: The distribution of x.
    """
    point = moments.lower == moments.upper
    edges = np.unique(np.abs(np.concatenate([[0.0], moments.lower, moments.upper])))
    at_edge = np.zeros(len(edges))
    np.add.at(at_edge, np.searchsorted(edges, np.abs(moments.lower[point])), moments.counts[point])
    counts = np.zeros(2 * len(edges) - 1)
    counts[::2] = at_edge
    if not point.all():
        spread = Moments(moments.lower[~point], moments.upper[~point], moments.counts[~point])
        mass = spread.between(np.concatenate([-edges[:0:-1], edges])).mass
        half = len(edges) - 1
        counts[1::2] = mass[half:] + mass[:half][::-1]
    # A point at each edge, and between two edges an interval.
    lower, upper = np.repeat(edges, 2)[:-1], np.repeat(edges, 2)[1:].copy()
    upper[::2] = edges
    lower[1::2], upper[1::2] = edges[:-1], edges[1:]
    kept = counts > 0
    return Moments(lower[kept], upper[kept], counts[kept])
