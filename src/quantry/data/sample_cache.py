"""Samples by index, cached in memory up to a limit."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from quantry.data.calibration_data import CalibrationData

Feeds = Mapping[str, NDArray[Any]]

KEPT_BYTES = 1 << 30
"""Maximum number of bytes that one cache holds."""


class SampleCache:
    """Reads data once, in order, and returns samples by index as often as needed.

    A search scores hundreds of models on the same samples; decoding images every time would take as long as running the
    model. Samples beyond `KEPT_BYTES` are read again.

    Attributes:
        data: The samples.
    """

    def __init__(self, data: CalibrationData) -> None:
        self.data = data
        self._kept: list[Feeds] = []
        self._bytes = 0
        self._full = False
        self._size = data.size

    def __len__(self) -> int:
        if self._size is None:
            self._size = sum(1 for _ in self.data)
        return self._size

    def __getstate__(self) -> dict[str, Any]:
        """Drop the cached samples, so that only a small message is sent to a worker process."""
        return {**self.__dict__, "_kept": [], "_bytes": 0, "_full": False}

    def read(self, indices: Iterable[int]) -> Iterator[tuple[int, Feeds]]:
        """Yield the selected samples with their indices, in increasing order.

        Args:
            indices: From 0 to ``len(self) - 1``; duplicates are read once.
        """
        ordered = sorted(set(indices))
        yield from ((index, self._kept[index]) for index in ordered if index < len(self._kept))
        beyond = [index for index in ordered if index >= len(self._kept)]
        if beyond:
            yield from self._pass(beyond)

    def fill(self) -> None:
        """Read all samples that the cache can hold."""
        missing = range(len(self._kept), len(self))
        if not missing:
            return
        for _ in self._pass(list(missing)):
            if self._full:
                return

    def _pass(self, indices: list[int]) -> Iterator[tuple[int, Feeds]]:
        selected, last = set(indices), indices[-1]
        for index, feeds in enumerate(self.data):
            if index == len(self._kept) and not self._full:
                self._keep(feeds)
            if index in selected:
                yield index, feeds
            if index == last:
                return

    def _keep(self, feeds: Feeds) -> None:
        size = sum(array.nbytes for array in feeds.values())
        if self._bytes + size > KEPT_BYTES:
            self._full = True
            return
        self._kept.append(feeds)
        self._bytes += size
