"""`quantry.search`: everything a user brings, in one call."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quantry.autosearch.context import open_store
from quantry.autosearch.data_split import require_data, split_data
from quantry.autosearch.default_space import named_space
from quantry.autosearch.engine import run_search
from quantry.autosearch.evaluator import EvaluatorAdapter
from quantry.autosearch.labelled_data import LabelledData
from quantry.autosearch.layer_ranking import LayerRanking
from quantry.autosearch.output_directory import OutputDirectory
from quantry.autosearch.result import SearchResult
from quantry.autosearch.space import AnySpace, Space, SpaceUnion, spaces_of
from quantry.autosearch.target_space import target_space
from quantry.data.calibration_data import CalibrationData
from quantry.data.images import ImageOptions
from quantry.data.open_data import calibration_data
from quantry.data.sample_cache import SampleCache
from quantry.errors import RecipeError
from quantry.evaluate.tasks import OutputDistance
from quantry.graph.float_model import input_signatures
from quantry.graph.load import model_source
from quantry.graph.save import write_model
from quantry.memo import Store
from quantry.recipe import Recipe, resolve_recipe
from quantry.recipe.option_fields import takes_options
from quantry.recipe.search_options import OTHER_NAMES, SearchOptions
from quantry.targets import Target, default_target, find_target

DEFAULT_SPACE = "default"
"""Name of the space of `target_space`, which needs a target instead of a base recipe."""

DEFAULT_BUDGET = "10min"
"""Time of a search of the default space without any limit: the space is too large to be tried completely."""

# The base of spaces that a user describes without naming a recipe.
_BASE = "S8S8_AAWS"


@takes_options("search", SearchOptions, OTHER_NAMES)
def search(  # noqa: PLR0913  one keyword for each thing a user brings
    model: Any,
    data: Any = None,
    evaluator: Any = None,
    space: AnySpace | Mapping[str, Any] | str | None = None,
    *,
    target: Target | str | None = None,
    recipe: Recipe | str | Path | Mapping[str, Any] | None = None,
    evaluation_data: Any = None,
    labels: str | Path | None = None,
    metric: str | None = None,
    decoder: Any = "yolox",
    images: ImageOptions | Mapping[str, Any] | None = None,
    calibration_samples: int | None = None,
    store: Store | str | os.PathLike[str] | None = None,
    **options: Any,
) -> SearchResult:
    """Find the recipe whose quantized model is best.

    Args:
        model: Path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        data: Calibration data in any form that `quantry.quantize` takes. None is allowed only with an evaluator and
            recipes that need no calibration. Without an evaluator, half of the samples are held out for evaluation;
            with labels, up to 100 images and at most a quarter are used for calibration, the others for evaluation.
        evaluator: A function from a model path to a score that is maximized: a number, one number per sample, or a dict
            of named scores; or an evaluator object, such as one of `quantry.evaluate.tasks`; or the name of a metric.
        space: A `Space`, a `SpaceUnion`, or a mapping from dotted paths of the recipe to lists of values; or a name:
            "calibration" tries calibration methods with and without equalization, "accuracy" adds SmoothQuant, ranges
            compared after the following function, bias correction and GPTQ. None is "default": the recommended recipes
            of the target, its other presets, and then everything that may improve on them.
        target: Where the model will run, a name of `quantry.targets.TARGETS`. None derives it from the recipe.
        recipe: A `Recipe`, the name of a preset, a file, or plain data: the base of a space of your own, and a further
            recipe to start from in the default space. None is S8S8_AAWS for the former, and none for the latter.
        evaluation_data: Data that models are evaluated on; None holds out a part of ``data``.
        labels: Labels of the images: a file of classes, or a COCO file of boxes.
        metric: "top1", "top5", "map" or "map50" for labelled images; a metric between the outputs of both models ("l2",
            "l1", "cosine", "psnr", "ssim", "sqnr"); or the name of the score to optimize, if the evaluator returns
            several. None chooses by the labels, and is "l2" without them.
        decoder: Turns a detector's outputs into boxes: "yolox", "yolov5", "yolov8", "boxes", or a function.
        images: How image files become inputs.
        calibration_samples: Maximum number of labelled images used for calibration; None is 100.
        store: Where results of stages go; None is a folder in the output directory.
        **options: The fields of `SearchOptions`, each as a keyword.

    Returns:
        The best trial and all others. The model, its recipe, the log and search.json are in the output directory. The
        same call resumes an interrupted search.

    Raises:
        UserError: Something given cannot be used; the message says why.

    Example:
        ::

            found = quantry.search("model.onnx", "images/", my_top1, budget="30min", tolerance="1%")
            found.best.score, found.best_model, found.best_recipe
    """
    search_options = SearchOptions(**options)
    wanted = _Wanted(space, recipe, target)
    if isinstance(evaluator, str):
        evaluator, metric = None, evaluator
    path = _model_path(model, search_options.output_dir)
    brought = LabelledData(path, data, evaluation_data, labels, metric, decoder, images, calibration_samples)
    calibration, scored_by = _data_and_evaluator(brought, evaluator, wanted)
    opened = open_store(store, OutputDirectory(search_options.output_dir))
    source = model_source(path)
    operators = Counter(node.op_type for node in source.load().graph)
    searched = wanted.space(LayerRanking(source, calibration, opened), operators)
    if wanted.is_default and search_options.is_unlimited:
        search_options = replace(search_options, budget=DEFAULT_BUDGET)
        brought.notes.append(f"no limit was given: the search stops after {DEFAULT_BUDGET}")
    return run_search(path, calibration, scored_by, _with_notes(searched, brought.notes), search_options, opened)


def _data_and_evaluator(brought: LabelledData, evaluator: Any, wanted: "_Wanted") -> tuple[CalibrationData, Any]:
    """Return the calibration data, and what scores a model.

    Args:
        brought: Data, labels and metric as the user gives them.
        evaluator: The user's own evaluator; None makes one of the metric.
        wanted: The search space.
    """
    data, images, evaluation = brought.data, brought.images, None
    if evaluator is None:
        data, evaluator, evaluation = brought.parts()
        images = brought.image_options() if images is not None or brought.is_labelled else None
    else:
        _refuse_labels(brought)
        evaluator = EvaluatorAdapter.of(evaluator, brought.metric)
    data = require_data(data, evaluator, wanted.example())
    chosen = images if isinstance(images, ImageOptions) or images is None else ImageOptions(**images)
    if not isinstance(data, CalibrationData):  # labelled samples are opened already
        data = calibration_data(data, input_signatures(model_source(brought.model).load()), chosen)
    if isinstance(evaluator, str):
        data, held_out = _evaluation_data(data, evaluation, chosen)
        evaluator = OutputDistance(brought.model, SampleCache(held_out), evaluator)
    return data, evaluator


@dataclass(frozen=True)
class _Wanted:
    """The search space as the user asks for it.

    Attributes:
        given: The space, its name, a mapping, or None.
        recipe: The recipe, in any form; None if the user named none.
        target: The target or its name; None if the user named none.
    """

    given: AnySpace | Mapping[str, Any] | str | None
    recipe: Any
    target: Target | str | None

    @property
    def is_default(self) -> bool:
        """Whether it is the default space."""
        return self.given is None or self.given == DEFAULT_SPACE

    def example(self) -> AnySpace:
        """Return the space without decisions about layers, which need data."""
        return self.space(None)

    def space(self, ranking: LayerRanking | None, operators: Mapping[str, int] | None = None) -> AnySpace:
        """Return the space.

        Args:
            ranking: Ranks the layers of a recipe; None leaves single layers as they are.
            operators: How many nodes of each type the model has; None if unknown.

        Raises:
            RecipeError: It cannot be used.
        """
        # `auto`, the default recipe of `quantize`, is itself a search; this one starts where that starts.
        base = None if self.recipe in (None, "auto") else resolve_recipe(self.recipe)[0]
        wanted = self.target or (base.target if base is not None else "")
        target = find_target(wanted) if wanted else default_target(base)
        if self.is_default:
            origin = "given" if wanted else "default" if base is None else "derived from the recipe"
            conflicts = () if base is None else target.conflicts(target.adapted(base))
            about = (
                f"target {target.name} ({origin}): {target.summary}",
                *(f"the recipe does not suit {target.name}: {one}" for one in conflicts),
            )
            return replace(target_space(target, base, ranking, named=bool(wanted), operators=operators), notes=about)
        if isinstance(self.given, Space | SpaceUnion):
            if self.target is not None:
                raise RecipeError(
                    f"target needs a space that is built for it, got {target.name!r} with a finished Space; remove one"
                )
            return self.given
        if base is None:
            base = resolve_recipe(_BASE if self.target is None else target.recommended[0])[0]
        if isinstance(self.given, str):
            return _for_target(named_space(self.given, base), target if self.target else None)
        if not isinstance(self.given, Mapping):
            raise RecipeError(
                f"space must be a Space, a SpaceUnion, a mapping of paths to values or a name, got {self.given!r}"
            )
        return _for_target(Space.of(base, self.given), target if self.target else None)


def _for_target(space: AnySpace, target: Target | None) -> AnySpace:
    """Return a space whose trials are scored with the arithmetic of a target; None changes nothing."""
    spaces = [replace(one, target=target or one.target) for one in spaces_of(space)]
    return spaces[0] if len(spaces) == 1 else SpaceUnion(tuple(spaces))


def _with_notes(space: AnySpace, notes: Sequence[str]) -> AnySpace:
    first, *others = spaces_of(space)
    noted = replace(first, notes=(*first.notes, *notes))
    return SpaceUnion((noted, *others)) if others else noted


def _refuse_labels(labelled: LabelledData) -> None:
    """Reject what only the evaluators of `LabelledData` use."""
    for name in ("labels", "calibration_samples"):
        if getattr(labelled, name) is not None:
            raise RecipeError(f"{name} cannot be used with an evaluator, which brings its own, got both; remove one")


def _model_path(model: Any, directory: Path) -> Path:
    if isinstance(model, str | os.PathLike):
        return Path(model)
    path = OutputDirectory(directory).float_model
    directory.mkdir(parents=True, exist_ok=True)
    write_model(model_source(model).load(), path)
    return path


def _evaluation_data(
    given: CalibrationData, evaluation: Any, images: ImageOptions | None
) -> tuple[CalibrationData, CalibrationData]:
    """Return calibration data and evaluation data."""
    return split_data(given) if evaluation is None else (given, calibration_data(evaluation, given.inputs, images))
