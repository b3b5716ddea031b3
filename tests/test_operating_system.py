"""The layer over the operating system, on this one and on a pretended Windows and macOS."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from quantry import operating_system

posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX")


class Windows:
    """What the layer uses of the Windows API, with one process and one lock."""

    ALIVE, OF_ANOTHER_USER, ENDED = 4, 8, 12

    def __init__(self) -> None:
        self.locked: set[tuple[int, int]] = set()
        self.error = 0

    def OpenProcess(self, access: int, inherited: int, process: int) -> int:
        self.error = 5 if process == self.OF_ANOTHER_USER else 87
        return process if process in (self.ALIVE, self.ENDED) else 0

    def GetExitCodeProcess(self, handle: ctypes.c_void_p, code: object) -> int:
        code._obj.value = 259 if handle.value == self.ALIVE else 1  # type: ignore[attr-defined]
        return 1

    def CloseHandle(self, handle: ctypes.c_void_p) -> int:
        return 1

    def locking(self, descriptor: int, mode: int, count: int) -> None:
        status = os.fstat(descriptor)
        place = status.st_dev, status.st_ino
        if place in self.locked:
            raise PermissionError(13, "locked")
        self.locked.add(place)


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Windows:
    """Pretend Windows."""
    pretended = Windows()
    calls = ("OpenProcess", "GetExitCodeProcess", "CloseHandle")
    functions = {name: lambda *given, name=name: getattr(pretended, name)(*given) for name in calls}
    monkeypatch.setattr(ctypes, "WinDLL", lambda *_, **__: SimpleNamespace(**functions), raising=False)
    monkeypatch.setattr(ctypes, "get_last_error", lambda: pretended.error, raising=False)
    for name in calls:  # attributes such as `restype` can be set on them
        assert callable(functions[name])
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=pretended.locking, LK_NBLCK=2))
    monkeypatch.setitem(sys.modules, "fcntl", None)  # importing it fails
    monkeypatch.setattr(sys, "platform", "win32")
    return pretended


def test_processes_of_windows_are_found_without_a_signal(windows: Windows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("on Windows this ends the process"))
    assert operating_system.is_running(Windows.ALIVE)
    assert operating_system.is_running(Windows.OF_ANOTHER_USER)
    assert not operating_system.is_running(Windows.ENDED)
    assert not operating_system.is_running(99)


def test_a_file_is_locked_once_on_windows(windows: Windows, tmp_path: Path) -> None:
    with (tmp_path / "lock").open("wb") as first, (tmp_path / "lock").open("wb") as second:
        assert operating_system.try_lock(first)
        assert not operating_system.try_lock(second)
        assert operating_system.lock_byte(first, 2**60, wait=True)
        operating_system.unlock_byte(first, 2**60)


@posix
def test_a_file_is_locked_once_by_processes(tmp_path: Path) -> None:
    code = (
        "import sys; from quantry.operating_system import try_lock, lock_byte; file = open(sys.argv[1], 'ab'); "
        "print(try_lock(file), lock_byte(file, 2**60, wait=False), lock_byte(file, 5, wait=False))"
    )
    path = tmp_path / "lock"
    with path.open("ab") as file:
        assert operating_system.try_lock(file)
        assert operating_system.lock_byte(file, 2**60, wait=False)
        other = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
        assert other.stdout.split() == ["False", "False", "True"]
        operating_system.unlock_byte(file, 2**60)
    other = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert other.stdout.split() == ["True", "True", "True"]


def test_processes_are_running_until_they_end() -> None:
    assert operating_system.is_running(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert operating_system.is_running(child.pid)
        child.communicate(b"\n")
    assert not operating_system.is_running(child.pid)


@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
def test_processes_fork_on_linux_only(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = ["spawn"] if system == "win32" else ["fork", "spawn", "forkserver"]
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr("multiprocessing.get_all_start_methods", lambda: methods)
    assert operating_system.forks_safely() == (system == "linux")


@pytest.mark.parametrize("system", [sys.platform, "win32"])
def test_memory_is_zeroed(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", system)
    memory = np.frombuffer(operating_system.zeroed_memory(1 << 20), np.uint32)
    assert memory.size == 1 << 18
    assert not memory.any()


def test_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert operating_system.core_count() >= 1
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert operating_system.core_count() == os.cpu_count()
