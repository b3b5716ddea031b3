"""A sampling profiler of all threads. It hardly slows anything down; cProfile doubles the time of small functions."""

import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

_WAITING = ("threading.py", "queue.py", "_base.py", "thread.py")
"""Files of the standard library in which a thread only waits for another."""


class SamplingProfiler:
    """Looks at the innermost Python function of every other thread, again and again.

    Each look counts for the time since the last one, so a call that keeps the interpreter busy is not underrated.
    Compiled code counts for the Python function that called it. Threads that wait for another
    one count for nothing.

    Args:
        interval: Seconds between two looks.
        package: Folder of a package whose functions answer for what they call in others.

    Attributes:
        seconds: Thread seconds by file and function.
        owners: Thread seconds by the innermost function of the package; time outside of it counts for nobody.
    """

    def __init__(self, interval: float = 0.002, package: str = "quantry") -> None:
        self.seconds: Counter[tuple[str, str]] = Counter()
        self.owners: Counter[tuple[str, str]] = Counter()
        self._package = package
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        me, last = threading.get_ident(), time.perf_counter()
        while not self._stop.wait(self._interval):
            now = time.perf_counter()
            for thread, frame in sys._current_frames().items():
                if thread != me and not _waits(frame):
                    self.seconds[frame.f_code.co_filename, frame.f_code.co_name] += now - last
                    owner = _owner(frame, f"/{self._package}/")
                    if owner is not None:
                        self.owners[owner.f_code.co_filename, owner.f_code.co_name] += now - last
            last = now


def _waits(frame: FrameType) -> bool:
    return Path(frame.f_code.co_filename).name in _WAITING


def _owner(frame: FrameType | None, folder: str) -> FrameType | None:
    """Return the innermost frame whose file is in a folder."""
    while frame is not None and folder not in Path(frame.f_code.co_filename).as_posix():
        frame = frame.f_back
    return frame
