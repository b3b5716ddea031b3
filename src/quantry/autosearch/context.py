"""`SearchContext`: the model, data, evaluator and folders that all trials of a search share."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantry.autosearch.evaluator import EvaluatorAdapter
from quantry.autosearch.output_directory import OutputDirectory, disk_errors
from quantry.autosearch.space import Space, example_recipe
from quantry.data.calibration_data import CalibrationData
from quantry.data.open_data import calibration_data
from quantry.evaluate.stage import machine_environment
from quantry.graph.load import ModelSource, model_source
from quantry.graph.save import write_model
from quantry.memo import DirectoryStore, Memo, Store, fingerprint
from quantry.pipeline import run_prepare
from quantry.recipe import Recipe, to_plain
from quantry.recipe.search_options import SearchOptions
from quantry.targets import Target, is_computed_here


@dataclass(frozen=True)
class SearchContext:
    """What all trials of a search share.

    Attributes:
        source: The float model.
        float_path: Its file.
        data: Calibration data.
        evaluator: Scores models.
        objectives: What is measured, accuracy first.
        sample_order: Order in which a race evaluates the samples, shape (n,); empty without per-sample scores.
        directory: The output directory.
        store: Results of stages.
        target: Where models run if their recipe does not say; see `Space.target`.
    """

    source: ModelSource
    float_path: Path
    data: CalibrationData
    evaluator: EvaluatorAdapter
    objectives: tuple[str, ...]
    sample_order: NDArray[np.int64]
    directory: OutputDirectory
    store: Store
    target: Target | None = None


@dataclass(frozen=True)
class SearchInputs:
    """What the user gave to a search, in any of the accepted forms.

    Attributes:
        model: The float model.
        data: Calibration data.
        evaluator: The evaluator.
        store: Where results of stages go; None is a folder in the output directory.
    """

    model: Any
    data: Any
    evaluator: EvaluatorAdapter
    store: Store | str | os.PathLike[str] | None


def open_context(
    inputs: SearchInputs, spaces: Sequence[Space], options: SearchOptions, directory: OutputDirectory
) -> SearchContext:
    """Read the model, and check the data against its inputs.

    Args:
        inputs: What the user gave.
        spaces: The search spaces.
        options: How to search.
        directory: The output directory.

    Raises:
        UserError: The model or the data cannot be used.
    """
    source = model_source(inputs.model)
    store = open_store(inputs.store, directory)
    prepared = run_prepare(source, example_recipe(spaces), Memo(store)).value
    size = inputs.evaluator.size or 0
    return SearchContext(
        source=source,
        float_path=_float_path(inputs.model, source, directory),
        data=calibration_data(inputs.data, prepared.inputs),
        evaluator=inputs.evaluator,
        objectives=options.objectives,
        # A race compares on a subset first, which must not be the first classes of a sorted folder.
        sample_order=np.random.default_rng(options.seed).permutation(size) if options.racing else np.arange(size),
        directory=directory,
        store=store,
        target=next((space.target for space in spaces if space.target is not None), None),
    )


def search_identity(context: SearchContext, spaces: Sequence[Space], options: SearchOptions) -> str:
    """Return the name of the study: another model, data, evaluator, space or sampler has another.

    Limits and tolerance are not part of it, so that a search can be resumed with others.
    """
    described = [
        (
            space.name,
            {name: (str(parameter), tuple(parameter.only_if)) for name, parameter in space.parameters.items()},
            # Two spaces with equal parameters may build different recipes.
            to_plain(space.first_recipe or Recipe()),
        )
        for space in spaces
    ]
    how: tuple[object, ...] = (options.sampler, options.seed, options.objectives, options.racing)
    first = [space.first_recipe or Recipe() for space in spaces]
    if any(is_computed_here(context.target or recipe.target) for recipe in first):
        # Kernels round differently on another processor and in another version of onnxruntime.
        how = (*how, dict(machine_environment({})))
    return f"search-{fingerprint((context.source, context.data, context.evaluator.identity, described, how)).short}"


def open_store(store: Store | str | os.PathLike[str] | None, directory: OutputDirectory) -> Store:
    """Return the store of a search; None is a folder in the output directory."""
    if store is None:
        return DirectoryStore(directory.store)
    return DirectoryStore(Path(store)) if isinstance(store, str | os.PathLike) else store


def _float_path(model: Any, source: ModelSource, directory: OutputDirectory) -> Path:
    """Return the user's file, or write one for the evaluator."""
    if isinstance(model, str | os.PathLike):
        return Path(model)
    with disk_errors(directory.float_model):
        write_model(source.load(), directory.float_model)
    return directory.float_model
