"""What the observe stage returns, what other stages may request from it, and how it is stored.

Statistics are stored as a few long arrays, cut by lengths, because thousands of short arrays are slow to read.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from quantry.errors import InternalError
from quantry.memo import Blob
from quantry.numerics.histogram import ChannelStats, TensorStats
from quantry.numerics.scalar_function import ScalarFunction
from quantry.observe.derive import RootStats, TensorTable
from quantry.observe.lineage import Term

NO_CHANNELS = -1
"""Length recorded for statistics of channels that were not requested."""

_PARTS: Mapping[str, tuple[str, type[np.generic]]] = {
    "batch_minima": ("batches", np.float32),
    "batch_maxima": ("batches", np.float32),
    "codes": ("bins", np.uint16),
    "counts": ("bins", np.int64),
}
"""Arrays of each root that are concatenated: which length they have, and their type."""

_CHANNEL_PARTS: Mapping[str, type[np.generic]] = {
    "minima": np.float32,
    "maxima": np.float32,
    "runners_up": np.float32,
    "squares": np.float64,
    "nonzero": np.int64,
}
"""Arrays of `ChannelStats`, with their types."""

_LENGTHS = ("batches", "bins", "channels")


@dataclass(frozen=True, eq=False)
class Statistics:
    """Statistics of every float32 activation of the main graph: its inputs and the outputs of its nodes.

    Attributes:
        tensors: Statistics by tensor name; some are derived from others on first access.
        samples: Number of samples.
    """

    tensors: Mapping[str, TensorStats]
    samples: int

    def __post_init__(self) -> None:
        if not isinstance(self.tensors, TensorTable):
            object.__setattr__(self, "tensors", TensorTable.of_roots(dict(self.tensors)))

    def to_blob(self) -> Blob:
        """Return the stored form: what was observed, and how the rest is derived from it."""
        assert isinstance(self.tensors, TensorTable)
        return write_statistics(self.tensors, self.samples)

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return the statistics that ``to_blob`` stored."""
        return cls(*read_statistics(blob))


@dataclass(frozen=True)
class Needs:
    """Requests beyond the default statistics. They cost extra time, so they are made per tensor.

    Attributes:
        channels: Pairs of tensor name and axis: statistics of each channel along that axis. Axes may be negative. One
            axis per tensor; order and duplicates do not matter.
    """

    channels: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        pairs = {(str(name), int(axis)) for name, axis in self.channels}
        object.__setattr__(self, "channels", tuple(sorted(pairs)))
        if len({name for name, _ in pairs}) < len(pairs):
            raise InternalError(
                f"statistics of channels must be along one axis per tensor, got {self.channels}; in Needs"
            )


NO_NEEDS = Needs()
"""No additional requests."""


def write_statistics(table: TensorTable, samples: int) -> Blob:
    """Return the stored form of statistics."""
    roots = list(table.roots)
    functions = list(dict.fromkeys(term.function for terms in table.lineage.values() for term in terms))
    root_number = {root: number for number, root in enumerate(roots)}
    function_number = {function: number for number, function in enumerate(functions)}
    stats = [table.roots[root].stats for root in roots]
    near = [pair for root in roots for pair in table.roots[root].near_turns.values()]
    return Blob(
        meta={
            "samples": samples,
            "roots": roots,
            "functions": [function.to_plain() for function in functions],
            "turns": [list(table.roots[root].near_turns) for root in roots],
            "tensors": {
                name: [[root_number[t.root], function_number[t.function], t.repeat] for t in terms]
                for name, terms in table.lineage.items()
            },
            "order": list(table.lineage),
        },
        arrays={
            "extrema": np.array([(s.minimum, s.maximum) for s in stats], np.float64).reshape(-1, 2),
            "totals": np.array([(s.count, s.nan_count, s.inf_count) for s in stats], np.int64).reshape(-1, 3),
            "lengths": np.array([_lengths(s) for s in stats], np.int64).reshape(-1, 3),
            "near_turns": _join((side for pair in near for side in pair), np.float32),
            **{name: _join((getattr(s, name) for s in stats), dtype) for name, (_, dtype) in _PARTS.items()},
            **{
                f"channel_{name}": _join((getattr(s.channels, name) for s in stats if s.channels is not None), dtype)
                for name, dtype in _CHANNEL_PARTS.items()
            },
        },
    )


def read_statistics(blob: Blob) -> tuple[TensorTable, int]:
    """Return the statistics that `write_statistics` stored, and the number of samples."""
    meta: Any = blob.meta
    stats = [_read_stats(blob.arrays, row, cuts) for row, cuts in enumerate(_cuts(blob.arrays["lengths"]))]
    near = _read_near(blob.arrays["near_turns"], meta["turns"], [len(s.batch_minima) for s in stats])
    roots = {str(name): RootStats(s, n) for name, s, n in zip(meta["roots"], stats, near, strict=True)}
    names, functions = list(roots), [ScalarFunction.from_plain(plain) for plain in meta["functions"]]
    lineage = {
        str(name): tuple(
            Term(names[root], functions[function], repeat) for root, function, repeat in meta["tensors"][name]
        )
        for name in meta["order"]
    }
    return TensorTable(roots, lineage), int(meta["samples"])


def _lengths(stats: TensorStats) -> tuple[int, int, int]:
    channels = NO_CHANNELS if stats.channels is None else len(stats.channels.minima)
    return len(stats.batch_minima), len(stats.codes), channels


def _join(arrays: Iterable[npt.NDArray[Any] | None], dtype: type[np.generic]) -> npt.NDArray[Any]:
    present = [array for array in arrays if array is not None]
    return np.concatenate(present).astype(dtype, copy=False) if present else np.empty(0, dtype)


def _cuts(lengths: npt.NDArray[Any]) -> list[dict[str, slice]]:
    """Return the position of each root's parts in the concatenated arrays."""
    ends = np.cumsum(np.maximum(lengths, 0), axis=0)
    starts = ends - np.maximum(lengths, 0)
    return [
        {kind: slice(start, end) for kind, start, end in zip(_LENGTHS, first, last, strict=True)}
        for first, last in zip(starts.tolist(), ends.tolist(), strict=True)
    ]


def _read_stats(arrays: Mapping[str, npt.NDArray[Any]], row: int, cuts: Mapping[str, slice]) -> TensorStats:
    minimum, maximum = arrays["extrema"][row].tolist()
    count, nan_count, inf_count = arrays["totals"][row].tolist()
    fields = {name: arrays[name][cuts[kind]] for name, (kind, _) in _PARTS.items()}
    channels = None
    if arrays["lengths"][row, 2] != NO_CHANNELS:
        channels = ChannelStats(*(arrays[f"channel_{name}"][cuts["channels"]] for name in _CHANNEL_PARTS))
    return TensorStats(minimum, maximum, count, nan_count, inf_count, **fields, channels=channels)


def _read_near(
    flat: npt.NDArray[Any], turns: Sequence[Sequence[float]], batches: Sequence[int]
) -> list[dict[float, tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]]]:
    nearest = []
    start = 0
    for positions, count in zip(turns, batches, strict=True):
        pairs = {}
        for position in positions:
            pairs[float(position)] = flat[start : start + count], flat[start + count : start + 2 * count]
            start += 2 * count
        nearest.append(pairs)
    return nearest
