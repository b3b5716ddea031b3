"""Labelled images of a search: some calibrate, the others judge."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantry.errors import DataError

if TYPE_CHECKING:
    from quantry.cli.search_job import SearchJob
    from quantry.evaluate.tasks import DetectionPrecision, TopAccuracy
    from quantry.observe import CalibrationData, ImageOptions

_CALIBRATION_SAMPLES = 100


def classifier_parts(job: "SearchJob", k: int) -> tuple["CalibrationData", "TopAccuracy"]:
    """Return calibration data and the evaluator of a classifier.

    Raises:
        DataError: There are no images, or they do not go with the labels.
    """
    from quantry.evaluate.tasks import LabelledFiles, classifier_evaluator, labelled_images

    options = job.image_options()
    found = labelled_images(_judged_folder(job), job.labels)
    kept = _kept_for_calibration(job, len(found.files))
    calibration = _calibration(job, [found.files[index] for index in kept], options)
    judged = [index for index in range(len(found.files)) if index not in kept]
    files = tuple(found.files[index] for index in judged)
    rest = LabelledFiles(files, tuple(found.labels[index] for index in judged), found.names)
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
    found = coco_labels(_judged_folder(job), job.labels)
    kept = _kept_for_calibration(job, len(found.images))
    calibration = _calibration(job, [found.images[index].file for index in kept], options)
    rest = tuple(image for index, image in enumerate(found.images) if index not in kept)
    labels = CocoLabels(rest, found.categories)
    return calibration, detector_evaluator(job.model, labels, decoder=job.decoder, options=options, kind=kind)


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
    from quantry.evaluate.tasks import image_data
    from quantry.observe import calibration_data
    from quantry.prepare import model_source
    from quantry.prepare.float_model import input_signatures

    if files:
        return image_data(job.model, tuple(files), options)
    inputs = input_signatures(model_source(job.model).load())
    return calibration_data(job.data, inputs, options).take(job.calibration_samples or _CALIBRATION_SAMPLES)
