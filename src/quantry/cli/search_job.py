"""A search as the command line and its configuration files describe it."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantry.cli.image_arguments import holds_arrays, number
from quantry.errors import DataError, RecipeError, nearest_spelling

if TYPE_CHECKING:
    from quantry.autosearch import SearchResult
    from quantry.data.images import ImageOptions

CLASSIFIER_METRICS = {"top1": 1, "top5": 5}
DETECTOR_METRICS = ("map", "map50")
_IMAGE_FLAGS = {
    "mean": "--mean",
    "std": "--std",
    "scale": "--pixel-scale",
    "color": "--color",
    "resize": "--resize",
    "crop_fraction": "--crop-fraction",
}
_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("metric", "decoder", "recipe", "sampler", "storage"), str),
    **dict.fromkeys(("trials", "candidates", "jobs", "seed", "calibration_samples"), int),
    "timeout": (int, float),
    "racing": bool,
    "images": Mapping,
    "objectives": list,
}
_TYPE_NAMES: dict[type, str] = {
    str: "text",
    int: "a whole number",
    bool: "true or false",
    Mapping: "a mapping",
    list: "a list",
}


@dataclass(frozen=True)
class SearchJob:
    """What to search, with what and for how long. The fields are the keys of a configuration file.

    Attributes:
        model: The float model.
        data: Calibration data; with labels and without ``evaluation_data``, a part of it is kept for evaluation.
        evaluation_data: What models are judged by.
        labels: Of the evaluation data: a .csv, .txt or .json file of classes, or a COCO file of boxes; None with top1
            and top5 takes the names of folders.
        metric: top1, top5, map, map50, or a metric between outputs; None follows from the labels.
        decoder: From a detector's outputs to boxes: yolox, yolov5, yolov8 or boxes.
        recipe: Name of a preset or a recipe file that the space starts from.
        space: What is tried, a file that holds it, or the name of it: calibration (also None) or accuracy.
        images: How images become inputs.
        budget: The most time, such as "30min".
        tolerance: How much worse than the float model is accepted: a number or "1%".
        sampler: Who chooses: grid, random, tpe, cmaes, gp, nsga2 or qmc.
        trials: At most so many trials.
        candidates: Stop when so many are within tolerance.
        jobs: Worker processes.
        objectives: Beside accuracy: latency, size, bit_operations.
        racing: Stop evaluating what cannot win.
        seed: Start of random numbers.
        timeout: Seconds after which a trial counts as failed.
        output: Folder for everything that is written.
        calibration_samples: Use at most so many labelled images for calibration; None uses 100.
        storage: URL of the database that keeps the study; None is a file in the folder.
        cluster: Address of the Ray cluster that runs the trials; None is this machine.
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
    budget: float | str | None = None
    tolerance: float | str | None = None
    sampler: str = "tpe"
    trials: int | None = None
    candidates: int | None = None
    jobs: int = 1
    objectives: tuple[str, ...] = ()
    racing: bool = False
    seed: int = 0
    timeout: float | None = None
    output: Path = Path("quantry_search")
    calibration_samples: int | None = None
    storage: str | None = None
    cluster: str | None = None

    @classmethod
    def from_plain(cls, plain: object, folder: Path) -> "SearchJob":
        """Read a configuration file's content.

        Args:
            plain: What the file holds.
            folder: The file's, from which relative paths of inputs are taken.

        Raises:
            RecipeError: A key is unknown, a value has the wrong type, or the model is missing.
        """
        if not isinstance(plain, Mapping):
            raise RecipeError(f"a search's configuration must be a mapping, got {type(plain).__name__}")
        known = [part.name for part in fields(cls)]
        for key in plain:
            if key not in known:
                raise RecipeError(
                    f"a search's configuration must hold known keys, got {key!r}{nearest_spelling(str(key), known)}"
                )
        if not plain.get("model"):
            raise RecipeError("a search's configuration must name the model, got none; write model: model.onnx")
        values = {key: value for key, value in plain.items() if value is not None}
        for key, value in values.items():
            _check_type(key, value)
        if "output" in values:
            values["output"] = Path(str(values["output"]))
        values["objectives"] = tuple(values.get("objectives", ()))
        return cls(**values | _beside(values, folder))

    @property
    def judged_by(self) -> str:
        """The metric, as given or as the labels suggest."""
        if self.metric is not None:
            return self.metric.lower().replace("-", "")
        if self.labels is None:
            return "l2"
        return "map" if _is_coco(self.labels) else "top1"

    def image_options(self) -> "ImageOptions":
        """Return how images become inputs; detectors get letterboxes where nothing else is said."""
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
        if self.judged_by in DETECTOR_METRICS:
            given.setdefault("resize", "letterbox")
        return ImageOptions(**given)

    def run(self) -> "SearchResult":
        """Search.

        Raises:
            UserError: Something given cannot be used.
        """
        from quantry.autosearch import StopConditions, search
        from quantry.cli.search_space_file import space_from_plain
        from quantry.evaluate.tasks import find_decoder
        from quantry.recipe import resolve_recipe

        base, _ = resolve_recipe(self.recipe)
        find_decoder(self.decoder)  # a misspelt one is told also where boxes are not judged
        data, evaluator, evaluation = self._judge()
        return search(
            self.model,
            data,
            evaluator,
            None if self.space is None else space_from_plain(self.space, base),
            self.budget,
            recipe=base,
            evaluation_data=evaluation,
            images=self.image_options() if isinstance(data, Path) and (self.images or not holds_arrays(data)) else None,
            sampler=self.sampler,
            tolerance=_tolerance(self.tolerance),
            stop=StopConditions(n_candidates=self.candidates, iterations=self.trials),
            seed=self.seed,
            n_jobs=self.jobs,
            racing=self.racing,
            trial_timeout=self.timeout,
            output_dir=self.output,
            storage=self.storage,
            cluster=self.cluster,
            objectives=("accuracy", *(name for name in self.objectives if name != "accuracy")),
        )

    def command(self, recipe: Path, found: Path | None = None) -> str:
        """Return the command that quantizes this model on these data with a recipe.

        Args:
            recipe: The recipe's file.
            found: The folder of the search, which names the samples that it calibrated on; None takes all data.
        """
        words = ["quantry", "quantize", str(self.model)]
        data = self.data or self.evaluation_data
        if found is not None and self._calibrates_on_a_part:
            arrays = found / "calibration.npz"
            data = arrays if arrays.exists() else found / "calibration.txt"
        if data is not None:
            words += ["--data", str(data)]
        given = dict(self.images)
        if self.judged_by in DETECTOR_METRICS:
            given.setdefault("resize", "letterbox")
        unsaid = {name: given.pop(name) for name in tuple(given) if name not in _IMAGE_FLAGS}
        for name, value in given.items():
            text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            # With "=", because a text that begins with a minus would be taken for another option.
            words.append(f"{_IMAGE_FLAGS[name]}={text}")
        rest = f"  # and, in Python only: ImageOptions of {unsaid}" if unsaid else ""
        return shlex.join([*words, "--recipe", str(recipe)]) + rest

    @property
    def _calibrates_on_a_part(self) -> bool:
        labelled = self.judged_by in CLASSIFIER_METRICS or self.judged_by in DETECTOR_METRICS
        return labelled or self.data is None or self.evaluation_data is None

    def _judge(self) -> tuple[Any, Any, Any]:
        """Return calibration data, the evaluator or a metric's name, and data for the latter."""
        from quantry.cli.search_labels import classifier_parts, detector_parts

        metric = self.judged_by
        if metric in CLASSIFIER_METRICS:
            return (*classifier_parts(self, CLASSIFIER_METRICS[metric]), None)
        if metric in DETECTOR_METRICS:
            return (*detector_parts(self, metric), None)
        if self.labels is not None:
            raise RecipeError(
                f"labels go with the metrics {', '.join((*CLASSIFIER_METRICS, *DETECTOR_METRICS))}, got {metric!r}"
            )
        if self.calibration_samples is not None:
            raise RecipeError(
                f"calibration_samples goes with labelled images, got the metric {metric!r}; use observe.samples of the "
                "recipe"
            )
        if self.data is None:
            return self.evaluation_data, metric, None
        return self.data, metric, self.evaluation_data


def _check_type(key: str, value: object) -> None:
    wanted = _TYPES.get(key)
    if wanted is not None and (not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool)):
        name = "a number" if isinstance(wanted, tuple) else _TYPE_NAMES.get(wanted, wanted.__name__)
        raise RecipeError(f"{key} of a search's configuration must be {name}, got {value!r}")


def _beside(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the inputs of a search whose paths are relative to its configuration file."""
    files = ("model", "data", "evaluation_data", "labels")
    named = [key for key in ("recipe", "space") if isinstance(values.get(key), str)]
    return {
        **{key: folder / str(values[key]) for key in files if key in values},
        **{key: str(folder / values[key]) for key in named if Path(values[key]).suffix in (".yaml", ".yml", ".json")},
    }


def load_job(path: Path) -> SearchJob:
    """Read a configuration file, YAML or JSON.

    Raises:
        RecipeError: It cannot be read, or is no configuration.
    """
    import yaml

    try:
        with path.open(encoding="utf-8") as file:
            plain = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RecipeError(f"a search's configuration must be a readable YAML file, got {error}; in {path}") from error
    try:
        return SearchJob.from_plain(plain, path.parent)
    except RecipeError as error:
        raise RecipeError(f"{error}; in {path}") from error


def _tolerance(given: float | str | None) -> float | str | None:
    if isinstance(given, str) and not given.strip().endswith("%"):
        try:
            return float(given)
        except ValueError:
            return given
    return given


def _is_coco(labels: Path) -> bool:
    if labels.suffix.lower() != ".json":
        return False
    try:
        with labels.open(encoding="utf-8") as file:
            return '"annotations"' in file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"labels must be a readable file, got {error}; in {labels}") from error
