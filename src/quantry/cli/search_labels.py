"""Labelled images of a search: some calibrate, the others judge."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from quantry.errors import DataError

if TYPE_CHECKING:
    from quantry.cli.search_job import SearchJob
    from quantry.data.calibration_data import CalibrationData
    from quantry.data.images import ImageOptions
    from quantry.evaluate.tasks import DetectionPrecision, TopAccuracy

_CALIBRATION_SAMPLES = 100
_NAMED = 10


def classifier_parts(job: "SearchJob", k: int) -> tuple["CalibrationData", "TopAccuracy"]:
    """Return calibration data and the evaluator of a classifier.

    Raises:
        DataError: There are no images, or they do not go with the labels.
    """
    from quantry.evaluate.tasks import class_count, classifier_evaluator, labelled_images

    options = job.image_options()
    found = labelled_images(_judged_folder(job), job.labels)
    # All of them, also those that will calibrate: one that is wrong makes the others doubtful.
    found.check_classes(class_count(job.model))
    if found.names:
        _note_order(found.names)
    kept = _kept_for_calibration(job, len(found.files))
    calibration = _calibration(job, [found.files[index] for index in kept], options)
    judged = [index for index in range(len(found.files)) if index not in kept]
    files = tuple(found.files[index] for index in judged)
    rest = replace(found, files=files, labels=tuple(found.labels[index] for index in judged))
    return calibration, classifier_evaluator(job.model, rest, k=k, options=options)


def detector_parts(job: "SearchJob", kind: str) -> tuple["CalibrationData", "DetectionPrecision"]:
    """Return calibration data and the evaluator of a detector.

    Raises:
        DataError: There are no labels, no images, or they do not go together.
    """
    from quantry.evaluate.tasks import CocoLabels, coco_labels, detector_evaluator

    if job.labels is None:
        raise DataError(f"the metric {kind} needs a COCO file of labelled boxes, got none; give --labels")
    options = job.image_options()
    if "resize" not in job.images:
        _note(
            "images of a detector are fitted as letterboxes; give --resize if it was trained otherwise; "
            "`quantry quantize` wants --resize letterbox for the same"
        )
    found = coco_labels(_judged_folder(job), job.labels)
    kept = _kept_for_calibration(job, len(found.images))
    calibration = _calibration(job, [found.images[index].file for index in kept], options)
    rest = tuple(image for index, image in enumerate(found.images) if index not in kept)
    labels = CocoLabels(rest, found.categories)
    return calibration, detector_evaluator(job.model, labels, decoder=job.decoder, options=options, kind=kind)


def _note_order(names: tuple[str, ...]) -> None:
    shown = ", ".join(f"{number} {name}" for number, name in enumerate(names[:_NAMED]))
    more = f", ... {len(names) - 1} {names[-1]}" if len(names) > _NAMED else ""
    _note(
        f"classes are named and the names numbered in alphabetical order: {shown}{more}; if the model numbers them "
        "otherwise, give its class numbers: a .csv of file,number as --labels"
    )


def _note(text: str) -> None:
    Console(stderr=True).print(f"note: {escape(text)}", soft_wrap=True)


def _judged_folder(job: "SearchJob") -> Path:
    folder = job.evaluation_data or job.data
    if folder is None:
        raise DataError("labelled images must be given, got none; give --data, or --data and --eval-data")
    return folder


def _kept_for_calibration(job: "SearchJob", count: int) -> set[int]:
    """Return which labelled images calibrate, evenly spread; none where calibration has data of its own."""
    if job.evaluation_data is not None and job.data is not None:
        return set()
    if count < 2:
        raise DataError(f"there must be an image to calibrate on and one to judge by, got {count}; give --eval-data")
    number = max(1, min(job.calibration_samples or _CALIBRATION_SAMPLES, count // 4))
    return {index * count // number for index in range(number)}


def _calibration(job: "SearchJob", files: list[Path], options: "ImageOptions") -> Any:
    from quantry.data.open_data import calibration_data
    from quantry.evaluate.tasks import image_data
    from quantry.graph.float_model import input_signatures
    from quantry.graph.load import model_source

    if files:
        return image_data(job.model, tuple(files), options)
    inputs = input_signatures(model_source(job.model).load())
    return calibration_data(job.data, inputs, options).take(job.calibration_samples or _CALIBRATION_SAMPLES)
