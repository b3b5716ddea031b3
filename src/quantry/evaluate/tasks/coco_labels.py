"""Labelled boxes in COCO's JSON format."""

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantry.errors import DataError
from quantry.evaluate.tasks.class_labels import image_files

_LOG = logging.getLogger("quantry")


@dataclass(frozen=True)
class LabelledBoxes:
    """One image with its objects.

    Attributes:
        file: The image.
        width: Its width in pixels, in which the boxes are given.
        height: Its height.
        boxes: Corners x0, y0, x1, y1, float64 [n, 4].
        labels: Classes, from 0 in the order of the category ids, int64 [n].
        crowd: Which boxes stand for a crowd, bool [n].
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
        images: The images, in the order of their paths.
        categories: Names of the classes.
    """

    images: tuple[LabelledBoxes, ...]
    categories: tuple[str, ...]


def coco_labels(folder: str | Path, annotations: str | Path) -> CocoLabels:
    """Return the images of a folder with the boxes that a COCO file has for them.

    Args:
        folder: The images; sub-folders are looked into.
        annotations: A COCO ``instances`` file; images it has but the folder has not are left out.

    Raises:
        DataError: The file is no COCO file, or knows none of the images.
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
        raise DataError(f"a COCO file must know images of {folder}, got none of {len(files)}; in {source}")
    if len(images) < len(files):
        _LOG.warning(
            "%d of %d images in %s are not in %s and are left out", len(files) - len(images), len(files), folder, source
        )
    return CocoLabels(images, tuple(names[category] for category in ids))


def _known_images(
    images: Sequence[Mapping[str, Any]], files: Sequence[Path], folder: Path
) -> dict[Path, Mapping[str, Any]]:
    """Return the entry of each file: by its path in the folder, else by its name where that is the only one."""
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
    except (OSError, ValueError) as error:
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
    corners = np.array([entry["bbox"] for entry in mine], dtype=np.float64).reshape(-1, 4)
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
