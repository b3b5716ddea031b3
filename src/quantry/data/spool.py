"""Samples that can be read only once: they are stored in a temporary file on first reading."""

import os
import tempfile
import threading
import warnings
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
"""For one sample: name, dtype, shape and offset in the file of each array."""


STREAM_LIMIT = 4096
"""Most samples taken from an iterator if the recipe sets no limit; calibration gains nothing from more."""


class Spool(SampleSource):
    """Samples taken one by one from an iterator, and read again from an unnamed temporary file.

    Only as many samples are taken as are needed, and at most `STREAM_LIMIT` unless the caller asks for more: an
    iterator may have no end. The file has no name, so the operating system removes it even if the
    process is killed. Memory holds one sample at a time.
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
        self._turn = threading.Lock()  # guards the file position

    @property
    def size(self) -> int | None:
        """Number of samples, known once the iterator has ended."""
        return None if self._pending is not None else len(self._entries)

    def read(self) -> Iterator[object]:
        """Yield the samples, taking new ones from the iterator after the stored ones."""
        return self._read(0, None)

    def digest(self, limit: int | None) -> Digest:
        """Return the digest of the first samples; each is hashed once."""
        # Reading and hashing release the interpreter lock, so the next sample is taken at the same time.
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
        # New samples are read back as well, because an iterator may reuse its arrays.
        return (self._load(self._entries[index]) for index in self._kept(first, limit))

    def _kept(self, first: int, limit: int | None) -> Iterator[int]:
        """Yield the indices of samples, taking those from the iterator that are not stored yet."""
        for index in range(first, limit) if limit is not None else count(first):
            if limit is None and index == max(STREAM_LIMIT, len(self._entries)):
                self._stop()
                return
            if index == len(self._entries) and not self._draw():
                return
            yield index

    def _stop(self) -> None:
        """Take no more samples, and say so if there are more."""
        if self._pending is None:
            return
        if next(self._pending, None) is not None:
            warnings.warn(
                f"the calibration data did not end after {len(self._entries)} samples; only these are used: set "
                "observe.samples in the recipe, or --samples, to choose how many",
                UserWarning,
                stacklevel=2,
            )
        self._pending = None

    def _draw(self) -> bool:
        """Store one more sample; return whether there was one."""
        if self._failure is not None:
            # A generator that raised ends afterwards; the samples before that must not be taken for all of them.
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
            # The sample is lost, and an interrupted generator ends afterwards as well.
            self._failure = DataError(
                "an iterator of calibration data must be read without interruption, got one; create a new iterator; "
                f"sample {index}"
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
                f"the temporary folder must have enough space for the calibration data, got {error}; sample {index}; "
                "set TMPDIR to a larger disk or use fewer samples"
            ) from error
        return entry

    def _append(self, content: memoryview) -> int:
        """Write at the end of the file; return the offset."""
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
                raise DataError(f"the temporary copy of the calibration data was truncated; input {name!r}")
            sample[name] = array
        return sample

    def _fill(self, buffer: memoryview, offset: int) -> int:
        """Read from an offset of the file; return the number of bytes.

        Forked processes share the file's position, so it cannot be relied on.
        """
        if not hasattr(os, "preadv"):  # Windows, which cannot fork either
            with self._turn:
                self._file.seek(offset)
                return int(self._file.readinto(buffer))  # type: ignore[attr-defined]
        done = 0
        while done < len(buffer):
            count = os.preadv(self._file.fileno(), [buffer[done:]], offset + done)
            if count == 0:
                break
            done += count
        return done

    def __getstate__(self) -> dict[str, Any]:
        """Include all samples, for a process that is spawned."""
        for _ in self._read(len(self._entries), None):
            pass
        content = bytearray(os.fstat(self._file.fileno()).st_size)
        self._fill(memoryview(content), 0)
        return {**self.__dict__, "_file": bytes(content), "_turn": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Write the samples to a temporary file of this process."""
        self.__dict__ |= state
        self._open()
        self._append(memoryview(state["_file"]))


def drain(reader: Any) -> Iterator[object]:
    """Yield what an onnxruntime data reader's ``get_next()`` returns, until it returns None.

    Raises:
        DataError: The first result is None.
    """
    sample = reader.get_next()
    if sample is None:
        raise DataError(
            "a data reader must return at least one sample, got None from the first get_next(); if it was used before, "
            f"create a new one; in {type(reader).__name__}"
        )
    while sample is not None:
        yield sample
        sample = reader.get_next()
