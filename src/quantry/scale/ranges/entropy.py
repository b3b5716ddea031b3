"""Entropy: the range whose quantized histogram diverges least from the observed one.

The search of onnxruntime and TensorRT (S. Migacz, "8-bit inference with TensorRT", 2017): from a histogram over
``[-max|x|, max|x|]`` ever more bins around zero are kept, the rest is added to the outermost ones, and the kept bins
are merged into as many as there are levels and spread out again. The range with the least Kullback-Leibler divergence
between kept and spread-out bins wins.
"""

import numpy as np
import numpy.typing as npt

from quantry.recipe import Entropy
from quantry.scale.grid import Grid
from quantry.scale.observed import Observed
from quantry.scale.range import Range

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

_SMOOTHING = 1e-4
"""What an empty bin is given, so that no logarithm is infinite; taken off the other bins."""


def entropy_range(observed: Observed, options: Entropy, grid: Grid) -> Range:
    """Return the range of least divergence, within the observed extremes.

    Args:
        observed: The values.
        options: Numbers of bins.
        grid: Not used: the levels compared are those of the options.
    """
    del grid
    extrema = observed.extrema()
    histograms = observed.histogram(options.bins)
    fractions = np.array([_least_divergent(counts, options.quantized_bins) for counts in histograms])
    return Range(fractions[:, 0] * extrema.magnitude, fractions[:, 1] * extrema.magnitude).clamped(extrema)


def _least_divergent(counts: Counts, levels: int) -> tuple[float, float]:
    """Return the ends of the best range as fractions of the largest magnitude."""
    centre = len(counts) // 2
    edges = np.linspace(-1.0, 1.0, len(counts) + 1)
    spans = [(centre - kept, min(centre + kept + 1, len(counts))) for kept in range(levels // 2, centre + 1)]
    divergences = [_divergence(counts, start, end, levels) for start, end in spans]
    start, end = spans[int(np.argmin(divergences))]
    return float(edges[start]), float(edges[end])


def _divergence(counts: Counts, start: int, end: int, levels: int) -> float:
    """Return the divergence between the kept bins and their merged and spread-out selves."""
    kept = counts[start:end].astype(np.float64)
    reference = kept.copy()
    reference[0] += counts[:start].sum()
    reference[-1] += counts[end:].sum()
    width = len(kept) // levels
    whole = levels * width
    merged = kept[:whole].reshape(levels, width).sum(axis=1)
    merged[-1] += kept[whole:].sum()
    filled = (reference[:whole] > 0).reshape(levels, width).sum(axis=1)
    # Counts are whole numbers, and so is what they are spread to; bins beyond the last whole level stay empty.
    spread = np.zeros_like(kept)
    spread[:whole] = np.repeat(np.floor(merged / np.maximum(filled, 1)) * (filled > 0), width)
    return _kullback_leibler(reference, spread)


def _kullback_leibler(reference: Floats, candidate: Floats) -> float:
    if not reference.any() or not candidate.any():
        return float("inf")
    p, q = _smoothed(reference), _smoothed(candidate)
    p, q = p / p.sum(), q / q.sum()
    return float((p * np.log(p / q)).sum())


def _smoothed(counts: Floats) -> Floats:
    empty = counts == 0
    taken = _SMOOTHING * empty.sum() / (len(counts) - empty.sum())
    return np.where(empty, _SMOOTHING, np.maximum(counts - taken, _SMOOTHING))
