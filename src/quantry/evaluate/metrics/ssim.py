"""Structural similarity."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from quantry.evaluate.metrics.metric import Metric, Pair, value_span

_WINDOW = 11
_SIGMA = 1.5
_C1, _C2 = 0.01**2, 0.03**2
_MOST_CHANNELS_LAST = 4
_CHUNK_ELEMENTS = 1 << 20  # limits the memory of the five blurred copies of a large output


class Ssim(Metric):
    """Structural similarity of Wang, Bovik, Sheikh and Simoncelli (2004), from -1 to 1.

    ``(2 m_r m_q + c1) (2 s_rq + c2) / ((m_r**2 + m_q**2 + c1) (s_r**2 + s_q**2 + c2))`` with means ``m``, variances
    ``s**2`` and covariance ``s_rq`` in a window, ``c1 = (0.01 L)**2`` and ``c2 = (0.03 L)**2``. ``L`` is the span of
    the float model's output: its maximum minus its minimum, the magnitude of a constant output, 1 for zeros.

    An output of rank 3 or 4 whose last two axes have at least 11 elements is a stack of images; so is one of rank 4
    whose last axis (channels) has at most 4 elements and the two before it at least 11. For these, the window is the
    paper's Gaussian, 11 by 11 with a standard deviation of 1.5, at every place where it fits, and the score is the mean
    over all places and images. Any other output is one window with equal weights. The score of several outputs is the
    mean of their scores, weighted by their number of elements.
    """

    name = "ssim"
    higher_is_better = True
    best = 1.0
    worst = -1.0

    def formula(self, reference: NDArray[np.float64], quantized: NDArray[np.float64]) -> float:
        """Return the structural similarity."""
        span = value_span(reference)
        # In units of the span the constants are plain numbers, and squares do not overflow.
        ours, theirs = reference / span, quantized / span
        # Variances do not depend on a common offset, and are precise only near zero.
        offset = float(ours.mean())
        stacks = _images(ours - offset), _images(theirs - offset)
        if stacks[0] is None or stacks[1] is None:
            return float(_similarity(ours - offset, theirs - offset, offset, _whole_mean))
        count, height, width = (int(size) for size in stacks[0].shape)
        step = max(1, _CHUNK_ELEMENTS // (height * width))
        parts = [slice(start, start + step) for start in range(0, count, step)]
        maps = (_similarity(stacks[0][part], stacks[1][part], offset, _gaussian_mean) for part in parts)
        return sum(float(one.sum()) for one in maps) / (count * (height - _WINDOW + 1) * (width - _WINDOW + 1))

    def joint_formula(self, pairs: Sequence[Pair]) -> float:
        """Return the mean of the outputs' scores, weighted by their elements: windows must not cross outputs."""
        scores = [self.formula(*pair) for pair in pairs]
        return float(np.average(scores, weights=[pair.reference.size for pair in pairs]))


def _images(values: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return the values as images of shape (n, height, width), or None if they are not images."""
    shape = values.shape
    if len(shape) == 4 and shape[-1] <= _MOST_CHANNELS_LAST and min(shape[1:3]) >= _WINDOW:
        return np.moveaxis(values, -1, 1).reshape(-1, *shape[1:3])
    if len(shape) in (3, 4) and min(shape[-2:]) >= _WINDOW:
        return values.reshape(-1, *shape[-2:])
    return None


def _similarity(
    ours: NDArray[np.float64],
    theirs: NDArray[np.float64],
    offset: float,
    mean: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Return the paper's equation 13 for every window, of values in units of the span.

    Args:
        ours: Reference minus the offset.
        theirs: Quantized output minus the offset.
        offset: Offset of the means.
        mean: Weighted mean of each window.
    """
    mean_ours, mean_theirs = mean(ours), mean(theirs)
    variances = mean(ours * ours) - mean_ours * mean_ours + mean(theirs * theirs) - mean_theirs * mean_theirs
    covariance = mean(ours * theirs) - mean_ours * mean_theirs
    mean_ours, mean_theirs = mean_ours + offset, mean_theirs + offset
    luminance = (2 * mean_ours * mean_theirs + _C1) / (mean_ours * mean_ours + mean_theirs * mean_theirs + _C1)
    return luminance * (2 * covariance + _C2) / (variances + _C2)


def _whole_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(values.mean())


def _gaussian_mean(images: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Gaussian mean around every pixel whose window fits; the window is separable."""
    rows = sliding_window_view(images, _WINDOW, axis=-2) @ _GAUSSIAN
    return np.asarray(sliding_window_view(rows, _WINDOW, axis=-1) @ _GAUSSIAN)


def _gaussian() -> NDArray[np.float64]:
    weights = np.exp(-0.5 * np.square((np.arange(_WINDOW) - _WINDOW // 2) / _SIGMA))
    return np.asarray(weights / weights.sum())


_GAUSSIAN = _gaussian()
