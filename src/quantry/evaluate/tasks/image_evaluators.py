"""Create evaluators from a float model and files on disk."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from quantry.data.calibration_data import CalibrationData
from quantry.data.images import Frame, ImageOptions, ImageSource
from quantry.data.open_data import calibration_data
from quantry.data.sample_cache import SampleCache
from quantry.errors import DataError, RecipeError
from quantry.evaluate.tasks.average_precision import DetectionPrecision
from quantry.evaluate.tasks.detections import Decoder, find_decoder
from quantry.evaluate.tasks.labels import CocoLabels, LabelledFiles, coco_labels, labelled_images
from quantry.evaluate.tasks.output_distance import OutputDistance
from quantry.evaluate.tasks.top_accuracy import TopAccuracy
from quantry.graph.float_model import InputSignature, input_signatures
from quantry.graph.load import model_source


def classifier_evaluator(
    model: str | Path,
    images: str | Path | LabelledFiles,
    labels: str | Path | None = None,
    *,
    k: int = 1,
    options: ImageOptions | None = None,
) -> TopAccuracy:
    """Return an evaluator of a classifier on labelled images.

    Args:
        model: The float model, for the shape of its input.
        images: A folder of images, or the result of `labelled_images`.
        labels: A file of labels; None uses the subfolders as classes. See `labelled_images`.
        k: 1 for top-1, 5 for top-5.
        options: How images become inputs.

    Raises:
        DataError: Images, labels and model do not fit together.
    """
    found = images if isinstance(images, LabelledFiles) else labelled_images(images, labels)
    found.check_classes(class_count(model))
    samples = SampleCache(image_data(model, found.files, options or ImageOptions()))
    group = len(found.files) // len(samples)
    classes = np.array(found.labels[: group * len(samples)], np.int64)
    return TopAccuracy(samples, classes if group == 1 else classes.reshape(len(samples), group), k)


def class_count(model: str | Path) -> int | None:
    """Return a classifier's number of classes, from the shape of its first output; None if unknown.

    Args:
        model: The float model.
    """
    outputs = model_source(model).load().graph.outputs
    shape = outputs[0].shape if outputs else None
    if shape is None or len(shape) == 0:
        return None
    # The first axis is the batch; if it is the only axis, there is one sample.
    sides = [side for side in tuple(shape)[1:] or tuple(shape) if isinstance(side, int)]
    return math.prod(sides) if len(sides) == max(1, len(shape) - 1) else None


def detector_evaluator(
    model: str | Path,
    images: str | Path | CocoLabels,
    annotations: str | Path | None = None,
    *,
    decoder: Decoder | str = "yolox",
    options: ImageOptions | None = None,
    kind: str = "map",
) -> DetectionPrecision:
    """Return an evaluator of a detector on images labelled in COCO's format.

    Args:
        model: The float model, for the shape of its input.
        images: A folder of images, or the result of `coco_labels`.
        annotations: A COCO ``instances`` file, for a folder.
        decoder: Converts outputs to boxes: a name of `DECODERS`, or a callable.
        options: How images become inputs; None uses letterboxes with the padding at the end.
        kind: "map" or "map50".

    Raises:
        DataError: Images, labels and model do not fit together.
    """
    chosen = options or ImageOptions(resize="letterbox")
    labels = images if isinstance(images, CocoLabels) else _labels(images, annotations)
    data = image_data(model, tuple(image.file for image in labels.images), chosen)
    frame = Frame.of(data.inputs[0], chosen, str(labels.images[0].file.parent))
    decode = find_decoder(decoder) if isinstance(decoder, str) else decoder
    return DetectionPrecision(SampleCache(data), labels, (frame.height, frame.width), decode, chosen, kind)


def _labels(images: str | Path, annotations: str | Path | None) -> CocoLabels:
    if annotations is None:
        raise DataError(f"a detector needs a COCO file of labelled boxes, got none for {images}")
    return coco_labels(images, annotations)


def distance_evaluator(
    model: str | Path, data: Any, metric: str = "l2", *, options: ImageOptions | None = None
) -> OutputDistance:
    """Return an evaluator that compares outputs with the float model's.

    Args:
        model: The float model.
        data: Samples in any form that `quantry.quantize` accepts.
        metric: Name of a built-in metric.
        options: How images become inputs.

    Raises:
        DataError: The data does not fit the model.
        RecipeError: There is no such metric.
    """
    if not isinstance(model, str | Path):
        raise RecipeError(f"the float model must be a path, got {type(model).__name__}; in distance_evaluator")
    return OutputDistance(model, SampleCache(calibration_data(data, _signatures(model), options)), metric)


def image_data(model: str | Path, files: tuple[Path, ...], options: ImageOptions) -> CalibrationData:
    """Return image files as inputs of a model.

    Args:
        model: The float model.
        files: The images, at least one.
        options: How images become inputs.
    """
    inputs = _signatures(model)
    return CalibrationData(ImageSource(files, options, inputs, str(files[0].parent)), inputs)


def _signatures(model: str | Path) -> tuple[InputSignature, ...]:
    return input_signatures(model_source(model).load())
