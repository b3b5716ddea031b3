"""`quantry.search`: the search as one call."""

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypedDict, Unpack

from quantry.autosearch.absent_data import data_or_none_needed
from quantry.autosearch.data_split import split_data
from quantry.autosearch.default_space import default_space, named_space
from quantry.autosearch.options import SearchOptions, StopConditions, budget_seconds
from quantry.autosearch.result import SearchResult
from quantry.autosearch.run import run_search
from quantry.autosearch.space import AnySpace, Space, SpaceUnion
from quantry.data.calibration_data import CalibrationData
from quantry.data.images import ImageOptions
from quantry.data.open_data import calibration_data
from quantry.data.sample_cache import SampleBook
from quantry.errors import RecipeError, nearest_spelling
from quantry.evaluate.tasks import OutputDistance
from quantry.graph.float_model import input_signatures
from quantry.graph.load import model_source
from quantry.graph.save import write_model
from quantry.memo import Store
from quantry.recipe import Recipe, resolve_recipe

DEFAULT_METRIC = "l2"
"""What judges models where no evaluator is given: the mean squared difference between the outputs of both models."""

_POSITIONAL = ("model", "data", "evaluator", "space", "budget")
_OTHER_NAMES = {
    "calibration_data": "data",
    "candidates": "stop=StopConditions(n_candidates=...)",
    "eval_data": "evaluation_data",
    "image_options": "images",
    "iterations": "stop=StopConditions(iterations=...)",
    "jobs": "n_jobs",
    "log": "log_path",
    "metric": "evaluator",
    "objective": "objectives",
    "output": "output_dir",
    "output_path": "output_dir",
    "preset": "recipe",
    "time": "budget",
    "timeout": "trial_timeout",
    "trials": "stop=StopConditions(iterations=...)",
    "workers": "n_jobs",
}
"""What arguments are called on the command line and elsewhere, for the hint only; spelling alone does not find them."""


class SearchSettings(TypedDict, total=False):
    """What `search` takes by name: the fields of `SearchOptions`, and where data and results are."""

    recipe: Recipe | str | Path | Mapping[str, Any]
    evaluation_data: Any
    images: ImageOptions | None
    store: Store | str | os.PathLike[str] | None
    sampler: str
    tolerance: float | str | None
    stop: StopConditions | None
    seed: int
    n_jobs: int
    threads: int | None
    racing: bool
    trial_timeout: float | None
    output_dir: str | Path
    objectives: tuple[str, ...]
    log_path: str | Path | None
    devices: tuple[str, ...]
    keep_models: str
    storage: str | None
    cluster: str | None


def search(
    model: Any,
    data: Any = None,
    evaluator: Any = None,
    space: AnySpace | Mapping[str, Any] | str | None = None,
    budget: float | str | None = None,
    **settings: Unpack[SearchSettings],
) -> SearchResult:
    """Find the recipe whose quantized model is best.

    Args:
        model: Path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        data: Calibration data in any form that `quantry.quantize` takes; None only where an evaluator is given and no
            scale has to be found in data. Without an evaluator of your own, half of the
            samples are kept from calibration and models are judged by them.
        evaluator: A function of a model's path that returns a number to be maximized; an evaluator object, such as one
            of `quantry.evaluate.tasks`; or the name of a metric between the outputs of both models, such as "cosine".
            None is "l2".
        space: A `Space`, several in a `SpaceUnion`, or a mapping from dotted paths of the recipe to lists of values;
            or a name: "calibration", which None means too, tries calibration methods with and without equalization;
            "accuracy" adds SmoothQuant, ranges judged behind functions, bias correction and GPTQ.
        budget: The most time to spend, such as "30min", "2h" or a number of seconds.
        **settings: Fields of `SearchOptions`, such as ``tolerance="1%"``, ``n_jobs=2``, ``racing=True`` or
            ``objectives=("accuracy", "latency")``; ``recipe``, what the space starts from; ``evaluation_data`` for
            metrics between outputs; ``images``, how image files become inputs; ``store``, where results are kept.

    Returns:
        The best trial and all others; model, recipe, log and search.json are in the output directory. The same call
        goes on where an interrupted one stopped.

    Raises:
        UserError: Something given cannot be used; the message says why.

    Example:
        ::

            found = quantry.search("model.onnx", "images/", my_top1, budget="30min", tolerance="1%")
            found.best.score, found.best_model, found.best_recipe
    """
    known = SearchSettings.__annotations__
    for name in settings:
        if name not in known:
            meant = _OTHER_NAMES.get(name.casefold())
            hint = f"; did you mean '{meant}'?" if meant else nearest_spelling(name, (*known, *_POSITIONAL))
            raise RecipeError(f"search must be given known arguments, got {name!r}{hint}")
    options = _options(settings, budget)
    chosen = _space(space, settings.get("recipe", "S8S8_AAWS"))
    data = data_or_none_needed(data, evaluator, chosen)
    path = _model_path(model, options.output_dir)
    given = calibration_data(data, input_signatures(model_source(path).load()), settings.get("images"))
    judge, calibration = evaluator, given
    if evaluator is None or isinstance(evaluator, str):
        calibration, evaluation = _evaluation_data(given, settings)
        judge = OutputDistance(path, SampleBook(evaluation), evaluator or DEFAULT_METRIC)
    return run_search(path, calibration, judge, chosen, options, settings.get("store"))


def _options(settings: SearchSettings, budget: float | str | None) -> SearchOptions:
    names = {part.name for part in fields(SearchOptions)}
    given: dict[str, Any] = {name: value for name, value in settings.items() if name in names}
    stop = given["stop"] = StopConditions() if given.get("stop") is None else given["stop"]
    if budget is not None and isinstance(stop, StopConditions):
        if stop.seconds is not None:
            raise RecipeError(f"the time to spend must be given once, got budget={budget!r} and stop={stop}")
        given["stop"] = StopConditions(stop.n_candidates, stop.best_candidates, stop.iterations, budget_seconds(budget))
    return SearchOptions(**given)


def _model_path(model: Any, directory: Path) -> Path:
    if isinstance(model, str | os.PathLike):
        return Path(model)
    directory.mkdir(parents=True, exist_ok=True)
    write_model(model_source(model).load(), directory / "float.onnx")
    return directory / "float.onnx"


def _evaluation_data(given: CalibrationData, settings: SearchSettings) -> tuple[CalibrationData, CalibrationData]:
    """Return data to calibrate on and data to judge by."""
    evaluation = settings.get("evaluation_data")
    if evaluation is None:
        return split_data(given)
    return given, calibration_data(evaluation, given.inputs, settings.get("images"))


def _space(space: AnySpace | Mapping[str, Any] | str | None, recipe: Any) -> AnySpace:
    if isinstance(space, Space | SpaceUnion):
        return space
    base, _ = resolve_recipe(recipe)
    if space is None:
        return default_space(base)
    if isinstance(space, str):
        return named_space(space, base)
    if not isinstance(space, Mapping):
        raise RecipeError(f"space must be a Space, a SpaceUnion, a mapping of paths to values or a name, got {space!r}")
    return Space.of(base, space)
