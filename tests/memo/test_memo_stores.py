import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from quantry.errors import RecipeError, StoreError
from quantry.files import temporary_name
from quantry.memo import Blob, Digest, DirectoryStore, MemoryStore, Store, fingerprint, prune_store
from quantry.testing.store_suite import StoreSuite, found_at_once


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()


class TestDirectoryStore(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return DirectoryStore(tmp_path / "store")


def numbered(number: int, size: int = 10_000) -> Blob:
    return Blob(meta={"number": number}, arrays={"x": np.full(size // 4, number, np.int32)}, files={"f.bin": b"abc"})


def put(store: Store, number: int, size: int = 10_000) -> Digest:
    blob = numbered(number, size)
    store.put(blob.digest(), blob)
    return blob.digest()


def size_on_disk(path: Path) -> int:
    return sum(part.stat().st_size for part in (path / "blobs").rglob("*") if part.is_file())


@pytest.fixture(params=["memory", "directory"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Room for three blobs of 10 kB."""
    limit = 35_000
    return MemoryStore(limit) if request.param == "memory" else DirectoryStore(tmp_path, limit)


def test_least_recently_used_blob_is_evicted_first(small: Store) -> None:
    first, second, third = (put(small, number) for number in range(3))
    assert small.get(first) is not None
    fourth = put(small, 3)
    assert small.get(second) is None
    assert [small.get(kept) == numbered(number) for kept, number in ((first, 0), (third, 2), (fourth, 3))] == [True] * 3


def test_put_of_a_stored_blob_counts_as_use(small: Store) -> None:
    first, second, _ = (put(small, number) for number in range(3))
    put(small, 0)
    put(small, 3)
    assert small.get(second) is None
    assert small.get(first) is not None


def test_blob_larger_than_the_limit_is_not_stored_and_evicts_nothing(small: Store) -> None:
    first = put(small, 1)
    large = put(small, 2, size=40_000)
    assert small.get(large) is None
    assert small.get(first) is not None


def test_index_survives_eviction(small: Store) -> None:
    first = put(small, 0)
    small.remember(fingerprint("key"), first)
    for number in range(1, 6):
        put(small, number)
    assert small.get(first) is None
    assert small.lookup(fingerprint("key")) == first


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_must_be_positive(limit: int, tmp_path: Path) -> None:
    for make in (lambda: MemoryStore(limit), lambda: DirectoryStore(tmp_path, limit)):
        with pytest.raises(RecipeError, match=rf"must be positive; got {limit}"):
            make()


def test_directory_stays_within_its_limit(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, 100_000)
    for number in range(40):
        put(store, number, size=random.Random(number).randrange(4, 30_000))
        assert size_on_disk(tmp_path) <= 100_000
    assert size_on_disk(tmp_path) > 50_000


def test_constructor_and_reading_write_nothing(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    assert store.lookup(fingerprint("a")) is None
    assert store.get(fingerprint("a")) is None
    assert not (tmp_path / "store").exists()


def test_two_stores_on_one_path_see_each_other(tmp_path: Path) -> None:
    first, second = DirectoryStore(tmp_path), DirectoryStore(str(tmp_path))
    result = put(first, 1)
    first.remember(fingerprint("key"), result)
    assert second.get(result) == numbered(1)
    assert second.lookup(fingerprint("key")) == result


def test_layout_is_as_documented_without_temporary_files(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    result, key = put(store, 1), fingerprint("key")
    store.remember(key, result)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    blob = f"blobs/{result[:2]}/{result}"
    parts = ("manifest.json", "meta.json", "arrays.safetensors", "files/f.bin", "used")
    assert files == {f"index/{key[:2]}/{key}.json", *(f"{blob}/{part}" for part in parts)}
    assert json.loads((tmp_path / blob / "meta.json").read_text()) == {"number": 1}


PARTS = ["manifest.json", "meta.json", "arrays.safetensors", "files/f.bin"]


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def become_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("damage", [flip_a_bit, cut, empty, Path.unlink, become_a_directory])
def test_damaged_blob_is_deleted_and_can_be_stored_again(tmp_path: Path, part: str, damage) -> None:
    store = DirectoryStore(tmp_path)
    result = put(store, 1)
    directory = tmp_path / "blobs" / result[:2] / result
    if part == "manifest.json" and damage is cut:
        damage = empty  # The last byte is a newline; without it the file is still valid JSON.
    damage(directory / part)
    assert store.get(result) is None
    assert not directory.exists()
    put(store, 1)
    assert store.get(result) == numbered(1)


def test_flipped_bit_in_a_manifest_never_returns_a_wrong_blob(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    blob = Blob(meta={"a": 1}, files={"f": b"12"})
    store.put(blob.digest(), blob)
    manifest = tmp_path / "blobs" / blob.digest()[:2] / blob.digest() / "manifest.json"
    original = manifest.read_bytes()
    for position in range(len(original)):
        store.put(blob.digest(), blob)
        damaged = bytearray(original)
        damaged[position] ^= 1 << (position % 8)
        manifest.write_bytes(damaged)
        assert store.get(blob.digest()) in (None, blob)


def test_put_replaces_a_blob_without_manifest(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    result = put(store, 1)
    (tmp_path / "blobs" / result[:2] / result / "manifest.json").unlink()
    put(store, 1)
    assert store.get(result) == numbered(1)


def test_damaged_index_entry_is_unknown(tmp_path: Path) -> None:
    store, key = DirectoryStore(tmp_path), fingerprint("key")
    store.remember(key, fingerprint("result"))
    entry = tmp_path / "index" / key[:2] / f"{key}.json"
    original = entry.read_bytes()
    for position in range(len(original)):
        damaged = bytearray(original)
        damaged[position] ^= 1 << (position % 8)
        entry.write_bytes(damaged)
        assert store.lookup(key) in (None, fingerprint("result"))
    for damaged_text in (b"", b"[]", b"{}", b'{"result": 3}', original[:-9]):
        entry.write_bytes(damaged_text)
        assert store.lookup(key) is None
    store.remember(key, fingerprint("result"))
    assert store.lookup(key) == fingerprint("result")


def test_old_leftovers_of_killed_writers_are_removed(tmp_path: Path) -> None:
    old, young, busy = (tmp_path / "temp" / name for name in ("1-old", "2-young", "3-busy"))
    for leftover in (old, young, busy):
        (leftover / "blob").mkdir(parents=True)
        (leftover / "blob" / "meta.json").touch()
    long_ago = time.time() - 7200
    for path in (*old.rglob("*"), old, busy / "blob", busy):
        os.utime(path, (long_ago, long_ago))
    put(DirectoryStore(tmp_path), 1)
    assert [leftover.exists() for leftover in (old, young, busy)] == [False, True, True]


def test_leftover_of_a_dead_process_is_removed_at_once(tmp_path: Path) -> None:
    leftover = tmp_path / "temp" / temporary_name("entry").replace(f"-{os.getpid()}-", "-4194305-")
    leftover.mkdir(parents=True)
    put(DirectoryStore(tmp_path), 1)
    assert not leftover.exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes")
@pytest.mark.timeout(60)
def test_pipe_as_an_entry_is_refused_with_its_name(tmp_path: Path) -> None:
    store, key = DirectoryStore(tmp_path), fingerprint("key")
    store.remember(key, fingerprint("result"))
    (entry,) = (tmp_path / "index").rglob("*.json")
    entry.unlink()
    os.mkfifo(entry)
    for use in (lambda: store.lookup(key), lambda: store.remember(key, fingerprint("result"))):
        with pytest.raises(StoreError, match=rf"a pipe; at {entry}"):
            use()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes")
@pytest.mark.timeout(60)
def test_pipe_as_a_part_of_a_blob_is_damage(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    put(store, 1)
    (part,) = (tmp_path / "blobs").rglob("meta.json")
    part.unlink()
    os.mkfifo(part)
    assert store.get(numbered(1).digest()) is None
    put(store, 1)
    assert store.get(numbered(1).digest()) == numbered(1)


@pytest.mark.skipif(os.name == "nt", reason="Windows needs rights for links")
@pytest.mark.parametrize("name", ["index", "blobs", "temp"])
def test_store_never_writes_or_deletes_through_a_link(name: str, tmp_path: Path) -> None:
    outside, path = tmp_path / "outside", tmp_path / "store"
    (outside / "shard" / "blob").mkdir(parents=True)
    path.mkdir()
    (path / name).symlink_to(outside)
    store = DirectoryStore(path)

    def use() -> None:
        store.remember(fingerprint(1), fingerprint(2))
        put(store, 1)

    with pytest.raises(StoreError, match=f"a link; at {path / name}"):
        use()
    prune_store(path, 1)
    assert [file.name for file in sorted(outside.rglob("*"))] == ["shard", "blob"]


def test_path_that_is_a_file_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = DirectoryStore(tmp_path / "file")
    for use in (
        lambda: put(store, 1),
        lambda: store.remember(fingerprint(1), fingerprint(2)),
        lambda: store.lookup(fingerprint(1)),
    ):
        with pytest.raises(StoreError, match=r"directory must be .*Not a directory.*at .*file\. .*another directory"):
            use()


def run(script: str, *arguments: object) -> subprocess.Popen[str]:
    prelude = "import sys\nimport numpy as np\nfrom quantry.memo import Blob, Digest, DirectoryStore, fingerprint\n"
    command = [sys.executable, "-W", "error", "-c", prelude + script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_full_disk_is_a_store_error_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files makes a write fail midway, like a full disk."""
    script = """
import resource
from quantry.errors import StoreError
resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000))
store = DirectoryStore(sys.argv[1])
try:
    store.put(fingerprint(1), Blob(arrays={"x": np.ones(1_000_000)}))
except StoreError as error:
    print(error)
"""
    with run(script, tmp_path / "store") as process:
        output, errors = process.communicate(timeout=60)
    assert "disk must not be full" in output, errors
    assert str(tmp_path / "store") in output
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []
    assert list((tmp_path / "store" / "temp").iterdir()) == []


def test_directory_without_permissions_is_a_store_error(tmp_path: Path) -> None:
    """For reading and for writing; root drops its privileges first, because it may write everywhere."""
    script = """
import os
from quantry.errors import StoreError
if os.geteuid() == 0:
    os.seteuid(65534)
store = DirectoryStore(sys.argv[1])
for use in (
    lambda: store.put(fingerprint(1), Blob(meta={"a": 1})),
    lambda: store.get(fingerprint(1)),
    lambda: store.remember(fingerprint(1), fingerprint(2)),
    lambda: store.lookup(fingerprint(1)),
):
    try:
        use()
    except StoreError as error:
        print(error)
"""
    (tmp_path / "locked").mkdir(mode=0o000)
    with run(script, tmp_path / "locked") as process:
        output, errors = process.communicate(timeout=60)
    assert output.count("Permission denied") == 4, output + errors
    assert output.count(f"at {tmp_path / 'locked'}. ") == 4


def test_blob_that_another_process_stored_meanwhile_is_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, blob = DirectoryStore(tmp_path), numbered(1)

    def overtaken(size: int) -> None:
        put(DirectoryStore(tmp_path), 1)
        (tmp_path / "blobs" / blob.digest()[:2] / blob.digest() / "manifest.json").unlink()  # Its eviction has started.

    monkeypatch.setattr(store, "_make_room", overtaken)
    store.put(blob.digest(), blob)
    assert list((tmp_path / "temp").iterdir()) == []


HAMMER = """
import random
chance = random.Random(int(sys.argv[2]))
store = DirectoryStore(sys.argv[1], 300_000)
found = 0
for _ in range(100):
    number = chance.randrange(40)
    blob = Blob(meta={"number": number}, arrays={"x": np.full(5000, number, np.int32)}, files={"f.bin": b"abc"})
    got = store.get(blob.digest())
    if got is None:
        store.put(blob.digest(), blob)
        store.remember(fingerprint(number), blob.digest())
    else:
        assert got == blob, number
        found += 1
    assert store.lookup(fingerprint(number)) in (None, blob.digest())
print(found)
"""


def test_many_processes_read_write_and_evict_at_once(tmp_path: Path) -> None:
    processes = [run(HAMMER, tmp_path, seed) for seed in range(4)]
    for process in processes:
        with process:
            output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert int(output) > 0
    assert list((tmp_path / "temp").iterdir()) == []
    # Each of the four may exceed the limit by one blob and 1/32.
    assert size_on_disk(tmp_path) <= 300_000 + 4 * (21_000 + 10_000)


WRITER = """
store = DirectoryStore(sys.argv[1])
start = int(sys.argv[2])
print("ready", flush=True)
for number in range(start, start + 10_000):
    blob = Blob(meta={"number": number}, arrays={"x": np.full(200_000, number, np.int32)}, files={"f.bin": b"abc"})
    store.put(blob.digest(), blob)
    store.remember(fingerprint(number), blob.digest())
"""


def test_killed_writer_leaves_a_usable_store(tmp_path: Path) -> None:
    chance = random.Random(7)
    store, kept = DirectoryStore(tmp_path), 0
    for repetition in range(6):
        with run(WRITER, tmp_path, repetition * 10_000) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0, 0.06))
            process.send_signal(signal.SIGKILL)
        for shard in (tmp_path / "blobs").glob("*/*"):
            blob = store.get(Digest(shard.name))
            assert blob is not None, "a killed writer left a damaged blob"
            assert blob.digest() == shard.name
            kept += 1
        for entry in (tmp_path / "index").rglob("*.json"):
            result = store.lookup(Digest(entry.stem))
            assert result is not None
            assert store.get(result) is not None
        shutil.rmtree(tmp_path / "blobs", ignore_errors=True)
        shutil.rmtree(tmp_path / "index", ignore_errors=True)
        restored = put(store, repetition)
        assert store.get(restored) == numbered(repetition)
    assert kept > 0


def test_threads_that_find_a_damaged_blob_at_once_keep_intact_ones(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)

    def damaged() -> Iterator[Blob]:
        for number in range(60):
            put(store, number, 100)
            (part,) = tmp_path.glob(f"blobs/*/{numbered(number, 100).digest()}/arrays.safetensors")
            part.write_bytes(b"cut")
            yield numbered(number, 100)

    assert all(found_at_once(store, damaged()))


def test_intact_blob_that_replaces_a_damaged_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process replaces it between the check and the rename."""
    store, other = DirectoryStore(tmp_path), DirectoryStore(tmp_path)
    digest = put(store, 1)
    (part,) = tmp_path.glob("blobs/*/*/arrays.safetensors")
    part.write_bytes(b"cut")
    rename = Path.rename

    def late(path: Path, target: Path) -> Path:
        if target.name == "dropped":
            monkeypatch.undo()
            assert other.get(digest) is None
            put(other, 1)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", late)
    assert store.get(digest) is None
    assert store.get(digest) == numbered(1)
