"""The mix stage, and the stage calls that lead from one plan to a mixed one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from quantry.data.calibration_data import CalibrationData
from quantry.evaluate.stage import machine_environment
from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import QuantPlan
from quantry.memo import Handle, Memo, stage
from quantry.mix.groups import changing_layers, find_groups
from quantry.mix.mixer import BODIES_KEEP_TYPES, Mixer, Score
from quantry.mix.sensitivity import Sensitivity, sensitivity
from quantry.observe import Statistics
from quantry.plan import plan
from quantry.recipe import MixedPrecision, PlanOptions, Recipe, ScaleOptions, nearest_bias
from quantry.scale import scale


@dataclass(frozen=True)
class MixRequest:
    """The options of the mix stage.

    Attributes:
        mixed: Goal, targets and layers.
        scaling: How scales are computed.
    """

    mixed: MixedPrecision
    scaling: ScaleOptions


def target_options(options: PlanOptions, mixed: MixedPrecision) -> tuple[PlanOptions, ...]:
    """Return plan options with each target applied to the whole model.

    Args:
        options: The options of the plan without mixing.
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
        plans: The plan without mixing, then those of `target_options`.
        mixed: Which layers take part.
    """
    groups = find_groups(model, plans, mixed)
    return tuple(dict.fromkeys(tensor for group in groups for tensor in group.tensors))


@stage(name="mix", version=3, environment=machine_environment)
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
        statistics: Observed statistics of its tensors.
        plans: The plan without mixing, then those of `target_options`.
        data: Samples on which limits are checked.
        measured: Sensitivity of each tensor of `candidates`.
        request: The options.

    Raises:
        SelectionError: No layer may change.
        RecipeError: A budget is below the cost of the cheapest types.
    """
    return Mixer(model, statistics, plans, data, measured, request.mixed, request.scaling).plan()


@dataclass(frozen=True, eq=False)
class MixInputs:
    """Results of the stages before mixing.

    Attributes:
        model: The float model.
        statistics: Observed statistics of its tensors.
        plan: The plan without mixing.
        data: Calibration data.
    """

    model: Handle[FloatModel]
    statistics: Handle[Statistics] | Statistics
    plan: Handle[QuantPlan]
    data: CalibrationData


def run_mix(memo: Memo, given: MixInputs, recipe: Recipe, score: Score | None) -> Handle[QuantPlan]:
    """Run the stages of mixed precision.

    Args:
        memo: Stores results; the sensitivities serve every goal.
        given: Results of the stages before mixing.
        recipe: Options of every stage; ``recipe.mix.mixed`` is not None.
        score: The user's function of the outputs. It has no content key, so a plan found with it is never cached.

    Returns:
        The mixed plan; the given one if only bodies have layers.
    """
    wanted = recipe.mix.mixed
    assert wanted is not None
    plans = (given.plan, *(memo.run(plan, given.model, entry) for entry in target_options(recipe.plan, wanted)))
    values = [entry.value for entry in plans]
    if values[0].inside and not changing_layers(given.model.value, values, wanted):
        return Handle.of_value("mix", replace(values[0], notes=(BODIES_KEEP_TYPES,)))
    params = tuple(memo.run(scale, given.model, given.statistics, entry, recipe.scale) for entry in plans)
    tensors = candidates(given.model.value, values, wanted)
    measured = memo.run(sensitivity, given.model, given.data.take(wanted.samples), plans, params, tensors)
    if score is None:
        request = MixRequest(wanted, recipe.scale)
        return memo.run(mix, given.model, given.statistics, plans, given.data, measured, request)
    observed = given.statistics.value if isinstance(given.statistics, Handle) else given.statistics
    mixer = Mixer(
        model=given.model.value,
        statistics=observed,
        plans=values,
        data=given.data,
        measured=measured.value,
        options=wanted,
        scaling=recipe.scale,
        score=score,
    )
    return Handle.of_value("mix", mixer.plan())
