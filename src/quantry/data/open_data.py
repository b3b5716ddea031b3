"""Open calibration data: every form that users may pass becomes a `CalibrationData`."""

import os
import warnings
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from pathlib import Path

import numpy as np

from quantry.data.arrays import (
    ARRAY_SUFFIXES,
    ArrayFolder,
    InputFolders,
    SequenceSource,
    StackedSource,
    load_arrays,
)
from quantry.data.calibration_data import CalibrationData, SampleSource
from quantry.data.conform import Signatures
from quantry.data.images import IMAGE_SUFFIXES, ImageFolder, ImageOptions, ImageSource
from quantry.data.random_data import RandomData, RandomSource
from quantry.data.spool import Spool, drain
from quantry.errors import DataError
from quantry.notes import Note, NoteKind

LIST_SUFFIX = ".txt"


def listed_source(path: Path, inputs: Signatures, options: ImageOptions | None) -> SampleSource:
    """Return the samples whose files are listed in a text file, in that order.

    Each line is the path of an image, or of a .npy or .npz file with one sample; for a model with several inputs, the
    .npy files of all inputs, separated by tabs. Relative paths are looked up in the current folder, then in the folder
    of the text file.

    Args:
        path: The text file.
        inputs: The inputs of the model.
        options: How images become inputs.

    Raises:
        DataError: A file is missing, or not all files are of one kind.
    """
    try:
        lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"a list of files must be a readable text file, got {error}; in {path}") from error
    samples = [[_found(name, path) for name in line] for line in lines]
    files = [file for sample in samples for file in sample]
    kinds = {file.suffix.lower() for file in files}
    if kinds and kinds <= set(IMAGE_SUFFIXES):
        return ImageSource(files, options, inputs, str(path))
    if not kinds or not kinds <= set(ARRAY_SUFFIXES):
        listed = ", ".join(sorted(kinds)) or "nothing"
        raise DataError(f"a list of files must name images or arrays {ARRAY_SUFFIXES}, got {listed}; in {path}")
    if options is not None:
        raise DataError(f"ImageOptions need images, got arrays; in {path}")
    if all(len(sample) == 1 for sample in samples):
        return ArrayFolder(files)
    names = [signature.name for signature in inputs]
    if any(len(sample) != len(names) for sample in samples):
        raise DataError(f"each line of a list of files must have one file per input {names}; in {path}")
    return InputFolders({name: [sample[at] for sample in samples] for at, name in enumerate(names)}, str(path))


def _found(name: str, listed_in: Path) -> Path:
    for path in (Path(name.strip()), listed_in.parent / name.strip()):
        if path.is_file():
            return path
    raise DataError(f"the files in a list must exist, got {name.strip()!r}; in {listed_in}")


def calibration_data(data: object, inputs: Signatures, options: ImageOptions | None = None) -> CalibrationData:
    """Return calibration data in one form, after checking that the first sample fits the model.

    Args:
        data: One of these.

            - `CalibrationData`: returned as is; checked again if it was opened for inputs with other names.
            - None: one random sample, uniform in [0, 1), with a warning; use `RandomData` for more.
            - A path to a folder of images (also `ImageFolder`), to a folder of .npy or .npz files with one sample
              each, also in subfolders, to a folder with one subfolder of .npy files per input, to one .npy or .npz
              file whose first axis is the samples, or to a .txt file that lists images or arrays, one sample per line.
            - An array, or a mapping from input names to arrays, whose first axis is the samples.
            - A list or tuple of samples; it is not copied.
            - An onnxruntime data reader (anything with ``get_next()``), a PyTorch DataLoader, a generator or any
              other iterable of samples; it is read once, and stored in a temporary file. At most 4,096 samples are
              taken, unless ``observe.samples`` says otherwise, because it may have no end.

            A sample is a mapping from input names to arrays, a tuple or list in the order of the inputs (further items
            such as labels are ignored), or an array for a model with one input. A missing batch axis is added if the
            model's batch size is 1 or dynamic.
        inputs: The inputs of the model.
        options: How images become inputs; only for a path to a folder or a list of images.

    Raises:
        DataError: There are no samples, or the first one does not fit the model.

    Example:
        >>> from quantry.graph.float_model import InputSignature
        >>> signature = InputSignature("x", np.dtype(np.float32), ("batch", 3))
        >>> [sample["x"].shape for sample in calibration_data(np.zeros((2, 3)), (signature,))]
        [(1, 3), (1, 3)]
    """
    if options is not None and not isinstance(data, str | os.PathLike):
        raise DataError(f"ImageOptions need a path to a folder or a list of images, got {type(data).__name__} data")
    if isinstance(data, CalibrationData):
        same = [one.name for one in data.inputs] == [other.name for other in inputs]
        return data if same else CalibrationData(data.source, inputs, data.limit)
    return CalibrationData(_source(data, inputs, options), inputs)


def pixel_notes(data: CalibrationData) -> tuple[Note, ...]:
    """Return a note if images are fed to a float model without pixel options, or with options that look wrong.

    Args:
        data: The opened data.
    """
    if not isinstance(data.source, ImageSource) or not data.source.pixels_by_default:
        return pixel_doubts(data)
    message = (
        "images are used as RGB pixels 0..255, because no pixel option was given; most models were trained on other "
        "values, and the quantized model is useless then: give --pixel-scale 1/255, --mean and --std as in training "
        "(Python: images=quantry.ImageOptions(scale=1/255, ...)), or --pixel-scale 1 if 0..255 is right"
    )
    return (Note.of(message, NoteKind.IMPORTANT),)


def pixel_doubts(data: CalibrationData) -> tuple[Note, ...]:
    """Return what looks wrong about the given image options; empty for other data.

    Args:
        data: The opened data.
    """
    doubt = data.source.doubt if isinstance(data.source, ImageSource) else None
    return () if doubt is None else (Note.of("{doubt}", NoteKind.IMPORTANT, doubt=doubt),)


def _source(data: object, inputs: Signatures, options: ImageOptions | None) -> SampleSource:
    if data is None:
        warnings.warn(
            "no calibration data: using one random sample, uniform in [0, 1); ranges and accuracy will be wrong",
            UserWarning,
            stacklevel=3,
        )
        return RandomSource(RandomData(), inputs)
    if isinstance(data, RandomData):
        return RandomSource(data, inputs)
    if isinstance(data, ImageFolder):
        return _image_source(Path(data.path), data.options, inputs)
    if isinstance(data, str | os.PathLike):
        return _path_source(Path(data), inputs, options)
    if isinstance(data, np.ndarray):
        return StackedSource({_only_name(inputs, "an array"): data}, inputs, "array")
    if isinstance(data, Mapping):
        return StackedSource(data, inputs, "mapping")
    return _sample_source(data, inputs)


def _sample_source(data: object, inputs: Signatures) -> SampleSource:
    if isinstance(data, list | tuple):
        return SequenceSource(data)
    if hasattr(data, "get_next"):
        return Spool(drain(data), inputs)
    try:
        samples = iter(data)  # type: ignore[call-overload]  # anything may be given; this is the check
    except TypeError as error:
        raise DataError(
            "calibration data must be a path, an array, an iterable of samples or have get_next(), "
            f"got {type(data).__name__}"
        ) from error
    return Spool(samples, inputs)


def _path_source(path: Path, inputs: Signatures, options: ImageOptions | None) -> SampleSource:
    if not path.exists():
        raise DataError(f"the path of calibration data must exist, got {path}")
    if path.is_file() and path.suffix.lower() == LIST_SUFFIX:
        return listed_source(path, inputs, options)
    arrays = _array_source(path, inputs)
    if arrays is None:
        return _image_source(path, options, inputs)
    if options is not None:
        raise DataError(f"ImageOptions need a path to a folder or a list of images, got arrays; in {path}")
    return arrays


def _array_source(path: Path, inputs: Signatures) -> SampleSource | None:
    """Return the arrays at a path, or None if there are none."""
    if path.is_file():
        return _file_source(path, inputs)
    arrays = _files(path.iterdir(), ARRAY_SUFFIXES)
    if arrays:
        return ArrayFolder(arrays)
    by_input = {signature.name: path / signature.name for signature in inputs}
    if by_input and all(folder.is_dir() for folder in by_input.values()):
        folders = {name: _files(folder.iterdir(), (".npy",)) for name, folder in by_input.items()}
        return InputFolders(folders, str(path)) if any(folders.values()) else None
    nested = _nested_arrays(path)
    return ArrayFolder(_in_turn(nested)) if nested else None


def holds_arrays(path: Path) -> bool:
    """Return whether data are arrays (a file, a folder or a list of files) instead of images."""
    if path.suffix.lower() == LIST_SUFFIX and path.is_file():
        first = path.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
        return first.strip().lower().endswith(ARRAY_SUFFIXES)
    return not path.is_dir() or bool(_files(path.iterdir(), ARRAY_SUFFIXES) or _nested_arrays(path))


def _nested_arrays(path: Path) -> list[Path]:
    """Return the arrays in the subfolders of a folder, such as one per class, unless there are images."""
    nested = _files(path.glob("*/*"), ARRAY_SUFFIXES)
    return nested if nested and not _files(path.rglob("*"), IMAGE_SUFFIXES) else []


def _file_source(path: Path, inputs: Signatures) -> SampleSource:
    if path.suffix.lower() not in ARRAY_SUFFIXES:
        raise DataError(
            f"a file of calibration data must be .npy, .npz or a .txt list of files, got {path.name!r}; in {path}"
        )
    loaded = load_arrays(path)
    stacks = loaded if isinstance(loaded, dict) else {_only_name(inputs, "a .npy file"): loaded}
    return StackedSource(stacks, inputs, str(path))


def _image_source(path: Path, options: ImageOptions | None, inputs: Signatures) -> SampleSource:
    if not path.is_dir():
        raise DataError(f"a folder of images must be an existing folder, got {path}")
    files = _files(path.rglob("*"), IMAGE_SUFFIXES)
    if not files:
        raise DataError(
            f"a folder of calibration data must contain images {IMAGE_SUFFIXES} or arrays {ARRAY_SUFFIXES}, got none; "
            f"in {path}"
        )
    return ImageSource(_in_turn(files), options, inputs, str(path))


def _in_turn(files: list[Path]) -> list[Path]:
    """Return one file of each folder, then the next of each.

    Folders are often classes. In order of paths, the first hundred images would all be of one class, and so would be
    the ranges that `--samples 100` calibrates.
    """
    folders: dict[Path, list[Path]] = {}
    for path in files:
        folders.setdefault(path.parent, []).append(path)
    return [path for turn in zip_longest(*folders.values()) for path in turn if path is not None]


def _files(paths: Iterable[Path], suffixes: tuple[str, ...]) -> list[Path]:
    """Return the files with one of the suffixes, in order of their paths; hidden files are skipped."""
    accepted = (path for path in paths if path.suffix.lower() in suffixes and not path.name.startswith("."))
    return sorted((path for path in accepted if path.is_file()), key=lambda path: path.as_posix())


def _only_name(inputs: Signatures, kind: str) -> str:
    if len(inputs) != 1:
        names = [signature.name for signature in inputs]
        raise DataError(f"{kind} needs a model with one input, got inputs {names}; use a mapping from names to arrays")
    return inputs[0].name
