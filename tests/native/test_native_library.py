import ctypes
import shutil
from pathlib import Path

import pytest

from quantry.native import SWITCH, library

needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("cc", "gcc", "clang")), reason="there is no C compiler"
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(SWITCH, raising=False)
    return tmp_path / "cache" / "quantry-native"


def source(folder: Path, text: str) -> Path:
    file = folder / "triple.c"
    file.write_text(text, encoding="utf-8")
    return file


@needs_compiler
def test_function_is_compiled_once_and_called(tmp_path: Path, own_cache: Path) -> None:
    compiled = library(source(tmp_path, "int triple(int x) { return 3 * x; }"))
    assert isinstance(compiled, ctypes.CDLL)
    assert compiled.triple(14) == 42
    assert [file.suffix for file in own_cache.iterdir()] == [".so"]


@needs_compiler
def test_source_that_does_not_compile_gives_none_and_leaves_nothing(tmp_path: Path, own_cache: Path) -> None:
    assert library(source(tmp_path, "this is no C")) is None
    assert list(own_cache.iterdir()) == []


def test_switch_turns_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "off")
    assert library(source(tmp_path, "int triple(int x) { return 3 * x; }")) is None


def test_no_compiler_gives_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert library(source(tmp_path, "int triple(int x) { return 3 * x; }")) is None


@needs_compiler
def test_folder_that_cannot_be_written_gives_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert library(source(tmp_path, "int triple(int x) { return 3 * x; }")) is None


@needs_compiler
def test_empty_cache_variable_means_the_folder_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert library(source(tmp_path, "int triple(int x) { return 3 * x; }")) is not None
    assert (tmp_path / "home" / ".cache" / "quantry-native").is_dir()
