"""Samples by number, kept in memory as far as they fit."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from quantry.data.calibration_data import CalibrationData

Feeds = Mapping[str, NDArray[Any]]

KEPT_BYTES = 1 << 30
"""How much one book keeps."""


class SampleBook:
    """Reads data once, in order, and hands samples out by number as often as they are asked for.

    A search scores hundreds of models on the same samples; decoding images each time would cost as much as running the
    model. What does not fit into `KEPT_BYTES` is read again.

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
        """Leave what can be read again behind, so that a worker process gets a small message."""
        return {**self.__dict__, "_kept": [], "_bytes": 0, "_full": False}

    def read(self, indices: Iterable[int]) -> Iterator[tuple[int, Feeds]]:
        """Yield chosen samples with their numbers, in increasing order.

        Args:
            indices: Numbers from 0 to ``len(self) - 1``; each is read once.
        """
        wanted = sorted(set(indices))
        yield from ((index, self._kept[index]) for index in wanted if index < len(self._kept))
        beyond = [index for index in wanted if index >= len(self._kept)]
        if beyond:
            yield from self._pass(beyond)

    def fill(self) -> None:
        """Read what is kept in memory, all of it."""
        missing = range(len(self._kept), len(self))
        if not missing:
            return
        for _ in self._pass(list(missing)):
            if self._full:
                return

    def _pass(self, wanted: list[int]) -> Iterator[tuple[int, Feeds]]:
        chosen, last = set(wanted), wanted[-1]
        for index, feeds in enumerate(self.data):
            if index == len(self._kept) and not self._full:
                self._keep(feeds)
            if index in chosen:
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
