"""Labels of samples: classes from a file or from folders, and boxes of images in COCO's JSON format."""

import csv
import json
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantry.data.arrays import load_arrays
from quantry.data.calibration_data import CalibrationData
from quantry.data.images import IMAGE_SUFFIXES
from quantry.errors import DataError

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_HEADINGS = ("label", "class", "class_id", "category", "target")


@dataclass(frozen=True)
class LabelledFiles:
    """Files with one sample each, and the class of each.

    Attributes:
        files: The files: images in order of their paths, arrays in the order of the data. Samples that are part of one
            array have their numbers in place of files.
        labels: The class of each.
        names: Names of the classes if folders or words name them; empty if labels are numbers.
        where: The file or folder of the labels, for messages.
    """

    files: tuple[Path, ...]
    labels: tuple[int, ...]
    names: tuple[str, ...] = ()
    where: str = field(default="the labels", compare=False)

    def check_classes(self, classes: int | None) -> None:
        """Check that the labels can be classes of a model.

        Args:
            classes: The model's number of classes; None if unknown.

        Raises:
            DataError: A number is out of range, or there are more or fewer names than classes.
        """
        if classes is None:
            return
        if self.names and len(self.names) != classes:
            # Words are numbered in alphabetical order, which is not the model's order if some are missing.
            few = ", ".join(self.names[:3])
            raise DataError(
                f"there must be as many class names as classes of the model, {classes}, because names are numbered in "
                f"alphabetical order, got {len(self.names)}: {few}{', ...' if len(self.names) > 3 else ''}; use the "
                f"model's class numbers, 0 to {classes - 1}: a .csv of file,number as labels, or folders named by "
                f"number; in {self.where}"
            )
        for file, label in zip(self.files, self.labels, strict=True):
            if not 0 <= label < classes:
                raise DataError(
                    f"labels must be class numbers of the model, 0 to {classes - 1}, got {label} for {file.name}; "
                    f"in {self.where}"
                )


def labelled_images(folder: str | Path, labels: str | Path | None = None) -> LabelledFiles:
    """Return the images of a folder with their classes.

    Args:
        folder: The folder; subfolders are included.
        labels: One of these.

            - None: each subfolder is a class, numbered in order of the names.
            - A ``.csv`` file with the columns file and label, with or without a header.
            - A ``.json`` file: an object of file names to labels.
            - A ``.txt`` file: "file label" per line, or one label per line for the images in order of their paths.

            Files are named by their path in the folder or, if that is unique, by their name alone. Labels are class
            numbers; words are numbered in alphabetical order, so there must be one for each class of the model.

    Raises:
        DataError: There are no images, a file has no label or an ambiguous one, or some labels are numbers and others
            names.
    """
    root = Path(folder)
    return _labelled_files(image_files(root), root, labels)


def labelled_arrays(data: CalibrationData, path: str | Path, labels: str | Path | None = None) -> LabelledFiles:
    """Return samples that are arrays with their classes.

    Args:
        data: The samples, opened from the path.
        path: A folder of .npy and .npz files with one sample each, also in subfolders; a folder with one subfolder per
            input, whose first input names the samples; or one file with all samples.
        labels: As for `labelled_images`, or a ``.npy`` file of class numbers in the order of the samples. Samples of
            one file have no names, so that their labels are a list.

    Raises:
        DataError: A sample has no label or an ambiguous one, or some labels are numbers and others names.
    """
    size = data.size if data.size is not None else sum(1 for _ in data)
    sources = data.source.files
    files = tuple(one[0] for one in sources) if sources else tuple(Path(f"sample {index}") for index in range(size))
    if labels is None and (not sources or len(sources[0]) > 1):
        raise DataError(
            f"labels of arrays must be in a file, or the arrays in one folder per class, got neither; in {path}"
        )
    return _labelled_files(files, Path(path), labels)


def _labelled_files(files: tuple[Path, ...], root: Path, labels: str | Path | None) -> LabelledFiles:
    """Return files with their labels: from a file, else from the names of subfolders."""
    if labels is None:
        words = [path.relative_to(root).parts[0] for path in files if path.parent != root]
        if len(words) != len(files):
            loose = next(path for path in files if path.parent == root)
            raise DataError(
                "without a file of labels every sample must be in a subfolder named after its class, "
                f"got {loose.name}; in {root}"
            )
        return _numbered(files, words, str(root))
    names = {path: path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name for path in files}
    table = _read(Path(labels), tuple(names.values()))
    alone = Counter(path.name for path in files)
    found = [_label_of(path, names[path], table, unique=alone[path.name] == 1) for path in files]
    missing = [path for path, label in zip(files, found, strict=True) if label is None]
    if missing:
        raise DataError(
            f"every sample must have a label, got none for {len(missing)} of {len(files)}, such as "
            f"{names[missing[0]]}; in {labels}"
        )
    return _numbered(files, [label for label in found if label is not None], str(labels))


def image_files(root: Path) -> tuple[Path, ...]:
    """Return the images in a folder and its subfolders, in order of their paths.

    Raises:
        DataError: There is no such folder, or no image in it.
    """
    if not root.is_dir():
        raise DataError(f"a folder of labelled images must be an existing folder, got {root}")
    found = (path for path in root.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES and path.name[0] != ".")
    files = tuple(sorted(found, key=lambda path: path.as_posix()))
    if not files:
        raise DataError(f"a folder of labelled images must contain images {IMAGE_SUFFIXES}, got none; in {root}")
    return files


def _numbered(files: tuple[Path, ...], words: list[str], where: str) -> LabelledFiles:
    if all(word.isdecimal() for word in words):
        longest = max(words, key=len, default="")
        if len(longest) > _LONGEST_NUMBER:
            raise DataError(f"the number of a class must be short, got one of {len(longest)} digits; in {where}")
        return LabelledFiles(files, tuple(int(word) for word in words), where=where)
    _check_words(words, where)
    names = tuple(sorted(set(words)))
    number = {name: index for index, name in enumerate(names)}
    return LabelledFiles(files, tuple(number[word] for word in words), names, where)


def _check_words(words: list[str], where: str) -> None:
    """Check that numbers and names are not mixed: numbering both alphabetically would change every class."""
    numbers = Counter(word for word in words if _NUMBER.fullmatch(word))
    if numbers.total() == len(words):
        wrong = next(word for word in words if not word.isdecimal())
        raise DataError(f"labels that are numbers must be class numbers 0, 1, 2, ..., got {wrong!r}; in {where}")
    if numbers:
        name = next(word for word in words if word not in numbers)
        raise DataError(
            f"labels must be all class numbers or all names, got {numbers.total()} numbers such as "
            f"{next(iter(numbers))!r} and {len(words) - numbers.total()} names such as {name!r}; in {where}"
        )


def _read(path: Path, files: tuple[str, ...]) -> dict[str, str]:
    """Return file names to labels as text."""
    if path.suffix.lower() == ".npy":
        stored = load_arrays(path)
        flat = stored.reshape(-1).tolist() if isinstance(stored, np.ndarray) else []
        return _from_rows([[str(label)] for label in flat], files, path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"a file of labels must be readable text, got {error}; in {path}") from error
    if path.suffix.lower() == ".json":
        return _from_json(text, path)
    if path.suffix.lower() == ".csv":
        rows = [row for row in csv.reader(text.splitlines()) if row]
    else:
        rows = [line.rsplit(maxsplit=1) for line in text.splitlines() if line.strip()]
    return _from_rows(rows, files, path)


def _from_json(text: str, path: Path) -> dict[str, str]:
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"a .json file of labels must be valid, got {error}; in {path}") from error
    if not isinstance(plain, dict):
        raise DataError(f"a .json file of labels must be an object of file names to labels, got a list; in {path}")
    return {str(name): str(label).strip() for name, label in plain.items()}


def _from_rows(rows: list[list[str]], files: tuple[str, ...], path: Path) -> dict[str, str]:
    if rows and len(rows[0]) > 1 and rows[0][-1].strip().casefold() in _HEADINGS:
        rows = rows[1:]
    if all(len(row) == 1 for row in rows):
        if len(rows) != len(files):
            raise DataError(
                f"a list of labels without file names must have one per sample, {len(files)}, got {len(rows)}; "
                f"in {path}"
            )
        return {file: row[0].strip() for file, row in zip(files, rows, strict=True)}
    for number, row in enumerate(rows, start=1):
        if len(row) < 2:
            raise DataError(f"each line of labels must have a file and a label, got {row}; line {number} of {path}")
    return {row[0].strip(): row[-1].strip() for row in rows}


def _label_of(file: Path, name: str, table: Mapping[str, str], *, unique: bool) -> str | None:
    names = (name, file.name, file.stem) if unique else (name,)
    return next((table[name] for name in names if name in table), None)


_LONGEST_NUMBER = 9  # digits; no model has more classes

_LOG = logging.getLogger("quantry")


@dataclass(frozen=True)
class LabelledBoxes:
    """One image with its labelled objects.

    Attributes:
        file: The image.
        width: Its width in pixels, in which the boxes are given.
        height: Its height.
        boxes: Corners x0, y0, x1, y1, float64 [n, 4].
        labels: Classes, from 0 in the order of the category ids, int64 [n].
        crowd: Which boxes are a crowd, bool [n].
    """

    file: Path
    width: int
    height: int
    boxes: NDArray[np.float64]
    labels: NDArray[np.int64]
    crowd: NDArray[np.bool_]


@dataclass(frozen=True)
class CocoLabels:
    """The labelled images of a folder.

    Attributes:
        images: The images, in order of their paths.
        categories: Names of the classes.
    """

    images: tuple[LabelledBoxes, ...]
    categories: tuple[str, ...]


def coco_labels(folder: str | Path, annotations: str | Path) -> CocoLabels:
    """Return the images of a folder with their boxes from a COCO file.

    Args:
        folder: The images; subfolders are included.
        annotations: A COCO ``instances`` file; its images that are not in the folder are ignored.

    Raises:
        DataError: The file is not a COCO file, or contains none of the images.
    """
    source = Path(annotations)
    try:
        return _labels(Path(folder), source, _load(source))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            "a COCO file must have file_name and id for each image, id for each category, and image_id, category_id "
            f"and a bbox of four numbers for each annotation, got {type(error).__name__}: {error}; in {source}"
        ) from error


def _labels(folder: Path, source: Path, plain: Mapping[str, Any]) -> CocoLabels:
    ids = sorted(category["id"] for category in plain["categories"])
    names = {category["id"]: str(category.get("name", category["id"])) for category in plain["categories"]}
    objects: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for annotation in plain["annotations"]:
        objects[annotation["image_id"]].append(annotation)
    files = image_files(folder)
    known = _known_images(plain["images"], files, folder)
    images = tuple(_labelled(file, known[file], objects, ids) for file in files if file in known)
    if not images:
        raise DataError(f"a COCO file must contain images of {folder}, got none of {len(files)}; in {source}")
    if len(images) < len(files):
        _LOG.warning(
            "%d of %d images in %s are not in %s and are skipped", len(files) - len(images), len(files), folder, source
        )
    return CocoLabels(images, tuple(names[category] for category in ids))


def _known_images(
    images: Sequence[Mapping[str, Any]], files: Sequence[Path], folder: Path
) -> dict[Path, Mapping[str, Any]]:
    """Return the entry of each file: by its path in the folder, else by its name if that is unique."""
    by_path = {str(image["file_name"]): image for image in images}
    named = Counter(Path(path).name for path in by_path)
    counted = Counter(file.name for file in files)
    by_name = {Path(path).name: image for path, image in by_path.items() if named[Path(path).name] == 1}
    found = {
        file: by_path.get(file.relative_to(folder).as_posix())
        or (by_name.get(file.name) if counted[file.name] == 1 else None)
        for file in files
    }
    return {file: image for file, image in found.items() if image is not None}


def _load(path: Path) -> dict[str, Any]:
    try:
        plain: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"labels of boxes must be a readable COCO file, got {error}; in {path}") from error
    found: dict[str, Any] = plain if isinstance(plain, dict) else {}
    for key in ("images", "annotations", "categories"):
        if not isinstance(found.get(key), list):
            raise DataError(
                f"a COCO file must have the lists images, annotations and categories, got no {key}; in {path}"
            )
    return found


def _labelled(
    file: Path, image: Mapping[str, Any], objects: Mapping[Any, list[Mapping[str, Any]]], ids: list[Any]
) -> LabelledBoxes:
    mine = objects.get(image["id"], [])
    corners = np.array([entry["bbox"] for entry in mine] or np.empty((0, 4)), dtype=np.float64)
    if corners.shape != (len(mine), 4) or not np.isfinite(corners).all():
        raise ValueError(f"bboxes that are not four finite numbers each, of image {file.name}")
    corners[:, 2:] += corners[:, :2]
    number = {category: index for index, category in enumerate(ids)}
    width, height = (int(image[side]) if side in image else size for side, size in _sizes(file, image))
    return LabelledBoxes(
        file,
        width,
        height,
        corners,
        np.array([number[entry["category_id"]] for entry in mine], dtype=np.int64),
        np.array([bool(entry.get("iscrowd", 0)) for entry in mine], dtype=np.bool_),
    )


def _sizes(file: Path, image: Mapping[str, Any]) -> tuple[tuple[str, int], tuple[str, int]]:
    if "width" in image and "height" in image:
        return ("width", 0), ("height", 0)
    from PIL import Image

    with Image.open(file) as opened:
        return ("width", opened.width), ("height", opened.height)
