"""The stage "observe": run the float model once over the calibration data and collect statistics.

The statistics do not depend on the calibration method, so changing the method does not run the model again.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import onnx_ir as ir

from quantry.data.calibration_data import CalibrationData
from quantry.errors import InternalError, SelectionError, nearest_spelling
from quantry.execute.float_pass import float_pass, lengths_of
from quantry.graph.float_model import FloatModel
from quantry.graph.segments import cut_into_segments, tensor_types
from quantry.memo import stage
from quantry.numerics.scalar_function import TurningPoint, turning_points
from quantry.observe.counting import CountingSpace, TensorCounter
from quantry.observe.derive import RootStats, TensorTable
from quantry.observe.lineage import Lineage, trace_lineage
from quantry.observe.statistics import NO_NEEDS, Needs, Statistics
from quantry.recipe import ObserveOptions
from quantry.runtime.environment import environment
from quantry.runtime.progress import progress
from quantry.runtime.sessions import check_providers

Roots = Mapping[str, RootStats]


def _environment(arguments: Mapping[str, Any]) -> Mapping[str, str]:
    # The kernel that counts codes must return the same integers as NumPy. The build id is in the key all the same, so
    # that a defect of one build does not spread through a shared store.
    return environment(libraries=("onnxruntime", "numpy"), kernels=True, devices=arguments["options"].providers)


@stage(name="observe", version=5, environment=_environment)
def observe(model: FloatModel, data: CalibrationData, options: ObserveOptions, needs: Needs = NO_NEEDS) -> Statistics:
    """Return the statistics of every float32 activation of the main graph: its inputs and the outputs of its nodes.

    Only some tensors are observed; those that are elementwise functions or rearrangements of others are derived from
    them, with exact counts and extrema. If a NaN or an infinity occurs, a second pass observes all of them.

    Args:
        model: The float model.
        data: Samples, fed one at a time; memory does not grow with their number.
        options: Where to run. The pipeline has already applied ``options.samples`` to the data of all stages.
        needs: Additional requests.

    Raises:
        RecipeError: This onnxruntime lacks an execution provider.
        ModelError: onnxruntime cannot load the model.
        DataError: A sample does not fit the model, or onnxruntime cannot run it.
        SelectionError: `needs` names a tensor that the model does not have.
    """
    check_providers(options.providers)
    axes = dict(needs.channels)
    derivable = trace_lineage(model.model, axes)
    _check_needs(axes, derivable)
    for lineage in (derivable, trace_lineage(model.model, derive=False)):
        roots, samples = observe_roots(model.model, data, options.providers, lineage, axes)
        table = TensorTable(roots, lineage)
        if table.is_derivable():
            return Statistics(table, samples)
    raise InternalError("observing every tensor must always give statistics, got none; in the observe stage")


def observe_roots(
    model: ir.Model, data: CalibrationData, providers: Sequence[str], lineage: Lineage, axes: Mapping[str, int]
) -> tuple[dict[str, RootStats], int]:
    """Run the model over the data and count the values of the roots.

    Args:
        model: The float model.
        data: Samples to feed.
        providers: Execution providers, first choice first.
        lineage: Which tensors are roots, and what is derived from them.
        axes: Tensors whose channels are counted one by one, with the axis of the channels.

    Returns:
        The statistics of each root, and the number of samples. Roots that turn out not to be float32 are omitted.
    """
    turns = _turns_by_root(lineage)
    inputs = {signature.name for signature in data.inputs}
    lengths = lengths_of(next(iter(data)), data.inputs)
    segments = cut_into_segments(model, [name for name in turns if name not in inputs], lengths)
    steps_in_all = None if data.size is None else data.size * (1 + len(segments))
    space = CountingSpace()
    counters: dict[str, TensorCounter] = {}
    samples = 0
    with closing(float_pass(segments, tensor_types(model), data, providers)) as steps:
        for index, tensors in progress(steps, "observing", steps_in_all):
            for name, values in tensors.items():
                if name not in turns or values.dtype != np.float32:
                    continue
                if name not in counters:
                    counters[name] = TensorCounter(space, turns[name], axes.get(name))
                counters[name].add(values)
            samples = index + 1
    # `pop` frees each histogram as soon as it has been summarized.
    return {name: counters.pop(name).freeze() for name in list(counters)}, samples


def _turns_by_root(lineage: Lineage) -> dict[str, tuple[TurningPoint, ...]]:
    """Return the roots in order, each with the turning points of all functions derived from it."""
    turns: dict[str, dict[TurningPoint, None]] = {}
    for terms in lineage.values():
        for term in terms:
            turns.setdefault(term.root, {}).update(dict.fromkeys(turning_points(term.function) or ()))
    return {root: tuple(points) for root, points in turns.items()}


def _check_needs(axes: Mapping[str, int], lineage: Lineage) -> None:
    for name in axes:
        if name not in lineage:
            hint = nearest_spelling(name, lineage)
            raise SelectionError(
                f"statistics of channels must be of float32 activations of the model, got {name!r}{hint}; in Needs"
            )
