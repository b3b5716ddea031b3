"""What all trials of a search have in common."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantry.autosearch.evaluator import Judge
from quantry.autosearch.options import SearchOptions
from quantry.autosearch.output_directory import OutputDirectory, disk_errors
from quantry.autosearch.parameter import is_active, values_of
from quantry.autosearch.space import Space
from quantry.data.calibration_data import CalibrationData
from quantry.data.open_data import calibration_data
from quantry.errors import RecipeError
from quantry.graph.load import ModelSource, model_source
from quantry.graph.save import write_model
from quantry.memo import DirectoryStore, Memo, Store, fingerprint
from quantry.pipeline import run_prepare
from quantry.recipe import Recipe, to_plain


@dataclass(frozen=True)
class Setting:
    """The float model, the data and the judge.

    Attributes:
        source: The float model.
        float_path: Its file.
        data: Calibration data.
        judge: The evaluator.
        objectives: What is measured, accuracy first.
        order: The order in which a race takes the samples; empty where samples are not offered one by one.
    """

    source: ModelSource
    float_path: Path
    data: CalibrationData
    judge: Judge
    objectives: tuple[str, ...]
    order: NDArray[np.int64]


def open_setting(
    model: Any, data: Any, judge: Judge, spaces: Sequence[Space], options: SearchOptions, place: "Place"
) -> Setting:
    """Read the model, and check the data against its inputs.

    Args:
        model: The float model in any form.
        data: Calibration data in any form.
        judge: The evaluator.
        spaces: What is searched.
        options: How.
        place: Where files and results go.

    Raises:
        UserError: The model or the data cannot be used.
    """
    source = model_source(model)
    prepared = run_prepare(source, any_recipe(spaces), Memo(place.store)).value
    size = judge.size or 0
    return Setting(
        source=source,
        float_path=_float_path(model, source, place.directory),
        data=calibration_data(data, prepared.inputs),
        judge=judge,
        objectives=options.objectives,
        order=np.random.default_rng(options.seed).permutation(size) if options.racing else np.arange(size),
    )


@dataclass(frozen=True)
class Place:
    """Where a search writes.

    Attributes:
        directory: Files of the search.
        store: Results of stages.
    """

    directory: OutputDirectory
    store: Store

    @classmethod
    def of(cls, directory: OutputDirectory, store: Store | str | os.PathLike[str] | None) -> "Place":
        """Open the store that was asked for; None is a folder in the output directory."""
        if store is None:
            return cls(directory, DirectoryStore(directory.store))
        return cls(directory, DirectoryStore(Path(store)) if isinstance(store, str | os.PathLike) else store)


def search_identity(setting: Setting, spaces: Sequence[Space], options: SearchOptions) -> str:
    """Return a name for this search: another model, data, evaluator, space or way of searching has another.

    Limits and tolerance are no part of it, so that a search can go on with others.
    """
    described = [
        (
            space.name,
            {name: (str(parameter), tuple(parameter.only_if)) for name, parameter in space.parameters.items()},
            to_plain(_first_recipe(space) or Recipe()),
        )
        for space in spaces
    ]
    way = (options.sampler, options.seed, options.objectives, options.racing)
    return f"search-{fingerprint((setting.source, setting.data, setting.judge.identity, described, way)).short}"


def any_recipe(spaces: Sequence[Space]) -> Recipe:
    """Return a recipe of the space: all of them prepare a model with the same inputs."""
    return next((recipe for recipe in map(_first_recipe, spaces) if recipe is not None), Recipe())


def _first_recipe(space: Space) -> Recipe | None:
    assignment: dict[str, Any] = {}
    for name, parameter in space.parameters.items():
        if is_active(parameter, assignment):
            values = values_of(parameter)
            assignment[name] = parameter.low if values is None else values[0]  # type: ignore[union-attr]
    try:
        return space.build(assignment)
    except RecipeError:
        return None


def _float_path(model: Any, source: ModelSource, directory: OutputDirectory) -> Path:
    """Return the user's file, or one that is written for the evaluator."""
    if isinstance(model, str | os.PathLike):
        return Path(model)
    path = directory.path / "float.onnx"
    with disk_errors(path):
        write_model(source.load(), path)
    return path
