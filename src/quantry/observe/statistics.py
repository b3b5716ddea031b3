"""What the observe stage returns: the statistics of every float tensor of the model."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

import numpy as np
import numpy.typing as npt

from quantry.memo import Blob
from quantry.observe.tensor_stats import TensorStats


@dataclass(frozen=True)
class Statistics:
    """Statistics of every float32 activation of the main graph: its inputs and its nodes' outputs.

    Attributes:
        tensors: Statistics by tensor name.
        samples: Number of samples that were fed.
    """

    tensors: Mapping[str, TensorStats]
    samples: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))

    def to_blob(self) -> Blob:
        """Return the stored form: a few long arrays, cut by lengths, rather than thousands of short ones."""
        stats = list(self.tensors.values())
        return Blob(
            meta={"samples": self.samples, "names": list(self.tensors)},
            arrays={
                "extrema": np.array([(s.minimum, s.maximum) for s in stats], np.float64).reshape(-1, 2),
                "totals": np.array([(s.count, s.nan_count, s.inf_count) for s in stats], np.int64).reshape(-1, 3),
                "lengths": np.array([_lengths(s) for s in stats], np.int64).reshape(-1, 3),
                "batch_minima": _join((s.batch_minima for s in stats), np.float32),
                "batch_maxima": _join((s.batch_maxima for s in stats), np.float32),
                "codes": _join((s.codes for s in stats), np.uint16),
                "counts": _join((s.counts for s in stats), np.int64),
                "channel_minima": _join((s.channel_minima for s in stats), np.float32),
                "channel_maxima": _join((s.channel_maxima for s in stats), np.float32),
            },
        )

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return the statistics that ``to_blob`` stored."""
        names, samples = blob.meta["names"], blob.meta["samples"]
        assert isinstance(names, list)
        assert isinstance(samples, int)
        # One row of cutting points for each tensor and one column for each kind of array.
        lengths = blob.arrays["lengths"]
        ends = np.cumsum(np.maximum(lengths, 0), axis=0)
        starts = ends - np.maximum(lengths, 0)
        tensors = {str(name): _read(blob.arrays, row, starts[row], ends[row]) for row, name in enumerate(names)}
        return cls(tensors, samples)


NO_CHANNELS = -1
"""Length recorded for channel extrema that were not asked for."""


def _lengths(stats: TensorStats) -> tuple[int, int, int]:
    channels = NO_CHANNELS if stats.channel_minima is None else len(stats.channel_minima)
    return len(stats.batch_minima), len(stats.codes), channels


def _join(parts: "Iterable[npt.NDArray[np.generic] | None]", dtype: type[np.generic]) -> npt.NDArray[np.generic]:
    present = [part for part in parts if part is not None]
    return np.concatenate(present).astype(dtype, copy=False) if present else np.empty(0, dtype)


def _read(
    arrays: Mapping[str, npt.NDArray[np.generic]],
    row: int,
    start: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
) -> TensorStats:
    batches, bins, channels = (slice(int(a), int(b)) for a, b in zip(start, end, strict=True))
    has_channels = bool(arrays["lengths"][row, 2] != NO_CHANNELS)
    minimum, maximum = arrays["extrema"][row].tolist()
    count, nan_count, inf_count = arrays["totals"][row].tolist()
    return TensorStats(
        minimum=minimum,
        maximum=maximum,
        count=count,
        nan_count=nan_count,
        inf_count=inf_count,
        batch_minima=arrays["batch_minima"][batches].astype(np.float32, copy=False),
        batch_maxima=arrays["batch_maxima"][batches].astype(np.float32, copy=False),
        codes=arrays["codes"][bins].astype(np.uint16, copy=False),
        counts=arrays["counts"][bins].astype(np.int64, copy=False),
        channel_minima=arrays["channel_minima"][channels].astype(np.float32, copy=False) if has_channels else None,
        channel_maxima=arrays["channel_maxima"][channels].astype(np.float32, copy=False) if has_channels else None,
    )
