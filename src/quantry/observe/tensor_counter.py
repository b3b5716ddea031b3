"""Counts the values of one tensor as samples stream past."""

from typing import Any

import numpy as np
import numpy.typing as npt

from quantry.observe.tensor_stats import TensorStats

FloatArray = npt.NDArray[np.float32]

CODES = 1 << 16
INFINITY = 0x7F80
"""First code whose exponent says infinity or NaN."""

CHUNK = 1 << 18
"""Values counted at a time: few enough for their indices to stay in the cache."""


class TensorCounter:
    """Mutable statistics of one tensor; `freeze` gives the value that travels.

    Args:
        channel_axis: Axis along which extrema of each channel are kept, or None.
    """

    def __init__(self, channel_axis: int | None = None) -> None:
        self._channel_axis = channel_axis
        self._histogram: npt.NDArray[np.int64] = np.zeros(CODES, np.int64)
        self._count = 0
        self._nan_count = 0
        self._inf_count = 0
        self._minima: list[float] = []
        self._maxima: list[float] = []
        self._channels: tuple[FloatArray, FloatArray] | None = None

    def add(self, values: npt.NDArray[Any]) -> None:
        """Count one sample's values, float32 of any shape."""
        flat = values.reshape(-1)
        self._count += flat.size
        for start in range(0, flat.size, CHUNK):
            codes = flat[start : start + CHUNK].view(np.uint32) >> 16
            self._histogram += np.bincount(codes, minlength=CODES)
        low, high = self._extrema(flat)
        self._minima.append(low)
        self._maxima.append(high)
        if self._channel_axis is not None:
            self._add_channels(values, self._channel_axis)

    def freeze(self) -> TensorStats:
        """Return what has been counted."""
        finite = self._histogram.copy()
        finite[INFINITY:0x8000] = 0
        finite[0x8000 | INFINITY :] = 0
        codes = np.flatnonzero(finite)
        minima, maxima = np.array(self._minima, np.float32), np.array(self._maxima, np.float32)
        return TensorStats(
            minimum=float(minima.min(initial=np.inf)),
            maximum=float(maxima.max(initial=-np.inf)),
            count=self._count,
            nan_count=self._nan_count,
            inf_count=self._inf_count,
            batch_minima=minima,
            batch_maxima=maxima,
            codes=codes.astype(np.uint16),
            counts=finite[codes],
            channel_minima=None if self._channels is None else self._channels[0],
            channel_maxima=None if self._channels is None else self._channels[1],
        )

    def _extrema(self, flat: FloatArray) -> tuple[float, float]:
        if flat.size == 0:
            return np.inf, -np.inf
        low, high = flat.min(), flat.max()
        if np.isfinite(low) and np.isfinite(high):
            return float(low), float(high)
        finite = flat[np.isfinite(flat)]
        nan_count = int(np.isnan(flat).sum())
        self._nan_count += nan_count
        self._inf_count += flat.size - finite.size - nan_count
        return float(finite.min(initial=np.inf)), float(finite.max(initial=-np.inf))

    def _add_channels(self, values: FloatArray, axis: int) -> None:
        rows = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
        finite = np.isfinite(rows)
        low = np.min(rows, axis=1, initial=np.inf, where=finite)
        high = np.max(rows, axis=1, initial=-np.inf, where=finite)
        if self._channels is not None:
            low, high = np.minimum(low, self._channels[0]), np.maximum(high, self._channels[1])
        self._channels = low, high
