"""Entropy: the range whose quantized histogram has the smallest divergence from the observed one.

The search of onnxruntime and TensorRT (S. Migacz, "8-bit inference with TensorRT", 2017). From a histogram over
``[-max|x|, max|x|]``, more and more bins around zero are kept, and the rest is added to the outermost two: the
reference p. The kept bins are merged into as many groups as there are levels, and each group is spread evenly over its
non-empty bins: the candidate q. The range with the smallest divergence ``sum p log(p / q)`` is selected.

All ranges are compared at once. Every sum over bins is a difference of running sums, because q is constant inside a
group and p differs from the histogram only in its outermost bins.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from quantry.numerics.grid import Grid, Range
from quantry.recipe import Entropy
from quantry.scale.values import Observed

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_SMOOTHING = 1e-4
"""Mass given to an empty bin, so that no logarithm is infinite; it is taken from the other bins in equal parts."""


def entropy_range(observed: Observed, options: Entropy, grid: Grid) -> Range:
    """Return the range with the smallest divergence, within the observed extremes.

    Args:
        observed: The values.
        options: Numbers of bins.
        grid: Not used: the number of levels is an option.
    """
    del grid
    extrema = observed.extrema()
    spans = _spans(options)
    edges = np.linspace(-1.0, 1.0, options.bins + 1)
    best = [int(np.argmin(_divergences(counts, spans))) for counts in observed.histogram(options.bins)]
    low, high = edges[spans.start[best]], edges[spans.end[best]]
    return Range(low * extrema.magnitude, high * extrema.magnitude).clamped(extrema)


class _Spans(NamedTuple):
    """The ranges that are compared, as bins of the histogram.

    Attributes:
        start: First bin kept, [S].
        end: Bin after the last one kept, [S].
        groups: Edges of the groups that the kept bins are merged into, [S, levels + 1]. The remaining bins after the
            last edge add to the last group's mass, but nothing is spread to them.
    """

    start: Integers
    end: Integers
    groups: Integers


def _spans(options: Entropy) -> _Spans:
    centre = options.bins // 2
    halves = np.arange(options.quantized_bins // 2, centre + 1)
    start, end = centre - halves, np.minimum(centre + halves + 1, options.bins)
    width = (end - start) // options.quantized_bins
    return _Spans(start, end, start[:, None] + width[:, None] * np.arange(options.quantized_bins + 1))


class _Reference(NamedTuple):
    """Sums over the smoothed reference, for each span and group, [S, levels], or each span, [S].

    Attributes:
        mass: Mass in each group.
        rest: Mass in the remaining bins after the last group.
        filled: Bins of each group that are not empty.
        entropy: Sum of p log p.
    """

    mass: Floats
    rest: Floats
    filled: Integers
    entropy: Floats


def _divergences(counts: Integers, spans: _Spans) -> Floats:
    """Return the Kullback-Leibler divergence of each span, [S]; infinite if no bin of the candidate has mass."""
    running = _running(counts)
    reference = _reference(counts, running, spans)
    merged = np.diff(running[spans.groups])
    merged[:, -1] += running[spans.end] - running[spans.groups[:, -1]]
    # Counts are whole numbers, and so is the mass that is spread to a bin, as in onnxruntime.
    spread = np.where(reference.filled > 0, merged // np.maximum(reference.filled, 1), 0)
    width = spans.groups[:, 1] - spans.groups[:, 0]
    left_over = spans.end - spans.groups[:, -1]
    empty = width * (spread == 0).sum(axis=1) + left_over
    size = spans.end - spans.start
    smoothing = _SMOOTHING * empty / np.maximum(size - empty, 1)
    smooth = np.where(spread == 0, _SMOOTHING, np.maximum(spread - smoothing[:, None], _SMOOTHING))
    total = width * smooth.sum(axis=1) + left_over * _SMOOTHING
    crossed = (reference.mass * np.log(smooth)).sum(axis=1) + reference.rest * np.log(_SMOOTHING)
    mass = max(int(counts.sum()), 1)
    divergence = (reference.entropy - crossed) / mass - np.log(mass) + np.log(total)
    return np.where(empty == size, np.inf, divergence)


def _reference(counts: Integers, running: Integers, spans: _Spans) -> _Reference:
    # The outermost kept bins include everything beyond them.
    below, above = running[spans.start], running[-1] - running[spans.end]
    first, last = counts[spans.start], counts[spans.end - 1]
    left_over = spans.end > spans.groups[:, -1]
    filled_bins = _running(counts > 0)
    filled = np.diff(filled_bins[spans.groups])
    new_first, new_last = (first == 0) & (below > 0), (last == 0) & (above > 0)
    filled[:, 0] += new_first
    filled[:, -1] += new_last & ~left_over
    size = spans.end - spans.start
    all_filled = filled_bins[spans.end] - filled_bins[spans.start] + new_first + new_last
    smoothing = _SMOOTHING * (size - all_filled) / np.maximum(all_filled, 1)
    mass = np.diff(running[spans.groups]).astype(np.float64)
    mass[:, 0] += below
    mass[:, -1] += np.where(left_over, 0, above)
    width = np.diff(spans.groups)
    mass += _SMOOTHING * (width - filled) - smoothing[:, None] * filled
    remainder = np.where(left_over, running[-1] + 0.0 - mass.sum(axis=1), 0.0)
    ends = (np.stack([first, last]), np.stack([first + below, last + above]))
    entropy = _smooth_entropy(counts, spans, ends, smoothing) + (size - all_filled) * _SMOOTHING * np.log(_SMOOTHING)
    return _Reference(mass, remainder, filled, entropy)


def _smooth_entropy(counts: Integers, spans: _Spans, ends: tuple[Integers, Integers], smoothing: Floats) -> Floats:
    """Return the sum of ``(p - taken) log(p - taken)`` over the filled bins of each span, [S].

    `smoothing` is far below one count and differs between spans, so the running sums are those of its Taylor series.
    """
    old, new = ends
    terms = [
        np.diff(_running(term)[np.stack([spans.start, spans.end])], axis=0)[0] + (inserted - removed).sum(axis=0)
        for term, removed, inserted in zip(_taylor(counts), _taylor(old), _taylor(new), strict=True)
    ]
    return np.asarray(terms[0] - smoothing * terms[1] + smoothing**2 * terms[2])


def _taylor(counts: Integers) -> tuple[Floats, Floats, Floats]:
    """Return value, slope and half the curvature of x log x, all 0 if x is 0."""
    filled = counts > 0
    x = np.maximum(counts, 1).astype(np.float64)
    logarithm = np.log(x)
    return x * logarithm * filled, (logarithm + 1) * filled, 0.5 / x * filled


def _running(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the sums before each element and after the last, [n + 1]."""
    sums = np.cumsum(values)
    return np.concatenate([np.zeros(1, sums.dtype), sums])
