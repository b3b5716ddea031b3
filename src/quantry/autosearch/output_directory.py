"""The output directory of a search: names of its files, atomic writes, and copies of models."""

import io
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray

from quantry.errors import RecipeError, StoreError
from quantry.files import new_file, open_regular, read_regular, require_folder, require_regular, write_file
from quantry.graph.load import read_model
from quantry.graph.save import write_model
from quantry.operating_system import try_lock

_FILES_OF_A_SEARCH = (
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
_FOLDERS_OF_A_SEARCH = ("scores", "store")

# Protobuf: the field number of ModelProto.graph, and the wire type of strings and messages.
_GRAPH = onnx.ModelProto.DESCRIPTOR.fields_by_name["graph"].number
_LENGTH_DELIMITED = 2


class OutputDirectory:
    """Names of the files of a search; files are written atomically, by one search at a time.

    ::

        <path>/
          study.journal       the Optuna study: every trial with its result
          auto_search.log     the log
          search.json         the same for programs
          best.onnx           the best model so far
          recipe.yaml         its recipe
          calibration.txt     the calibration samples; calibration.npz if they are part of an array
          iter_<number>.onnx  models that are kept, and those of running trials
          scores/<study>/<number>.npy    per-sample scores, in the order of the race
          store/              results of stages, unless another store was given
          search.lock         held while a search runs
          previous-<number>/  the same files of earlier, different searches in this folder

    Args:
        path: The folder; created if missing.

    Attributes:
        study: Name of the current study; scores are stored per study.
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
        """All trials as JSON."""
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
        """List of the calibration samples."""
        return self.path / "calibration.txt"

    @property
    def store(self) -> Path:
        """Results of stages, unless another store was given."""
        return self.path / "store"

    @property
    def float_model(self) -> Path:
        """The float model, if it was not given as a file."""
        return self.path / "float.onnx"

    def model(self, number: int) -> Path:
        """The model of a trial."""
        return self.path / f"iter_{number}.onnx"

    def delete_model(self, number: int) -> None:
        """Delete the model of a trial and its external data."""
        for file in self.path.glob(f"{self.model(number).name}*"):
            file.unlink(missing_ok=True)

    def scores(self, number: int) -> Path:
        """Per-sample scores of a trial."""
        return self.path / "scores" / self.study / f"{number}.npy"

    def open(self) -> None:
        """Create the folder and lock it for this process.

        Raises:
            RecipeError: Another search is using it.
            StoreError: It is not writable.
        """
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._require_own_files()
            self._lock = open_regular(self.path / "search.lock", "ab")
        if not try_lock(self._lock):
            self.close()
            raise RecipeError(
                f"an output directory must be used by one search at a time, got {self.path}, which another process is "
                "using; wait for it, or choose another directory"
            )

    def _require_own_files(self) -> None:
        """Check that no link, pipe or device stands where the search will write: it may lead out of the folder."""
        for pattern in _FILES_OF_A_SEARCH:
            for file in self.path.glob(pattern):
                if pattern not in _FOLDERS_OF_A_SEARCH:
                    require_regular(file)
        for name in _FOLDERS_OF_A_SEARCH:
            for folder in (self.path / name, *(self.path / name).glob("*/")):
                require_folder(folder)

    def close(self) -> None:
        """Release the lock; it is also released when the process dies."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def set_aside(self) -> Path:
        """Move the files of an earlier search into a folder of their own, and return it.

        The store stays: any search can use it.

        Raises:
            StoreError: They could not be moved.
        """
        number = 1
        while (self.path / f"previous-{number}").exists():
            number += 1
        folder = self.path / f"previous-{number}"
        with disk_errors(folder):
            folder.mkdir()
            for pattern in _FILES_OF_A_SEARCH:
                for file in sorted(self.path.glob(pattern)):
                    file.rename(folder / file.name)
        return folder

    def write(self, path: Path, content: bytes, *, synced: bool = True) -> None:
        """Write a file atomically: readers see the old or the new content.

        Args:
            path: The file.
            content: Its content.
            synced: Whether it must survive a power failure, which takes milliseconds; scores of trials need not.

        Raises:
            StoreError: The disk is full or not writable; the old content stays.
        """
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, content, synced=synced)

    def read_scores(self, number: int) -> NDArray[np.float64]:
        """Return the per-sample scores of a trial, shape (n,); empty if there are none."""
        try:
            scores = np.load(io.BytesIO(read_regular(self.scores(number))), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return np.zeros(0)
        return np.asarray(scores, dtype=np.float64)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Convert the system's write errors to ours.

    Raises:
        StoreError: Something could not be written.
    """
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(
            f"the output directory must be writable and the disk must not be full; writing failed: {error}; at {path}. "
            "Existing results are kept; free some space and start the search again to resume."
        ) from error


def model_size(files: Sequence[Path]) -> int:
    """Return the bytes of a model without its metadata, which holds the recipe and so differs between trials.

    Args:
        files: The model as the emit stage writes it, and its external data if any.
    """
    with files[0].open("rb") as file:
        head = _read_head(file)
    others = onnx.ModelProto()
    others.CopyFrom(head)
    del others.metadata_props[:]
    metadata: int = head.ByteSize() - others.ByteSize()
    return sum(file.stat().st_size for file in files) - metadata


def copy_model(source: Path, target: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Copy a model atomically.

    With new metadata the copy is byte for byte what the emit stage writes for a recipe that gives the same model; the
    graph is copied without parsing it.

    Args:
        source: The model as the emit stage writes it.
        target: Where the copy goes.
        metadata: The metadata of the copy; None keeps the source's.
    """
    if len(list(source.parent.glob(f"{source.name}*"))) > 1:
        # The model refers to its external data by file name, which is another one at the target.
        model = read_model(source)
        if metadata is not None:
            model.metadata_props.clear()
            model.metadata_props.update(sorted(metadata.items()))
        write_model(model, target)
        return
    with open_regular(source) as original, new_file(target) as copy:
        if metadata is not None:
            head = _read_head(original)
            onnx.helper.set_model_props(head, dict(sorted(metadata.items())))
            copy.write(head.SerializeToString(deterministic=True))
        shutil.copyfileobj(original, copy)


def _read_head(file: BinaryIO) -> onnx.ModelProto:
    """Return everything before the graph and leave the file there; the emit stage writes the graph last."""
    end = 0
    while (tag := _read_varint(file)) is not None and tag >> 3 != _GRAPH:
        following = _read_varint(file) or 0
        if tag & 7 == _LENGTH_DELIMITED:
            file.seek(following, os.SEEK_CUR)
        end = file.tell()
    file.seek(0)
    return onnx.ModelProto.FromString(file.read(end))


def _read_varint(file: BinaryIO) -> int | None:
    """Return the next protobuf varint: seven bits per byte, the highest bit marks continuation; None at the end."""
    number, shift = 0, 0
    while byte := file.read(1):
        number |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return number
        shift += 7
    return None
