"""A search as the command line and configuration files describe it, with labelled images."""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from quantry.cli.image_arguments import holds_arrays, number
from quantry.errors import DataError, RecipeError, nearest_spelling
from quantry.recipe.plain_text import yaml_value

if TYPE_CHECKING:
    from quantry.autosearch import SearchOptions, SearchResult
    from quantry.data.calibration_data import CalibrationData
    from quantry.data.images import ImageOptions
    from quantry.evaluate.tasks import DetectionPrecision, RankCorrelation, TopAccuracy

CLASSIFIER_METRICS = {"top1": 1, "top5": 5}
DETECTOR_METRICS = ("map", "map50")
RANK_METRIC = "spearman"
LABELLED_METRICS = (*CLASSIFIER_METRICS, *DETECTOR_METRICS, RANK_METRIC)
METRIC = (
    "With --labels: top1, top5, map, map50 or spearman. Between outputs: l1, l2, cosine, psnr, ssim or sqnr. Or "
    "module:function, which takes a model's path and returns a number. Default: by the labels, else l2."
)
_IMAGE_FLAGS = {
    "mean": "--mean",
    "std": "--std",
    "scale": "--pixel-scale",
    "color": "--color",
    "resize": "--resize",
    "crop_fraction": "--crop-fraction",
    "size": "--size",
}
# Types of the keys of a configuration file; SearchOptions checks its own.
_TYPES: dict[str, tuple[type, str]] = {
    "metric": (str, "text"),
    "decoder": (str, "text"),
    "recipe": (str, "text"),
    "calibration_samples": (int, "a whole number"),
    "images": (Mapping, "a mapping"),
}
_CALIBRATION_SAMPLES = 100
_CLASSES_SHOWN = 10


def _default_options() -> "SearchOptions":
    # Imported on use: the search takes a second to import, which `quantry --help` should not wait for.
    from quantry.autosearch import SearchOptions

    return SearchOptions()


@dataclass(frozen=True)
class SearchJob:
    """What to search. The fields, and those of `SearchOptions`, are the keys of a configuration file.

    Attributes:
        model: The float model.
        data: Calibration data; without ``evaluation_data``, a part of it is held out for evaluation.
        evaluation_data: Evaluation data.
        labels: Labels of the evaluation data: a .csv, .txt or .json file of classes, or a COCO file of boxes; None
            with top1 and top5 takes the names of folders.
        metric: top1, top5, map, map50, or a metric between outputs; None chooses by the labels.
        decoder: Decoder of a detector's outputs: yolox, yolov5, yolov8 or boxes.
        recipe: Name of a preset or a recipe file: the base of the space.
        space: The search space as plain data, a file that holds it, or its name: calibration (default) or accuracy.
        images: How images become inputs.
        calibration_samples: Maximum number of labelled images used for calibration; None is 100.
        options: How to search.
    """

    model: Path
    data: Path | None = None
    evaluation_data: Path | None = None
    labels: Path | None = None
    metric: str | None = None
    decoder: str = "yolox"
    recipe: str = "S8S8_AAWS"
    space: Any = None
    images: Mapping[str, Any] = field(default_factory=dict)
    calibration_samples: int | None = None
    options: "SearchOptions" = field(default_factory=_default_options)

    @classmethod
    def from_plain(cls, plain: object, folder: Path) -> "SearchJob":
        """Read the content of a configuration file.

        Args:
            plain: What the file holds.
            folder: The folder of the file; relative paths of inputs start there.

        Raises:
            RecipeError: A key is unknown, a value has the wrong type, or the model is missing.
        """
        from quantry.autosearch import SearchOptions, split_options, unknown_option

        if not isinstance(plain, Mapping):
            raise RecipeError(f"a search configuration must be a mapping, got {type(plain).__name__}")
        options, values = split_options({key: value for key, value in plain.items() if value is not None})
        known = [part.name for part in fields(cls) if part.name != "options"]
        for key in plain:
            if key not in known and key not in SearchOptions.names():
                raise unknown_option("a search configuration", str(key), known)
        if not values.get("model"):
            raise RecipeError("a search configuration must name the model, got none; write model: model.onnx")
        for key, value in values.items():
            _check_type(key, value)
        return cls(**values | _relative_to(folder, values), options=SearchOptions(**options))

    @property
    def metric_name(self) -> str:
        """The metric, as given or as the labels imply."""
        if self.metric is not None:
            return self.metric if ":" in self.metric else self.metric.lower().replace("-", "")
        if self.labels is None:
            return "l2"
        return "map" if _is_coco(self.labels) else "top1"

    def image_options(self) -> "ImageOptions":
        """Return how images become inputs; the default for detectors is letterbox."""
        from quantry.data.images import ImageOptions

        known = [part.name for part in fields(ImageOptions)]
        for key in self.images:
            if key not in known:
                raise RecipeError(f"images must hold known keys, got {key!r}{nearest_spelling(str(key), known)}")
        # YAML has no fractions: 1/255 arrives as text.
        given: dict[str, Any] = {
            key: number(f"images.{key}", value) if key == "scale" and isinstance(value, str) else value
            for key, value in self.images.items()
        }
        if self.metric_name in DETECTOR_METRICS:
            given.setdefault("resize", "letterbox")
        return ImageOptions(**given)

    def run(self) -> "SearchResult":
        """Search.

        Raises:
            UserError: Something given cannot be used.
        """
        from quantry.autosearch import search
        from quantry.cli.search_space_file import space_from_plain
        from quantry.evaluate.tasks import find_decoder
        from quantry.recipe import resolve_recipe

        base, _ = resolve_recipe(self.recipe)
        find_decoder(self.decoder)  # a misspelled decoder is an error even if no boxes are decoded
        data, evaluator, evaluation = self.evaluation_parts()
        return search(
            self.model,
            data,
            evaluator,
            None if self.space is None else space_from_plain(self.space, base),
            recipe=base,
            evaluation_data=evaluation,
            images=self.image_options() if isinstance(data, Path) and (self.images or not holds_arrays(data)) else None,
            **{name: getattr(self.options, name) for name in self.options.names()},
        )

    def command(self, recipe: Path, found: Path | None = None) -> str:
        """Return the command that quantizes this model with a recipe, on the same data.

        Args:
            recipe: The recipe file.
            found: The output directory of the search, which lists the calibration samples; None takes all data.
        """
        words = ["quantry", "quantize", str(self.model)]
        data = self.data or self.evaluation_data
        if found is not None and self._calibrates_on_a_part:
            arrays = found / "calibration.npz"
            data = arrays if arrays.exists() else found / "calibration.txt"
        if data is not None:
            words += ["--data", str(data)]
        given = dict(self.images)
        if self.metric_name in DETECTOR_METRICS:
            given.setdefault("resize", "letterbox")
        without_flag = {name: given.pop(name) for name in tuple(given) if name not in _IMAGE_FLAGS}
        for name, value in given.items():
            between = "x" if name == "size" else ","
            text = between.join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            # With "=": a value that starts with a minus sign would be parsed as another option.
            words.append(f"{_IMAGE_FLAGS[name]}={text}")
        rest = f"  # and, only in Python: ImageOptions of {without_flag}" if without_flag else ""
        return shlex.join([*words, "--recipe", str(recipe)]) + rest

    @property
    def _calibrates_on_a_part(self) -> bool:
        return self.metric_name in LABELLED_METRICS or self.data is None or self.evaluation_data is None

    def evaluation_parts(self) -> tuple[Any, Any, Any]:
        """Return calibration data, the evaluator or the name of a metric, and evaluation data for the latter.

        Raises:
            UserError: Labels, data and metric do not fit together.
        """
        metric = self.metric_name
        if metric in CLASSIFIER_METRICS:
            return (*_classifier_parts(self, CLASSIFIER_METRICS[metric]), None)
        if metric in DETECTOR_METRICS:
            return (*_detector_parts(self, metric), None)
        if metric == RANK_METRIC:
            return (*_rank_parts(self), None)
        if ":" in metric:
            if self.labels is not None:
                raise RecipeError(f"a function reads its own labels, got --labels and the metric {metric!r}")
            return self.data or self.evaluation_data, load_function(metric), None
        if self.labels is not None:
            raise RecipeError(f"labels need one of the metrics {', '.join(LABELLED_METRICS)}, got {metric!r}")
        if self.calibration_samples is not None:
            raise RecipeError(
                f"calibration_samples needs labelled images, got the metric {metric!r}; use observe.samples of the "
                "recipe"
            )
        if self.data is None:
            return self.evaluation_data, metric, None
        return self.data, metric, self.evaluation_data


def load_job(path: Path) -> SearchJob:
    """Read a configuration file, YAML or JSON.

    Raises:
        RecipeError: It cannot be read, or is not a valid configuration.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"a search configuration must be a readable YAML file, got {error}; in {path}") from error
    try:
        return SearchJob.from_plain(yaml_value(text, "a search configuration"), path.parent)
    except RecipeError as error:
        raise RecipeError(f"{error}; in {path}") from error


def _check_type(key: str, value: object) -> None:
    kind, name = _TYPES.get(key, (object, ""))
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise RecipeError(f"{key} of a search configuration must be {name}, got {value!r}")


def _relative_to(folder: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the paths of inputs, which are relative to the configuration file."""
    files = ("model", "data", "evaluation_data", "labels")
    named = [key for key in ("recipe", "space") if isinstance(values.get(key), str)]
    return {
        **{key: folder / str(values[key]) for key in files if key in values},
        **{key: str(folder / values[key]) for key in named if Path(values[key]).suffix in (".yaml", ".yml", ".json")},
    }


def _is_coco(labels: Path) -> bool:
    if labels.suffix.lower() != ".json":
        return False
    try:
        with labels.open(encoding="utf-8") as file:
            return '"annotations"' in file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"labels must be a readable file, got {error}; in {labels}") from error


def _classifier_parts(job: SearchJob, k: int) -> tuple["CalibrationData", "TopAccuracy"]:
    """Return calibration data and the evaluator of a classifier.

    Raises:
        DataError: There are no images, or they do not match the labels.
    """
    from quantry.evaluate.tasks import class_count, classifier_evaluator, labelled_images

    options = job.image_options()
    found = labelled_images(_labelled_folder(job), job.labels)
    # Including the images used for calibration: one wrong label makes all others doubtful.
    found.check_classes(class_count(job.model))
    if found.names:
        _note_class_order(found.names)
    held_out = _calibration_indices(job, len(found.files))
    calibration = _calibration(job, [found.files[index] for index in held_out], options)
    evaluated = [index for index in range(len(found.files)) if index not in held_out]
    files = tuple(found.files[index] for index in evaluated)
    rest = replace(found, files=files, labels=tuple(found.labels[index] for index in evaluated))
    return calibration, classifier_evaluator(job.model, rest, k=k, options=options)


def _detector_parts(job: SearchJob, kind: str) -> tuple["CalibrationData", "DetectionPrecision"]:
    """Return calibration data and the evaluator of a detector.

    Raises:
        DataError: There are no labels or no images, or they do not match.
    """
    from quantry.evaluate.tasks import CocoLabels, coco_labels, detector_evaluator

    if job.labels is None:
        raise DataError(f"the metric {kind} needs a COCO file of labelled boxes, got none; give --labels")
    options = job.image_options()
    if "resize" not in job.images:
        _note(
            "images of a detector are resized with letterbox; give --resize if it was trained with another method; "
            "`quantry quantize` needs --resize letterbox for the same"
        )
    found = coco_labels(_labelled_folder(job), job.labels)
    held_out = _calibration_indices(job, len(found.images))
    calibration = _calibration(job, [found.images[index].file for index in held_out], options)
    rest = tuple(image for index, image in enumerate(found.images) if index not in held_out)
    labels = CocoLabels(rest, found.categories)
    return calibration, detector_evaluator(job.model, labels, decoder=job.decoder, options=options, kind=kind)


def _rank_parts(job: SearchJob) -> tuple["CalibrationData", "RankCorrelation"]:
    """Return calibration data and the evaluator of a model whose answers are ranked.

    Raises:
        DataError: There are no labels, or they do not fit the data.
    """
    from quantry.data.open_data import calibration_data
    from quantry.data.sample_cache import SampleCache
    from quantry.evaluate.tasks import RankCorrelation, number_labels
    from quantry.graph.float_model import input_signatures
    from quantry.graph.load import model_source

    if job.labels is None:
        raise DataError(f"the metric {RANK_METRIC} needs a file with one number per sample, got none; give --labels")
    inputs = input_signatures(model_source(job.model).load())
    images = job.image_options() if job.images else None
    evaluated = calibration_data(_labelled_folder(job), inputs, images)
    evaluator = RankCorrelation(SampleCache(evaluated), number_labels(job.labels))
    calibration = calibration_data(job.data or job.evaluation_data, inputs, images)
    return calibration.take(job.calibration_samples or _CALIBRATION_SAMPLES), evaluator


def load_function(spelled: str) -> Any:
    """Return the function that ``module:function`` names; modules in the current folder are found.

    Raises:
        RecipeError: There is no such module or function.
    """
    import importlib

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


def _note_class_order(names: tuple[str, ...]) -> None:
    shown = ", ".join(f"{index} {name}" for index, name in enumerate(names[:_CLASSES_SHOWN]))
    more = f", ... {len(names) - 1} {names[-1]}" if len(names) > _CLASSES_SHOWN else ""
    _note(
        f"class names are numbered in alphabetical order: {shown}{more}; if the model numbers them differently, "
        "give its class numbers: a .csv of file,number as --labels"
    )


def _note(text: str) -> None:
    Console(stderr=True).print(f"note: {escape(text)}", soft_wrap=True)


def _labelled_folder(job: SearchJob) -> Path:
    folder = job.evaluation_data or job.data
    if folder is None:
        raise DataError("labelled images must be given, got none; give --data, or --data and --evaluation-data")
    return folder


def _calibration_indices(job: SearchJob, count: int) -> set[int]:
    """Return which labelled images are used for calibration, evenly spread; none if calibration has its own data."""
    if job.evaluation_data is not None and job.data is not None:
        return set()
    if count < 2:
        raise DataError(
            f"there must be at least one image for calibration and one for evaluation, got {count}; "
            "give --evaluation-data"
        )
    # At most a quarter: most labels should be left for the evaluation.
    size = max(1, min(job.calibration_samples or _CALIBRATION_SAMPLES, count // 4))
    return {index * count // size for index in range(size)}


def _calibration(job: SearchJob, files: list[Path], options: "ImageOptions") -> Any:
    from quantry.data.open_data import calibration_data
    from quantry.evaluate.tasks import image_data
    from quantry.graph.float_model import input_signatures
    from quantry.graph.load import model_source

    if files:
        return image_data(job.model, tuple(files), options)
    inputs = input_signatures(model_source(job.model).load())
    return calibration_data(job.data, inputs, options).take(job.calibration_samples or _CALIBRATION_SAMPLES)
