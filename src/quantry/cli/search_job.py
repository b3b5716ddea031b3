"""A search as the command line and configuration files describe it, with labelled images."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.markup import escape

from quantry.cli.image_arguments import number
from quantry.errors import RecipeError
from quantry.recipe.option_fields import CheckedOptions, option
from quantry.recipe.plain_text import yaml_value
from quantry.recipe.search_options import SearchOptions, split_options, unknown_option

if TYPE_CHECKING:
    from quantry.autosearch import LabelledData, SearchResult
    from quantry.data.images import ImageOptions

_IMAGE_FLAGS = {
    "mean": "--mean",
    "std": "--std",
    "scale": "--pixel-scale",
    "color": "--color",
    "resize": "--resize",
    "crop_fraction": "--crop-fraction",
    "size": "--size",
}


@dataclass(frozen=True)
class SearchJob(CheckedOptions):
    """What to search. The fields, and those of `SearchOptions`, are the keys of a configuration file.

    Attributes:
        model: The float model.
        data: Calibration data, as for `quantry quantize`. Without ``evaluation_data``, a part of it is held out for
            evaluation.
        evaluation_data: Evaluation data; default: a part of the calibration data.
        labels: Labels of the evaluation data: classes (.csv, .txt, .json, .npy) or a COCO file of boxes. Without them,
            top1 and top5 take the names of folders.
        metric: With labels top1, top5, map, map50 or spearman; between outputs l1, l2, cosine, psnr, ssim or sqnr; or
            module:function, which takes a model's path and returns a number; default: by the labels, else l2.
        decoder: Decoder of a detector's outputs: yolox, yolov5, yolov8 or boxes.
        target: Where the model will run, see `quantry targets`; default: by the recipe.
        recipe: Preset or recipe file: the base of a space, or tried too.
        space: Search space: default, calibration, accuracy, or a .yaml file with a space. A configuration file may hold
            the space itself.
        images: How images become inputs.
        calibration_samples: Maximum number of labelled images used for calibration; default: 100.
        options: How to search.
    """

    model: Path
    data: Path | None = option(None, "-d")
    evaluation_data: Path | None = None
    labels: Path | None = None
    metric: str | None = None
    decoder: str = "yolox"
    target: str | None = None
    recipe: str | None = option(None, "-r")
    space: Any = option(None, heading="Search")
    images: Mapping[str, Any] = field(default_factory=dict)
    calibration_samples: Annotated[int, ("minimum", 1)] | None = option(None, heading="Search")
    options: SearchOptions = SearchOptions()

    @classmethod
    def from_plain(cls, plain: object, folder: Path) -> "SearchJob":
        """Read the content of a configuration file.

        Args:
            plain: What the file holds.
            folder: The folder of the file; relative paths of inputs start there.

        Raises:
            RecipeError: A key is unknown, a value has the wrong type, or the model is missing.
        """
        if not isinstance(plain, Mapping):
            raise RecipeError(f"a search configuration must be a mapping, got {type(plain).__name__}")
        options, values = split_options({key: value for key, value in plain.items() if value is not None})
        names = [field.name for field in fields(cls) if field.name != "options"]
        for key in plain:
            if key not in names and key not in SearchOptions.names():
                raise unknown_option("a search configuration", str(key), names)
        if not values.get("model"):
            raise RecipeError("a search configuration must name the model, got none; write model: model.onnx")
        return cls(**values | _relative_to(folder, values), options=SearchOptions(**options))

    @property
    def labelled_data(self) -> "LabelledData":
        """What the search is evaluated on."""
        from quantry.autosearch import LabelledData

        # YAML has no fractions: 1/255 arrives as text.
        images = {
            key: number(f"images.{key}", value) if key == "scale" and isinstance(value, str) else value
            for key, value in self.images.items()
        }
        return LabelledData(
            self.model,
            self.data,
            self.evaluation_data,
            self.labels,
            self.metric,
            self.decoder,
            images,
            self.calibration_samples,
        )

    @property
    def metric_name(self) -> str:
        """The metric, as given or as the labels imply."""
        return self.labelled_data.metric_name

    def image_options(self) -> "ImageOptions":
        """Return how images become inputs; the default for detectors is letterbox."""
        return self.labelled_data.image_options()

    def evaluation_parts(self) -> tuple[Any, Any, Any]:
        """Return calibration data, the evaluator or the name of a metric, and evaluation data; print notes on them.

        Raises:
            UserError: Labels, data and metric do not fit together.
        """
        labelled = self.labelled_data
        inputs = labelled.parts()
        for note in labelled.notes:
            Console(stderr=True).print(f"note: {escape(note)}", soft_wrap=True)
        return inputs

    def run(self) -> "SearchResult":
        """Search.

        Raises:
            UserError: Something given cannot be used.
        """
        from quantry.autosearch import search
        from quantry.data.open_data import holds_arrays

        data, evaluator, evaluation = self.evaluation_parts()
        return search(
            self.model,
            data,
            evaluator,
            self._space(),
            target=self.target,
            recipe=self.recipe,
            evaluation_data=evaluation,
            images=self.image_options() if isinstance(data, Path) and (self.images or not holds_arrays(data)) else None,
            **{name: getattr(self.options, name) for name in self.options.names()},
        )

    def _space(self) -> Any:
        """Return the space: its name, or what a file describes."""
        from quantry.autosearch import NAMED_SPACES
        from quantry.autosearch.run import DEFAULT_SPACE
        from quantry.cli.search_space_file import space_from_plain
        from quantry.recipe import resolve_recipe

        if self.space is None or self.space in (DEFAULT_SPACE, *NAMED_SPACES):
            return self.space
        return space_from_plain(self.space, resolve_recipe(self.recipe or "S8S8_AAWS")[0])

    def command(self, recipe: Path, folder: Path | None = None) -> str:
        """Return the command that quantizes this model with a recipe, on the same data.

        Args:
            recipe: The recipe file.
            folder: The output directory of the search, which lists the calibration samples; None takes all data.
        """
        from quantry.autosearch.labelled_data import DETECTOR_METRICS

        words = ["quantry", "quantize", str(self.model)]
        data = self.data or self.evaluation_data
        if folder is not None and self._calibrates_on_a_part:
            arrays = folder / "calibration.npz"
            data = arrays if arrays.exists() else folder / "calibration.txt"
        if data is not None:
            words += ["--data", str(data)]
        image_fields = dict(self.images)
        if self.metric_name in DETECTOR_METRICS:
            image_fields.setdefault("resize", "letterbox")
        without_flag = {name: image_fields.pop(name) for name in tuple(image_fields) if name not in _IMAGE_FLAGS}
        for name, value in image_fields.items():
            between = "x" if name == "size" else ","
            text = between.join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            # With "=": a value that starts with a minus sign would be parsed as another option.
            words.append(f"{_IMAGE_FLAGS[name]}={text}")
        comment = f"  # and, only in Python: ImageOptions of {without_flag}" if without_flag else ""
        return shlex.join([*words, "--recipe", str(recipe)]) + comment

    def calibration(self, folder: Path) -> Any:
        """Return the calibration data of a finished search, for `quantize`.

        Args:
            folder: The output directory of the search.
        """
        from quantry.data.open_data import calibration_data, holds_arrays
        from quantry.graph.float_model import input_signatures
        from quantry.graph.load import model_source

        data = folder / "calibration.txt" if self._calibrates_on_a_part else self.data or self.evaluation_data
        pictured = self.labelled_data.is_labelled and not (data is not None and holds_arrays(data))
        images = self.image_options() if self.images or pictured else None
        return calibration_data(data, input_signatures(model_source(self.model).load()), images)

    @property
    def _calibrates_on_a_part(self) -> bool:
        return self.labelled_data.is_labelled or self.data is None or self.evaluation_data is None


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


def _relative_to(folder: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the paths of inputs, which are relative to the configuration file."""
    files = ("model", "data", "evaluation_data", "labels")
    with_files = [key for key in ("recipe", "space") if isinstance(values.get(key), str)]
    return {
        **{key: folder / values[key] for key in files if isinstance(values.get(key), str)},
        **{
            key: str(folder / values[key])
            for key in with_files
            if Path(values[key]).suffix in (".yaml", ".yml", ".json")
        },
    }
