"""What differs between Linux, macOS and Windows. No other module calls what only some of them have; ruff checks this.

Each function asks which system runs when it is called, so that tests can pretend another one.
"""

import ctypes
import mmap
import multiprocessing
import os
import sys
from typing import IO

_QUERY_PROCESS, _STILL_ACTIVE, _ACCESS_DENIED = 0x1000, 259, 5  # of the Windows API


def core_count() -> int:
    """Return how many cores this process may run on."""
    # Windows and macOS have no affinity. From Python 3.13 on, os.process_cpu_count does this.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def zeroed_memory(size: int) -> mmap.mmap:
    """Return memory straight from the operating system: pages that are never touched are never allocated.

    Args:
        size: In bytes.
    """
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def forks_safely() -> bool:
    """Return whether a process can be forked: not on Windows, and on macOS system libraries may crash in a fork."""
    return sys.platform != "darwin" and "fork" in multiprocessing.get_all_start_methods()


def is_running(process: int) -> bool:
    """Return whether a process of this machine is alive.

    Args:
        process: Its number.
    """
    if sys.platform == "win32":  # There, signal 0 would interrupt the process.
        return _is_running_on_windows(process)
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it exists and belongs to another user
        return True
    return True


def _is_running_on_windows(process: int) -> bool:
    system = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
    system.OpenProcess.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(system.OpenProcess(_QUERY_PROCESS, 0, process & 0xFFFFFFFF))
    if not handle:
        return bool(ctypes.get_last_error() == _ACCESS_DENIED)  # type: ignore[attr-defined]
    code = ctypes.c_uint32()
    known = system.GetExitCodeProcess(handle, ctypes.byref(code))
    system.CloseHandle(handle)
    return bool(known) and code.value == _STILL_ACTIVE


def try_lock(file: IO[bytes]) -> bool:
    """Lock a file for this process until it is closed, and return whether no other process had locked it.

    Args:
        file: Open for writing.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def lock_byte(file: IO[bytes], offset: int, *, wait: bool) -> bool:
    """Lock one byte of a file for this process, and return whether it holds the byte.

    Args:
        file: Open for writing.
        offset: Which byte; the file may be shorter.
        wait: Wait until another process releases it.
    """
    if sys.platform == "win32":  # Nothing is locked: several processes compute the same result, which only costs time.
        return True
    import fcntl

    try:
        fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, offset)
    except (BlockingIOError, PermissionError):  # POSIX allows EAGAIN and EACCES for a lock held elsewhere
        return False
    return True


def unlock_byte(file: IO[bytes], offset: int) -> None:
    """Release a byte that `lock_byte` locked."""
    if sys.platform != "win32":
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_UN, 1, offset)
