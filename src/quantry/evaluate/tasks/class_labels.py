"""Labels of images: from a file, or from the folders the images are in."""

import csv
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quantry.errors import DataError
from quantry.observe.image_folder import IMAGE_SUFFIXES

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_HEADINGS = ("label", "class", "class_id", "category", "target")


@dataclass(frozen=True)
class LabelledFiles:
    """Image files with the class of each.

    Attributes:
        files: The files, in the order of their paths.
        labels: The class of each.
        names: Names of the classes where folders or words name them; empty where labels are numbers.
        where: The file or folder the labels are from, for messages.
    """

    files: tuple[Path, ...]
    labels: tuple[int, ...]
    names: tuple[str, ...] = ()
    where: str = field(default="the labels", compare=False)

    def check_classes(self, classes: int | None) -> None:
        """Refuse labels that cannot be classes of a model.

        Args:
            classes: How many classes the model tells apart; None where that is not known.

        Raises:
            DataError: A number is out of range, or there are more or fewer names than classes.
        """
        if classes is None:
            return
        if self.names and len(self.names) != classes:
            # Words are numbered by their order, which says nothing about the model's where some are missing.
            few = ", ".join(self.names[:3])
            raise DataError(
                f"classes given by name must be as many as the model's, {classes}, since they are numbered in "
                f"alphabetical order, got {len(self.names)}: {few}{', ...' if len(self.names) > 3 else ''}; give the "
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
        folder: The folder; sub-folders are looked into.
        labels: One of these.

            - None: each sub-folder is a class, numbered in the order of the names.
            - A ``.csv`` file with the columns file and label, with or without a heading.
            - A ``.json`` file: an object of file names to labels.
            - A ``.txt`` file: "file label" in each line, or one label in each line for the images in the order of
              their paths.

            Files are named by their path in the folder or, where no other has it, their name alone. Labels are class
            numbers; words are numbered in alphabetical order, so there must be one for each class of the model.

    Raises:
        DataError: There are no images, or a file has no label, or only one that several files of its name could mean;
            or some labels are numbers and others names.
    """
    root = Path(folder)
    files = image_files(root)
    if labels is None:
        words = [path.relative_to(root).parts[0] for path in files if path.parent != root]
        if len(words) != len(files):
            loose = next(path for path in files if path.parent == root)
            raise DataError(
                "without a file of labels every image must be in a sub-folder named for its class, "
                f"got {loose.name}; in {root}"
            )
        return _numbered(files, words, str(root))
    names = {path: path.relative_to(root).as_posix() for path in files}
    table = _read(Path(labels), tuple(names.values()))
    alone = Counter(path.name for path in files)
    found = [_label_of(path, names[path], table, unique=alone[path.name] == 1) for path in files]
    missing = [path for path, label in zip(files, found, strict=True) if label is None]
    if missing:
        raise DataError(
            f"every image must have a label, got none for {len(missing)} of {len(files)}, such as "
            f"{names[missing[0]]}; in {labels}"
        )
    return _numbered(files, [label for label in found if label is not None], str(labels))


def image_files(root: Path) -> tuple[Path, ...]:
    """Return the images in a folder and its sub-folders, in the order of their paths.

    Raises:
        DataError: There is no such folder, or no image in it.
    """
    if not root.is_dir():
        raise DataError(f"labelled images must be in a folder, got the path {root}, where none is")
    found = (path for path in root.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES and path.name[0] != ".")
    files = tuple(sorted(found, key=lambda path: path.as_posix()))
    if not files:
        raise DataError(f"a folder of labelled images must hold images {IMAGE_SUFFIXES}, got none; in {root}")
    return files


def _numbered(files: tuple[Path, ...], words: list[str], where: str) -> LabelledFiles:
    if all(word.isdecimal() for word in words):
        return LabelledFiles(files, tuple(int(word) for word in words), where=where)
    _check_words(words, where)
    names = tuple(sorted(set(words)))
    number = {name: index for index, name in enumerate(names)}
    return LabelledFiles(files, tuple(number[word] for word in words), names, where)


def _check_words(words: list[str], where: str) -> None:
    """Refuse numbers among names: numbering both by the alphabet would move every class."""
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
    except ValueError as error:
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
                f"a list of labels without file names must have one for each of the {len(files)} images, "
                f"got {len(rows)}; in {path}"
            )
        return {file: row[0].strip() for file, row in zip(files, rows, strict=True)}
    for number, row in enumerate(rows, start=1):
        if len(row) < 2:
            raise DataError(f"each line of labels must have a file and a label, got {row}; line {number} of {path}")
    return {row[0].strip(): row[-1].strip() for row in rows}


def _label_of(file: Path, name: str, table: Mapping[str, str], *, unique: bool) -> str | None:
    names = (name, file.name, file.stem) if unique else (name,)
    return next((table[name] for name in names if name in table), None)
