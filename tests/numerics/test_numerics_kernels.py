"""The compiled library is built from these sources, loaded only if intact, and has the same bytes on every level."""

import ctypes
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import build_kernels
import numpy as np
import pytest

from quantry.errors import InternalError
from quantry.numerics import kernels

PACKAGE = Path(kernels.__file__).parent
LEVELS = kernels.supported_levels()


@pytest.fixture(autouse=True)
def _switched_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Load the library, also where all other tests run without it."""
    monkeypatch.delenv(kernels.SWITCH, raising=False)
    kernels.loaded.cache_clear()
    yield
    monkeypatch.undo()
    kernels.loaded.cache_clear()


def test_library_of_this_platform_is_loaded() -> None:
    compiled = kernels.loaded()
    assert compiled is not None, "run: python build_kernels.py"
    assert compiled.level == LEVELS[-1]
    assert compiled.build_id == kernels.build_id() == build_kernels.build_id()


def test_unknown_level_is_an_error() -> None:
    with pytest.raises(InternalError, match="must be one of"):
        kernels.loaded("v9")


def test_build_id_says_numpy_without_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "loaded", lambda: None)
    assert kernels.build_id() == "numpy"


@pytest.fixture
def _read_again() -> Iterator[None]:
    """Read the environment variable again, before and after a test."""
    kernels.loaded.cache_clear()
    yield
    kernels.loaded.cache_clear()


@pytest.mark.usefixtures("_read_again")
@pytest.mark.parametrize("value", ["off", "OFF", "0"])
def test_switch_turns_the_kernels_off_in_silence(
    value: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(kernels.SWITCH, value)
    assert kernels.loaded() is None
    assert not caplog.records


@pytest.mark.usefixtures("_read_again")
def test_switch_selects_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernels.SWITCH, LEVELS[0])
    compiled = kernels.loaded()
    assert compiled is not None
    assert compiled.level == LEVELS[0]


@pytest.mark.usefixtures("_read_again")
def test_unknown_value_of_the_switch_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(kernels.SWITCH, "fast")
    compiled = kernels.loaded()
    assert compiled is not None
    assert compiled.level == LEVELS[-1]
    assert "must be off or one of" in caplog.text


def test_arrays_that_c_cannot_read_raise() -> None:
    compiled, counts = kernels.loaded(), np.zeros(65536, np.uint32)
    assert compiled is not None
    for wrong in (np.zeros(4), np.zeros(8, np.float32)[::2]):
        with pytest.raises(InternalError, match="must be contiguous float32"):
            compiled.count_codes(wrong, counts)  # type: ignore[arg-type]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return the description of a copy of the library."""
    for path in PACKAGE.glob("_kernels.*"):
        shutil.copy(path, tmp_path)
    return tmp_path / "_kernels.json"


def library_file(description: Path) -> Path:
    return description.with_name(json.loads(description.read_text())["file"])


def test_intact_copy_is_loaded(installed: Path) -> None:
    assert kernels.load_library(installed) is not None


@pytest.mark.parametrize("kept", [0, 1, 4096, -1], ids=["empty", "one byte", "one page", "one byte less"])
def test_truncated_library_is_never_loaded(installed: Path, kept: int, caplog: pytest.LogCaptureFixture) -> None:
    library = library_file(installed)
    library.write_bytes(library.read_bytes()[:kept])
    assert kernels.load_library(installed) is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "NumPy is used" in caplog.text


def test_library_of_another_build_is_never_loaded(installed: Path, caplog: pytest.LogCaptureFixture) -> None:
    library = library_file(installed)
    changed = bytearray(library.read_bytes())
    changed[-1] ^= 1
    library.write_bytes(changed)
    assert kernels.load_library(installed) is None
    assert "size and digest recorded at build time" in caplog.text


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"file": 3}'])
def test_damaged_description_means_numpy(installed: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    installed.write_text(text)
    assert kernels.load_library(installed) is None
    assert len(caplog.records) == 1


def test_missing_library_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert kernels.load_library(tmp_path / "_kernels.json") is None
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.startswith(f"quantry was installed without compiled kernels for {sys.platform} on ")
    assert message.endswith("; NumPy is used, which is slower")


@pytest.mark.usefixtures("_read_again")
def test_reason_for_numpy_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels.why_missing() == ""
    monkeypatch.setenv(kernels.SWITCH, "off")
    kernels.loaded.cache_clear()
    assert kernels.why_missing() == "they are switched off by QUANTRY_NATIVE"
    monkeypatch.delenv(kernels.SWITCH)
    monkeypatch.setattr(kernels, "_DESCRIPTION", tmp_path / "_kernels.json")
    monkeypatch.setattr(kernels, "_library", lambda: None)
    kernels.loaded.cache_clear()
    assert "without compiled kernels" in kernels.why_missing()


def test_description_cannot_point_to_another_folder(installed: Path) -> None:
    library = library_file(installed)
    elsewhere = installed.parent / "elsewhere"
    elsewhere.mkdir()
    moved = shutil.move(library, elsewhere)
    described = json.loads(installed.read_text())
    for path in (moved, f"elsewhere/{library.name}", f"../{installed.parent.name}/elsewhere/{library.name}"):
        installed.write_text(json.dumps({**described, "file": str(path)}))
        assert kernels.load_library(installed) is None


def test_library_planted_elsewhere_is_never_loaded(tmp_path: Path) -> None:
    """In the working directory, the user's cache and the loader's path."""
    name = library_file(PACKAGE / "_kernels.json").name
    for folder in (tmp_path, tmp_path / "quantry-native", tmp_path / "quantry"):
        folder.mkdir(exist_ok=True)
        shutil.copy(PACKAGE / name, folder)
        shutil.copy(PACKAGE / name, folder / "train_rows.so")
    code = """
from quantry.numerics import kernels
assert kernels.loaded() is not None
maps = open("/proc/self/maps").read() if __import__("os").path.exists("/proc/self/maps") else ""
print(sorted({line.split()[-1] for line in maps.splitlines() if "_kernels" in line or "train_rows" in line}))
"""
    variables = {"XDG_CACHE_HOME": str(tmp_path), "LD_LIBRARY_PATH": str(tmp_path), "HOME": str(tmp_path)}
    environment = {**os.environ, **variables, "PYTHONPATH": str(PACKAGE.parents[1])}
    command = [sys.executable, "-c", code]
    output = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout
    assert output.strip() in (str([str(PACKAGE / name)]), "[]")


def quantized(compiled: kernels.Kernels, scale: float, count: int) -> dict[str, bytes]:
    """Return all that the kernels of ``quantize_values.c`` write, as bytes."""
    random = np.random.default_rng(count)
    values, gradients = (random.standard_normal(count).astype(np.float32) * 3 for _ in range(2))
    values[:3] = np.nan, np.inf, -np.inf
    results, inside, sums = np.empty_like(values), np.empty(count, np.uint8), np.zeros(-(-count // (1 << 15)))
    pointers = {"values": values, "gradients": gradients, "results": results, "inside": inside, "sums": sums}
    found = {}
    for name in ("quantize", "pass_inside", "learn"):
        addresses = {field: array.ctypes.data for field, array in pointers.items()}
        task = kernels.QuantizeTask(count=count, scale=scale, low=-128, high=127, **addresses)
        getattr(compiled, name)(ctypes.byref(task))
        found |= {f"{name} {field}": pointers[field].tobytes() for field in ("results", "inside", "sums")}
    return found


@pytest.mark.parametrize("scale", [2.0**-5, 0.0237, 2.0**-130], ids=["power of two", "any", "subnormal"])
@pytest.mark.parametrize("count", [3, 17, 4096 + 5, (1 << 15) + 77])
def test_every_level_quantizes_alike(scale: float, count: int) -> None:
    found = [quantized(compiled, scale, count) for level in LEVELS if (compiled := kernels.loaded(level)) is not None]
    assert len(found) == len(LEVELS)
    assert all(other == found[0] for other in found)


def errors(compiled: kernels.Kernels, inner: int) -> bytes:
    random = np.random.default_rng(inner)
    values, gradients = (random.standard_normal((2, 3, inner)).astype(np.float32) for _ in range(2))
    scales = np.array([[2.0**-5] * 3, [0.03, 0.02, 0.01]], np.float32)
    low, high = np.full(3, -128, np.float32), np.full(3, 127, np.float32)
    sums = np.zeros((2, 3))
    arrays = (values, gradients, scales, low, high, sums)
    task = kernels.ErrorTask(*(array.ctypes.data for array in arrays), 2, 3, inner, 2, 0)
    compiled.add_errors(ctypes.byref(task))
    return sums.tobytes()


@pytest.mark.parametrize("inner", [1, 15, 5000])
def test_every_level_computes_the_same_errors(inner: int) -> None:
    assert len({errors(compiled, inner) for level in LEVELS if (compiled := kernels.loaded(level)) is not None}) == 1


@pytest.mark.parametrize("count", [1, 7, 100_003])
def test_every_level_counts_alike(count: int) -> None:
    values = np.random.default_rng(count).integers(0, 2**32, count, np.uint32).view(np.float32)
    found = []
    for level in LEVELS:
        compiled, histogram = kernels.loaded(level), np.zeros(65536, np.uint32)
        assert compiled is not None
        found.append((compiled.count_codes(values, histogram), histogram.tobytes()))
    assert all(other == found[0] for other in found)


def grouped(compiled: kernels.Kernels, lines: np.ndarray, size: int) -> bytes:
    """Return all that the kernels of ``weight_groups.c`` write, as bytes."""
    numbers = {"lowest": 0, "highest": 15, "centre": 8, "steps": 15, "largest_end": 1e38, "either_sign": False}
    found = b""
    for symmetric in (False, True):
        task = kernels.GroupLines.of(lines, size)
        scale, zero, empty = compiled.search_groups(task, (1.0, 0.87, 0.75), symmetric=symmetric, **numbers)
        packed = np.zeros((len(lines), task.groups, size // 2), np.uint8)
        compiled.pack_groups(task, scale, zero, packed, lowest=0, highest=15, shift=0, bits=4)
        found += b"".join(np.ascontiguousarray(part).tobytes() for part in (scale, zero, empty, packed))
    return found


@pytest.mark.parametrize("shape", [(1, 16), (33, 40), (70, 7)])
def test_every_level_and_memory_order_has_the_same_groups(shape: tuple[int, int]) -> None:
    lines = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    lines[0] = 0
    levels = [compiled for level in LEVELS if (compiled := kernels.loaded(level)) is not None]
    views = (lines, np.asfortranarray(lines))
    assert len({grouped(compiled, view, 16) for compiled in levels for view in views}) == 1
