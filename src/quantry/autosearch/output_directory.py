"""The folder that a search writes to; it holds everything that is needed to go on."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from quantry.errors import RecipeError, StoreError

_OF_ONE_SEARCH = (
    "study.journal",
    "auto_search.log",
    "search.json",
    "report.html",
    "best.onnx*",
    "recipe.yaml",
    "calibration.*",
    "iter_*.onnx*",
    "scores",
)


class OutputDirectory:
    """Names of the files of a search, written atomically, by one search at a time.

    ::

        <path>/
          study.journal       the Optuna study: every trial with its outcome
          auto_search.log     what happened, for people
          search.json         the same for programs
          best.onnx           the best model so far
          recipe.yaml         its recipe
          calibration.txt     which samples it was calibrated on; calibration.npz: parts of an array
          iter_<number>.onnx  models that are kept, and those at work
          scores/<study>/<number>.npy    scores of single samples, in the order of the race
          store/              results of stages, unless another store was given
          search.lock         held while a search runs
          previous-<number>/  the same files of earlier, other searches in this folder

    Args:
        path: The folder; made when missing.

    Attributes:
        study: Name of the study that is at work; scores of another one are none of its business.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.study = "study"
        self._lock: IO[bytes] | None = None

    def __getstate__(self) -> dict[str, object]:
        """Leave the lock with the process that holds it."""
        return {**self.__dict__, "_lock": None}

    @property
    def journal(self) -> Path:
        """The Optuna study."""
        return self.path / "study.journal"

    @property
    def summary(self) -> Path:
        """What programs read."""
        return self.path / "search.json"

    @property
    def best_model(self) -> Path:
        """The best model so far."""
        return self.path / "best.onnx"

    @property
    def best_recipe(self) -> Path:
        """The best model's recipe."""
        return self.path / "recipe.yaml"

    @property
    def calibration(self) -> Path:
        """Which samples models were calibrated on."""
        return self.path / "calibration.txt"

    @property
    def store(self) -> Path:
        """Results of stages, unless another store was given."""
        return self.path / "store"

    def model(self, number: int) -> Path:
        """The model of a trial."""
        return self.path / f"iter_{number}.onnx"

    def delete_model(self, number: int) -> None:
        """Delete the model of a trial, with the files of its weights."""
        for file in self.path.glob(f"{self.model(number).name}*"):
            file.unlink(missing_ok=True)

    def scores(self, number: int) -> Path:
        """Scores of single samples of a trial."""
        return self.path / "scores" / self.study / f"{number}.npy"

    def open(self) -> None:
        """Make the folder and take it for this process.

        Raises:
            RecipeError: Another search is using it.
            StoreError: It cannot be written.
        """
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / "search.lock").open("ab")
        if not _try_lock(self._lock):
            self.close()
            raise RecipeError(
                f"an output directory must be used by one search at a time, got {self.path}, which another process is "
                "using; wait for it, or choose another directory"
            )

    def close(self) -> None:
        """Let others have the folder. A process that dies lets go of it too."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def set_aside(self) -> Path:
        """Move the files of an earlier search into a folder of their own, and return it.

        Results of stages stay: any search can use them.

        Raises:
            StoreError: They could not be moved.
        """
        number = 1
        while (self.path / f"previous-{number}").exists():
            number += 1
        folder = self.path / f"previous-{number}"
        with disk_errors(folder):
            folder.mkdir()
            for pattern in _OF_ONE_SEARCH:
                for file in sorted(self.path.glob(pattern)):
                    file.rename(folder / file.name)
        return folder

    def write(self, path: Path, content: bytes) -> None:
        """Write a file in one step: whoever looks sees the old or the new content.

        Raises:
            StoreError: The disk is full or may not be written; the old content stays.
        """
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, content)

    def read_scores(self, number: int) -> NDArray[np.float64]:
        """Return the scores of single samples that are known of a trial; empty when none are."""
        try:
            scores = np.load(self.scores(number), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return np.zeros(0)
        return np.asarray(scores, dtype=np.float64)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file beside its place and move it there."""
    written = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        written.write_bytes(content)
        written.replace(path)
    finally:
        with suppress(OSError):
            written.unlink()


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn the system's errors of writing into ours.

    Raises:
        StoreError: Something could not be written.
    """
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(
            f"the output directory must be writable and the disk must have room; writing failed: {error}; at {path}. "
            "What is there stays; free some space and start the search again to go on."
        ) from error


def _try_lock(file: IO[bytes]) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows has no such lock; there a second search is the user's to avoid.
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
