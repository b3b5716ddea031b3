"""Kernels of a GPU that are started together.

This module imports torch, so it is imported inside functions only.
"""

from collections.abc import Callable
from typing import Any

import torch


class Recorded:
    """What a function starts on a GPU, recorded once and played as often as wanted.

    Everything it reads and writes must have a fixed place, and its kernels must have run before: libraries set
    themselves up in a first call, which cannot be recorded.

    Args:
        start: Starts kernels.
        device: Where they run.
    """

    def __init__(self, start: Callable[[], None], device: Any) -> None:
        self._graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            # torch.cuda.graph would also collect garbage and empty the allocator's cache, which takes longer than
            # training a small layer.
            self._graph.capture_begin()
            try:
                start()
            finally:
                self._graph.capture_end()
        torch.cuda.current_stream(device).wait_stream(side)

    def play(self, times: int) -> None:
        """Start all kernels again, so many times."""
        for _ in range(times):
            self._graph.replay()
