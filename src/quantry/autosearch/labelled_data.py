"""Calibration data and an evaluator from what a user has: files of samples, labels and the name of a metric."""

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from quantry.data.calibration_data import CalibrationData
from quantry.data.images import ImageOptions
from quantry.data.open_data import calibration_data, holds_arrays
from quantry.data.sample_cache import SampleCache
from quantry.data.subset import Subset
from quantry.errors import DataError, RecipeError, nearest_spelling
from quantry.evaluate.tasks import (
    CocoLabels,
    DetectionPrecision,
    LabelledFiles,
    RankCorrelation,
    TopAccuracy,
    class_count,
    classifier_evaluator,
    coco_labels,
    detector_evaluator,
    find_decoder,
    image_data,
    labelled_arrays,
    labelled_images,
    number_labels,
)
from quantry.graph.float_model import input_signatures
from quantry.graph.load import model_source

CLASSIFIER_METRICS = {"top1": 1, "top5": 5}
"""Metrics of classifiers, and how many classes count."""

DETECTOR_METRICS = ("map", "map50")
"""Metrics of detectors."""

RANK_METRIC = "spearman"
"""The metric of models whose answers are ranked."""

LABELLED_METRICS = (*CLASSIFIER_METRICS, *DETECTOR_METRICS, RANK_METRIC)
"""Metrics that need labels."""

DEFAULT_METRIC = "l2"
"""The metric without labels."""

_CALIBRATION_SAMPLES = 100
_CLASSES_SHOWN = 10


@dataclass(frozen=True)
class LabelledData:
    """What a search is evaluated on, as the user gives it.

    Attributes:
        model: The float model.
        data: Calibration data; without ``evaluation_data``, a part of it is held out for evaluation.
        evaluation_data: Evaluation data.
        labels: Labels of the evaluation data: classes in a .csv, .txt, .json or .npy file, or a COCO file of boxes;
            None with top1 and top5 takes the names of folders.
        metric: One of `LABELLED_METRICS`, a metric between outputs, or ``module:function``; None chooses by the labels.
        decoder: Decoder of a detector's outputs: yolox, yolov5, yolov8, boxes, or a function.
        images: How images become inputs; detectors use letterboxes unless it says otherwise.
        calibration_samples: Maximum number of labelled images used for calibration; None is 100.
        notes: What the user should know, filled by `parts`.
    """

    model: Path
    data: Any = None
    evaluation_data: Any = None
    labels: str | Path | None = None
    metric: str | None = None
    decoder: Any = "yolox"
    images: ImageOptions | Mapping[str, Any] | None = None
    calibration_samples: int | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def metric_name(self) -> str:
        """The metric, as given or as the labels imply."""
        if self.metric is not None:
            return self.metric if ":" in self.metric else self.metric.lower().replace("-", "")
        if self.labels is None:
            return DEFAULT_METRIC
        return "map" if _is_coco(Path(self.labels)) else "top1"

    @property
    def is_labelled(self) -> bool:
        """Whether the metric compares with labels."""
        return self.metric_name in LABELLED_METRICS

    def image_options(self) -> ImageOptions:
        """Return how images become inputs; the default for detectors is letterbox.

        Raises:
            RecipeError: A key is unknown.
        """
        if isinstance(self.images, ImageOptions):
            return self.images
        given = dict(self.images or {})
        known = [part.name for part in fields(ImageOptions)]
        for key in given:
            if key not in known:
                raise RecipeError(f"images must hold known keys, got {key!r}{nearest_spelling(str(key), known)}")
        if self.metric_name in DETECTOR_METRICS:
            given.setdefault("resize", "letterbox")
        return ImageOptions(**given)

    def parts(self) -> tuple[Any, Any, Any]:
        """Return calibration data, the evaluator or the name of a metric, and evaluation data for the latter.

        Raises:
            UserError: Labels, data and metric do not fit together.
        """
        metric = self.metric_name
        if isinstance(self.decoder, str):
            find_decoder(self.decoder)  # a misspelled decoder is an error even if no boxes are decoded
        if metric in CLASSIFIER_METRICS:
            return (*self._classifier_parts(CLASSIFIER_METRICS[metric]), None)
        if metric in DETECTOR_METRICS:
            return (*self._detector_parts(metric), None)
        if metric == RANK_METRIC:
            return (*self._rank_parts(), None)
        if ":" in metric:
            if self.labels is not None:
                raise RecipeError(f"a function reads its own labels, got --labels and the metric {metric!r}")
            return self.data if self.data is not None else self.evaluation_data, load_function(metric), None
        if self.labels is not None:
            hint = nearest_spelling(metric, LABELLED_METRICS)
            raise RecipeError(f"labels need one of the metrics {', '.join(LABELLED_METRICS)}, got {metric!r}{hint}")
        if self.calibration_samples is not None:
            raise RecipeError(
                f"calibration_samples needs labelled images, got the metric {metric!r}; use observe.samples of the "
                "recipe"
            )
        if self.data is None:
            return self.evaluation_data, metric, None
        return self.data, metric, self.evaluation_data

    def _classifier_parts(self, k: int) -> tuple[CalibrationData, TopAccuracy]:
        if holds_arrays(self._folder()):
            return self._array_parts(k)
        options = self.image_options()
        found = self._checked(labelled_images(self._folder(), self.labels))
        held_out = self._calibration_indices(len(found.files))
        calibration = self._calibration([found.files[index] for index in held_out], options)
        evaluated = [index for index in range(len(found.files)) if index not in held_out]
        files = tuple(found.files[index] for index in evaluated)
        rest = replace(found, files=files, labels=tuple(found.labels[index] for index in evaluated))
        return calibration, classifier_evaluator(self.model, rest, k=k, options=options)

    def _array_parts(self, k: int) -> tuple[CalibrationData, TopAccuracy]:
        """Return the parts for a classifier whose samples are arrays."""
        inputs = input_signatures(model_source(self.model).load())
        images = self.image_options() if self.images else None
        data = calibration_data(self._folder(), inputs, images)
        found = self._checked(labelled_arrays(data, self._folder(), self.labels))
        held_out = self._calibration_indices(len(found.labels))
        evaluated = [index for index in range(len(found.labels)) if index not in held_out]
        evaluation = CalibrationData(Subset(data, evaluated), inputs)
        classes = np.array([found.labels[index] for index in evaluated], np.int64)
        if held_out:
            calibration = CalibrationData(Subset(data, held_out), inputs)
        else:
            calibration = calibration_data(self.data, inputs).take(self.calibration_samples or _CALIBRATION_SAMPLES)
        return calibration, TopAccuracy(SampleCache(evaluation), classes, k)

    def _checked(self, found: LabelledFiles) -> LabelledFiles:
        """Return labelled samples after checking their classes, those used for calibration included.

        One wrong label makes all others doubtful.
        """
        found.check_classes(class_count(self.model))
        if found.names:
            self.notes.append(_class_order(found.names))
        return found

    def _detector_parts(self, kind: str) -> tuple[CalibrationData, DetectionPrecision]:
        if self.labels is None:
            raise DataError(f"the metric {kind} needs a COCO file of labelled boxes, got none; give --labels")
        options = self.image_options()
        if not isinstance(self.images, ImageOptions) and "resize" not in (self.images or {}):
            self.notes.append(
                "images of a detector are resized with letterbox; give --resize if it was trained with another "
                "method; `quantry quantize` needs --resize letterbox for the same"
            )
        found = coco_labels(self._folder(), Path(self.labels))
        held_out = self._calibration_indices(len(found.images))
        calibration = self._calibration([found.images[index].file for index in held_out], options)
        rest = tuple(image for index, image in enumerate(found.images) if index not in held_out)
        labels = CocoLabels(rest, found.categories)
        return calibration, detector_evaluator(self.model, labels, decoder=self.decoder, options=options, kind=kind)

    def _rank_parts(self) -> tuple[CalibrationData, RankCorrelation]:
        if self.labels is None:
            raise DataError(
                f"the metric {RANK_METRIC} needs a file with one number per sample, got none; give --labels"
            )
        inputs = input_signatures(model_source(self.model).load())
        images = self.image_options() if self.images else None
        evaluated = calibration_data(self._folder(), inputs, images)
        evaluator = RankCorrelation(SampleCache(evaluated), number_labels(Path(self.labels)))
        calibration = calibration_data(self.data if self.data is not None else self.evaluation_data, inputs, images)
        return calibration.take(self.calibration_samples or _CALIBRATION_SAMPLES), evaluator

    def _folder(self) -> Path:
        folder = self.evaluation_data if self.evaluation_data is not None else self.data
        if folder is None:
            raise DataError("labelled samples must be given, got none; give --data, or --data and --evaluation-data")
        if not isinstance(folder, str | Path):
            raise DataError(
                f"labelled samples must be in a folder or a file, got {type(folder).__name__}; give an evaluator"
            )
        return Path(folder)

    def _calibration_indices(self, count: int) -> set[int]:
        """Return which labelled samples calibrate, evenly spread; none if calibration has its own data."""
        if self.evaluation_data is not None and self.data is not None:
            return set()
        if count < 2:
            raise DataError(
                f"there must be at least one sample for calibration and one for evaluation, got {count}; "
                "give --evaluation-data"
            )
        # At most a quarter: most labels should be left for the evaluation.
        size = max(1, min(self.calibration_samples or _CALIBRATION_SAMPLES, count // 4))
        return {index * count // size for index in range(size)}

    def _calibration(self, files: list[Path], options: ImageOptions) -> CalibrationData:
        if files:
            return image_data(self.model, tuple(files), options)
        inputs = input_signatures(model_source(self.model).load())
        return calibration_data(self.data, inputs, options).take(self.calibration_samples or _CALIBRATION_SAMPLES)


def load_function(spelled: str) -> Any:
    """Return the function that ``module:function`` names; modules in the current folder are found.

    Raises:
        RecipeError: There is no such module or function.
    """
    module, _, name = spelled.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        # It stays there: worker processes import the function again.
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise RecipeError(f"--metric must name an existing module:function, got {spelled!r}: {error}") from error
    if not callable(found):
        raise RecipeError(f"--metric must name a function, got {spelled!r}, which is a {type(found).__name__}")
    return found


def _is_coco(labels: Path) -> bool:
    if labels.suffix.lower() != ".json":
        return False
    try:
        with labels.open(encoding="utf-8") as file:
            return '"annotations"' in file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"labels must be a readable file, got {error}; in {labels}") from error


def _class_order(names: tuple[str, ...]) -> str:
    shown = ", ".join(f"{index} {name}" for index, name in enumerate(names[:_CLASSES_SHOWN]))
    more = f", ... {len(names) - 1} {names[-1]}" if len(names) > _CLASSES_SHOWN else ""
    return (
        f"class names are numbered in alphabetical order: {shown}{more}; if the model numbers them differently, "
        "give its class numbers: a .csv of file,number as --labels"
    )
