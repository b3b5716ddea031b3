"""What every `quantry.memo.Store` must do."""

import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quantry.memo import Blob, Digest, Store, fingerprint
from quantry.notes import Note, NoteKind

_DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
)


class StoreSuite:
    """Inherit as ``class TestMyStore(StoreSuite)`` and supply the fixture `store`: empty, for 100 MB and more.

    Example:
        ::

            class TestMemoryStore(StoreSuite):
                @pytest.fixture
                def store(self):
                    return MemoryStore()
    """

    @pytest.fixture
    def store(self) -> Store:
        """The store under test; an empty one for every test."""
        raise NotImplementedError("Supply the fixture `store`.")

    def test_lookup_of_an_unknown_key_is_none(self, store: Store) -> None:
        """A key that nobody remembered has no result."""
        assert store.lookup(fingerprint("unknown")) is None

    def test_lookup_returns_what_was_remembered(self, store: Store) -> None:
        """The index gives the digest back, as a Digest."""
        key, result = fingerprint("key"), fingerprint("result")
        store.remember(key, result)
        digest = store.lookup(key)
        assert digest == result
        assert isinstance(digest, Digest)

    def test_remember_replaces_an_earlier_result(self, store: Store) -> None:
        """The last result remembered under a key counts."""
        key = fingerprint("key")
        store.remember(key, fingerprint("old"))
        store.remember(key, fingerprint("new"))
        assert store.lookup(key) == fingerprint("new")

    def test_notes_of_an_unknown_key_are_empty(self, store: Store) -> None:
        """A key that nobody remembered has no notes."""
        assert store.notes(fingerprint("unknown")) == ()

    def test_notes_are_remembered_with_the_key(self, store: Store) -> None:
        """Two calls with equal results keep their own notes, and a new entry replaces the old notes."""
        key, other_key, result = fingerprint("one"), fingerprint("two"), fingerprint("result")
        first = Note.of("{name!r} lost {share:.1%}", NoteKind.IMPORTANT, name="été \n", share=0.1), Note.of("first")
        store.remember(key, result, first)
        store.remember(other_key, result, [Note.of("second")])
        assert (store.notes(key), store.notes(other_key)) == (first, (Note.of("second"),))
        store.remember(key, result)
        assert store.notes(key) == ()

    def test_blobs_are_stored_without_notes(self, store: Store) -> None:
        """Notes belong to a key, and a blob may have several keys."""
        store.put(fingerprint("noted"), Blob(meta={"a": 1}, notes=(Note.of("note"),)))
        stored = store.get(fingerprint("noted"))
        assert stored is not None
        assert stored.notes == ()

    def test_remember_needs_no_blob(self, store: Store) -> None:
        """The two levels are independent: a result too large to keep is still known."""
        store.remember(fingerprint("key"), fingerprint("result"))
        assert store.get(fingerprint("result")) is None

    def test_get_of_an_unknown_result_is_none(self, store: Store) -> None:
        """A blob that nobody put is not there."""
        assert store.get(fingerprint("unknown")) is None

    def test_get_returns_an_equal_blob(self, store: Store) -> None:
        """All three kinds of content come back."""
        blob = Blob(
            meta={"title": "été", "nested": {"list": [1, 2.5, None, True, "x"], "empty": {}}, "tiny": 5e-324},
            arrays={"weight": np.arange(6.0).reshape(2, 3), "/odd name\n\"'": np.array([1, -1], np.int8)},
            files={"model.onnx": bytes(range(256)), "empty.bin": b""},
        )
        store.put(blob.digest(), blob)
        stored = store.get(blob.digest())
        assert stored == blob
        assert stored is not None
        assert stored.meta == blob.meta
        assert list(stored.arrays) == list(blob.arrays)
        assert dict(stored.files) == dict(blob.files)

    def test_get_keeps_floats_that_json_does_not_know(self, store: Store) -> None:
        """Infinities, NaN and the sign of zero survive."""
        blob = Blob(meta={"values": [float("inf"), float("-inf"), float("nan"), -0.0]})
        store.put(blob.digest(), blob)
        assert store.get(blob.digest()) == blob

    def test_get_of_an_empty_blob(self, store: Store) -> None:
        """A blob with nothing inside is not the same as no blob."""
        store.put(fingerprint("nothing"), Blob())
        assert store.get(fingerprint("nothing")) == Blob()

    @pytest.mark.parametrize("dtype", _DTYPES)
    @pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3)], ids=str)
    def test_arrays_keep_dtype_and_shape(self, store: Store, dtype: str, shape: tuple[int, ...]) -> None:
        """Every dtype comes back exactly, also without dimensions or elements."""
        array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
        store.put(fingerprint("array"), Blob(arrays={"a": np.array([1], np.int8), "x": array, "z": np.ones(3)}))
        stored = store.get(fingerprint("array"))
        assert stored is not None
        assert stored.arrays["x"].dtype == array.dtype
        assert stored.arrays["x"].shape == array.shape
        np.testing.assert_array_equal(stored.arrays["x"], array)

    @pytest.mark.parametrize(
        "array",
        [np.arange(12).reshape(3, 4).T, np.arange(12)[::-2], np.arange(4, dtype=">i4"), np.broadcast_to(1.5, (2, 3))],
        ids=["transposed", "reversed", "big-endian", "broadcast"],
    )
    def test_arrays_of_any_layout_keep_their_elements(self, store: Store, array: NDArray[Any]) -> None:
        """The layout in memory does not matter."""
        store.put(fingerprint("array"), Blob(arrays={"x": array}))
        stored = store.get(fingerprint("array"))
        assert stored is not None
        np.testing.assert_array_equal(stored.arrays["x"], array)

    def test_arrays_come_back_read_only_and_aligned(self, store: Store) -> None:
        """Nobody can change what is kept, and no library trips over an odd address."""
        store.put(
            fingerprint("array"),
            Blob(arrays={"byte": np.array([1], np.int8), "x": np.ones(3), "y": np.array([2], np.float16)}),
        )
        stored = store.get(fingerprint("array"))
        assert stored is not None
        assert not any(array.flags.writeable for array in stored.arrays.values())
        assert all(array.flags.aligned for array in stored.arrays.values())

    def test_changing_what_was_put_changes_nothing(self, store: Store) -> None:
        """The store owns what it keeps."""
        array = np.ones(4)
        store.put(fingerprint("array"), Blob(arrays={"x": array}))
        array[:] = 7
        stored = store.get(fingerprint("array"))
        assert stored is not None
        np.testing.assert_array_equal(stored.arrays["x"], np.ones(4))

    def test_changing_what_was_got_changes_nothing(self, store: Store) -> None:
        """Two readers do not see each other."""
        store.put(fingerprint("list"), Blob(meta={"list": [1, 2]}))
        first = store.get(fingerprint("list"))
        assert first is not None
        first.meta["list"].append(3)
        second = store.get(fingerprint("list"))
        assert second is not None
        assert second.meta["list"] == [1, 2]

    def test_put_of_a_kept_blob_is_harmless(self, store: Store) -> None:
        """Two processes that compute the same result both put it."""
        blob = Blob(files={"a.txt": b"a"})
        store.put(blob.digest(), blob)
        store.put(blob.digest(), blob)
        assert store.get(blob.digest()) == blob

    def test_large_blobs_come_back(self, store: Store) -> None:
        """More than any buffer on the way."""
        blob = Blob(arrays={"x": np.arange(1_500_000)}, files={"y.bin": b"0123456789" * 300_001})
        store.put(blob.digest(), blob)
        assert store.get(blob.digest()) == blob

    def test_many_threads_read_and_write(self, store: Store) -> None:
        """Threads share a store without help."""

        def work(number: int) -> bool:
            blob = Blob(meta={"number": number % 10}, arrays={"x": np.full(100, number % 10)})
            store.put(blob.digest(), blob)
            store.remember(fingerprint(number), blob.digest())
            return store.get(blob.digest()) == blob and store.lookup(fingerprint(number)) == blob.digest()

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(80)))

    def test_threads_that_put_the_same_blob_at_once_all_find_it(self, store: Store) -> None:
        """Nobody takes what another has just put for something damaged."""
        blobs = (Blob(meta={"number": number}, arrays={"x": np.full(100, number)}) for number in range(50))
        assert all(found_at_once(store, blobs))


def found_at_once(store: Store, blobs: Iterable[Blob]) -> Iterator[bool]:
    """Yield for each blob whether all of eight threads find it that ask for it, put it and ask again, at once."""
    gate = Barrier(8)

    def work(blob: Blob) -> bool:
        gate.wait()
        store.get(blob.digest())
        store.put(blob.digest(), blob)
        return store.get(blob.digest()) == blob

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            for blob in blobs:
                yield all(list(pool.map(work, [blob] * 8)))
    finally:
        sys.setswitchinterval(interval)
