"""Reads prepared samples in the form that every tool accepts. Runs in the peer's environment too: numpy only."""

from pathlib import Path
from typing import Any

import numpy as np


class SampleReader:
    """An onnxruntime calibration data reader over a folder of .npz files; holds one sample at a time.

    Args:
        folder: One file for each sample.
        count: How many samples to read.
    """

    def __init__(self, folder: str, count: int) -> None:
        self._files = sorted(Path(folder).glob("*.npz"))[:count]
        if len(self._files) < count:
            raise ValueError(f"{count} samples wanted, {len(self._files)} found in {folder}")
        self._next = 0

    def get_next(self) -> dict[str, Any] | None:
        """Return the next sample, or None after the last."""
        if self._next == len(self._files):
            return None
        with np.load(self._files[self._next]) as stored:
            sample = {name: stored[name] for name in stored.files}
        self._next += 1
        return {
            name: pixels.astype(np.float32) if pixels.dtype == np.uint8 else pixels for name, pixels in sample.items()
        }

    def __len__(self) -> int:
        return len(self._files)
