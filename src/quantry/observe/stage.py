"""Runs the float model once over the calibration data and keeps method-neutral statistics."""

from collections.abc import Mapping
from typing import Any

from quantry.data.calibration_data import CalibrationData
from quantry.errors import InternalError, SelectionError, nearest_spelling
from quantry.graph.float_model import FloatModel
from quantry.memo import stage
from quantry.observe.derive import TensorTable
from quantry.observe.lineage import Lineage, trace_lineage
from quantry.observe.observation import observe_roots
from quantry.observe.statistics import NO_NEEDS, Needs, Statistics
from quantry.recipe import ObserveOptions
from quantry.runtime.environment import environment
from quantry.runtime.sessions import check_providers


def _environment(arguments: Mapping[str, Any]) -> Mapping[str, str]:
    # The kernel that counts codes must return the same integers as NumPy. The build id is in the key all the same, so
    # that a defect of one build does not spread through a shared store.
    return environment(libraries=("onnxruntime", "numpy"), kernels=True, devices=arguments["options"].providers)


@stage(name="observe", version=3, environment=_environment)
def observe(model: FloatModel, data: CalibrationData, options: ObserveOptions, needs: Needs = NO_NEEDS) -> Statistics:
    """Return the statistics of every float32 activation of the main graph: its inputs and its nodes' outputs.

    Only some tensors are really observed; those that are elementwise functions or rearrangements of others are derived
    from them, with exact counts and extrema. If a NaN or an infinity turns up, a second pass observes all of them.

    Args:
        model: The float model.
        data: Samples, fed one at a time; memory does not grow with their number.
        options: Where to run. The pipeline has already applied ``options.samples`` to the data of all stages.
        needs: Extra requests.

    Raises:
        ModelError: If onnxruntime cannot load the model.
        DataError: If a sample does not fit the model, or onnxruntime cannot run it.
        SelectionError: If the channels of a tensor are asked for that the model does not have.
    """
    check_providers(options.providers)
    axes = dict(needs.channel_extrema)
    derivable = trace_lineage(model.model, axes)
    _check_needs(axes, derivable)
    for lineage in (derivable, trace_lineage(model.model, derive=False)):
        roots, samples = observe_roots(model.model, data, options.providers, lineage, axes)
        table = TensorTable(roots, lineage)
        if table.is_derivable():
            return Statistics(table, samples)
    raise InternalError("a lineage of roots alone must always give statistics, got none; observe")


def _check_needs(axes: Mapping[str, int], lineage: Lineage) -> None:
    for name in axes:
        if name not in lineage:
            hint = nearest_spelling(name, lineage)
            raise SelectionError(f"channel extrema are of float32 activations of the model, got {name!r}{hint}; Needs")
