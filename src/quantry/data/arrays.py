"""Samples that are arrays: in memory, stacked along the first axis, or in .npy and .npz files."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from quantry.data.calibration_data import SampleSource
from quantry.data.conform import Array, Signatures, batch_axis_is_free, to_numpy
from quantry.errors import DataError

ARRAY_SUFFIXES = (".npy", ".npz")


class SequenceSource(SampleSource):
    """Samples in a list or tuple. They are not copied, so they must not be changed while in use."""

    def __init__(self, samples: Sequence[object]) -> None:
        self._samples = samples

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self._samples)

    def read(self) -> Iterator[object]:
        """Yield the samples."""
        return iter(self._samples)


class StackedSource(SampleSource):
    """One array per input, with samples stacked along the first axis.

    A model with a fixed batch size B > 1 gets groups of B; a remainder at the end is dropped with a warning.
    """

    def __init__(self, stacks: Mapping[str, object], inputs: Signatures, label: str) -> None:
        self._stacks = {name: to_numpy(stack, f"in {label}, {name!r}") for name, stack in stacks.items()}
        for name, stack in self._stacks.items():
            if stack.ndim == 0:
                raise DataError(f"the first axis of an array must be the samples, got a scalar; in {label}, {name!r}")
        lengths = {name: len(stack) for name, stack in self._stacks.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"all inputs must have the same number of samples, got {lengths}; in {label}")
        self._group = group_size(inputs)
        self._ranks = {signature.name: len(signature.shape) for signature in inputs}
        length = next(iter(lengths.values()), 0)
        self._length = length if self._nested() else whole_groups(length, self._group, label)

    @property
    def size(self) -> int:
        """Number of samples."""
        return self._length

    def read(self) -> Iterator[object]:
        """Yield one slice of every array for each sample."""
        if self._nested():
            yield from ({name: stack[i] for name, stack in self._stacks.items()} for i in range(self._length))
            return
        step = self._group
        for start in range(0, self._length * step, step):
            yield {name: stack[start : start + step] for name, stack in self._stacks.items()}

    def _nested(self) -> bool:
        """Return whether each item along the first axis already has the model's full rank, including the batch axis."""
        return any(stack.ndim == self._ranks.get(name, -1) + 1 for name, stack in self._stacks.items())


class ArrayFolder(SampleSource):
    """A folder of .npy and .npz files in order of their names, one sample per file.

    A .npy file contains the input of a model with one input; a .npz file contains one array per input, by name.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = tuple(files)

    @property
    def size(self) -> int:
        """Number of files."""
        return len(self._files)

    @property
    def files(self) -> tuple[tuple[Path, ...], ...]:
        """The file of each sample."""
        return tuple((path,) for path in self._files)

    def read(self) -> Iterator[object]:
        """Yield the arrays of each file."""
        return (load_arrays(path) for path in self._files)


class InputFolders(SampleSource):
    """One subfolder of .npy files per input; the n-th files of all subfolders, by name, are the n-th sample."""

    def __init__(self, folders: Mapping[str, Sequence[Path]], label: str) -> None:
        lengths = {name: len(files) for name, files in folders.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"all inputs must have the same number of samples, got {lengths}; in {label}")
        self._folders = folders

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(next(iter(self._folders.values()), ()))

    @property
    def files(self) -> tuple[tuple[Path, ...], ...]:
        """The files of each sample, one per input."""
        return tuple(zip(*self._folders.values(), strict=True))

    def read(self) -> Iterator[object]:
        """Yield the arrays of each sample by input name."""
        for files in zip(*self._folders.values(), strict=True):
            yield {name: load_arrays(path) for name, path in zip(self._folders, files, strict=True)}


def load_arrays(path: Path) -> Array | dict[str, Array]:
    """Return the array of a .npy file or the arrays by name of a .npz file.

    Raises:
        DataError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            return loaded if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
    except Exception as error:
        # NumPy passes on what its parser, zlib, zipfile and the allocator raise for damaged files.
        raise DataError(f"a .npy or .npz file must contain arrays of numbers, got {error}; in {path}") from error


def group_size(inputs: Signatures) -> int:
    """Return how many stacked values make one sample: the model's batch size, or 1 if that is dynamic."""
    if not inputs or batch_axis_is_free(inputs[0]) or not inputs[0].shape:
        return 1
    length = inputs[0].shape[0]
    assert isinstance(length, int)
    return max(length, 1)


def whole_groups(length: int, group: int, label: str) -> int:
    """Return the number of complete groups, with a warning if there is a remainder.

    Raises:
        DataError: There is no complete group.
    """
    if 0 < length < group:
        raise DataError(f"the model needs {group} values at a time, got {length}; in {label}")
    if length % group:
        message = (
            f"the model needs {group} values at a time: the last {length % group} of {length} are not used; in {label}"
        )
        warnings.warn(message, UserWarning, stacklevel=2)
    return length // group
