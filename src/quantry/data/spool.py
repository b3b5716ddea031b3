"""Keeps what can be read only once: samples go to a temporary file the first time they are read."""

import os
import tempfile
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import IO, Any

import numpy as np

from quantry.data.calibration_data import SampleSource
from quantry.data.conform import Sample, Signatures, conform
from quantry.errors import DataError, StoreError
from quantry.memo import Digest, fingerprint

Entry = list[tuple[str, np.dtype[Any], tuple[int, ...], int]]
"""Of one sample: name, dtype, shape and offset in the file of each array."""


class Spool(SampleSource):
    """Samples drained one by one from an iterator, and read again from a nameless temporary file.

    Only as many samples are drawn as somebody asks for. The file has no name, so the system removes it even if the
    process is killed; memory holds one sample at a time.
    """

    def __init__(self, samples: Iterator[object], inputs: Signatures) -> None:
        self._pending: Iterator[object] | None = samples
        self._inputs = inputs
        self._entries: list[Entry] = []
        self._digests: list[Digest] = []
        self._failure: Exception | None = None
        self._open()

    def _open(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="quantry-")  # noqa: SIM115 - lives as long as self
        weakref.finalize(self, self._file.close)
        self._turn = threading.Lock()  # for whoever moves the file's position

    @property
    def size(self) -> int | None:
        """Number of samples, known once the iterator has ended."""
        return None if self._pending is not None else len(self._entries)

    def read(self) -> Iterator[object]:
        """Yield the samples, drawing new ones after those already kept."""
        return self._read(0, None)

    def digest(self, limit: int | None) -> Digest:
        """Return the digest of the first samples; each is hashed once, those not drawn yet while they are drawn."""
        # Reading and hashing let other threads run, so the next sample is drawn beside them.
        with ThreadPoolExecutor(1, thread_name_prefix="quantry-digest") as executor:
            pending: Future[Digest] | None = None
            for index in self._kept(len(self._digests), limit):
                if pending is not None:
                    self._digests.append(pending.result())
                pending = executor.submit(self._fingerprint, index)
            if pending is not None:
                self._digests.append(pending.result())
        return fingerprint(tuple(self._digests[:limit]))

    def _fingerprint(self, index: int) -> Digest:
        return fingerprint(self._load(self._entries[index]))

    def _read(self, first: int, limit: int | None) -> Iterator[Sample]:
        # Also what was just drawn is read back: readers may fill one array again and again.
        return (self._load(self._entries[index]) for index in self._kept(first, limit))

    def _kept(self, first: int, limit: int | None) -> Iterator[int]:
        """Yield the places of samples, drawing those that were not drawn yet."""
        for index in range(first, limit) if limit is not None else count(first):
            if index == len(self._entries) and not self._draw():
                return
            yield index

    def _draw(self) -> bool:
        """Keep one more sample; return whether there was one."""
        if self._failure is not None:
            # A generator that has failed only ends afterwards; what came before it must not pass for the whole.
            raise self._failure
        if self._pending is None:
            return False
        index = len(self._entries)
        try:
            raw = next(self._pending)
            self._entries.append(self._store(conform(raw, self._inputs, index), index))
        except StopIteration:
            self._pending = None
            return False
        except Exception as error:
            self._failure = error
            raise
        except BaseException:
            # The sample is lost, and a generator that was interrupted only ends afterwards, too.
            self._failure = DataError(
                "calibration data that can be read once must be read without interruption, got one; give the data "
                f"anew; sample {index}"
            )
            raise
        return True

    def _store(self, sample: Sample, index: int) -> Entry:
        entry: Entry = []
        try:
            for name, array in sample.items():
                entry.append((name, array.dtype, array.shape, self._append(array.reshape(-1).view(np.uint8).data)))
        except OSError as error:
            raise StoreError(
                f"the temporary folder must have room for the calibration data, got {error}; sample {index}; "
                "set TMPDIR to a larger disk or use fewer samples"
            ) from error
        return entry

    def _append(self, content: memoryview) -> int:
        """Write at the end of the file, and return where that was."""
        with self._turn:
            offset = self._file.seek(0, os.SEEK_END)
            self._file.write(content)
            self._file.flush()
        return offset

    def _load(self, entry: Entry) -> Sample:
        sample = {}
        for name, dtype, shape, offset in entry:
            array = np.empty(shape, dtype)
            if self._fill(array.reshape(-1).view(np.uint8).data, offset) != array.nbytes:
                raise DataError(f"the temporary copy of the calibration data was cut short; input {name!r}")
            sample[name] = array
        return sample

    def _fill(self, buffer: memoryview, offset: int) -> int:
        """Read what is at a place of the file, and return how many bytes there were.

        Forked processes share the file with its position, so that one must not rely on where another left it.
        """
        if not hasattr(os, "preadv"):  # Windows, which cannot fork either
            with self._turn:
                self._file.seek(offset)
                return int(self._file.readinto(buffer))  # type: ignore[attr-defined]
        done = 0
        while done < len(buffer):
            got = os.preadv(self._file.fileno(), [buffer[done:]], offset + done)
            if got == 0:
                break
            done += got
        return done

    def __getstate__(self) -> dict[str, Any]:
        """Take all samples along, for a process that is started anew."""
        for _ in self._read(len(self._entries), None):
            pass
        content = bytearray(os.fstat(self._file.fileno()).st_size)
        self._fill(memoryview(content), 0)
        return {**self.__dict__, "_file": bytes(content), "_turn": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Put the samples into a temporary file of this process."""
        self.__dict__ |= state
        self._open()
        self._append(memoryview(state["_file"]))


def drain(reader: Any) -> Iterator[object]:
    """Yield what an onnxruntime data reader's ``get_next()`` returns until it returns None.

    Raises:
        DataError: It returns None at once.
    """
    sample = reader.get_next()
    if sample is None:
        raise DataError(
            "a data reader must return at least one sample, got None from get_next() at once: used up already? make a "
            f"new one; in {type(reader).__name__}"
        )
    while sample is not None:
        yield sample
        sample = reader.get_next()
