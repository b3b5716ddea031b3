"""The mix stage, and what has to be known before it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from quantry.data.calibration_data import CalibrationData
from quantry.evaluate.stage import machine_environment
from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import QuantPlan
from quantry.memo import stage
from quantry.mix.groups import find_groups
from quantry.mix.mixer import Mixer
from quantry.mix.sensitivity import Sensitivity
from quantry.observe import Statistics
from quantry.recipe import MixedPrecision, PlanOptions, ScaleOptions, nearest_bias


@dataclass(frozen=True)
class MixRequest:
    """What to reach, and how scales are found on the way.

    Attributes:
        mixed: What to reach.
        scaling: How scales are found.
    """

    mixed: MixedPrecision
    scaling: ScaleOptions


def target_options(options: PlanOptions, mixed: MixedPrecision) -> tuple[PlanOptions, ...]:
    """Return the options of the plans that have each target everywhere.

    Args:
        options: What the whole model becomes.
        mixed: The targets.
    """
    found = []
    for target in mixed.targets:
        activation, weight = target.activation or options.activation, target.weight or options.weight
        bias = target.bias or nearest_bias(options.bias, activation, weight)
        found.append(replace(options, activation=activation, weight=weight, bias=bias))
    return tuple(found)


def candidates(model: FloatModel, plans: Sequence[QuantPlan], mixed: MixedPrecision) -> tuple[str, ...]:
    """Return the tensors that may change, for `sensitivity`.

    Args:
        model: The float model.
        plans: The plan, and those of `target_options`.
        mixed: Which layers take part.
    """
    groups = find_groups(model, plans, mixed)
    return tuple(dict.fromkeys(tensor for group in groups for tensor in group.tensors))


@stage(name="mix", version=2, environment=machine_environment)
def mix(
    model: FloatModel,
    statistics: Statistics,
    plans: Sequence[QuantPlan],
    data: CalibrationData,
    measured: Sensitivity,
    request: MixRequest,
) -> QuantPlan:
    """Return a plan with the types that the goal asks for.

    Args:
        model: The float model.
        statistics: What was observed of it.
        plans: The plan, and those of `target_options`.
        data: Samples on which limits are checked.
        measured: How much each tensor of `candidates` matters.
        request: What to reach.

    Raises:
        SelectionError: Nothing may change.
        RecipeError: A budget is smaller than anything costs.
    """
    return Mixer(model, statistics, plans, data, measured, request.mixed, request.scaling).plan()
