"""The stage calls from one plan to a mixed one."""

from dataclasses import dataclass

from quantry.data.calibration_data import CalibrationData
from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import QuantPlan
from quantry.memo import Handle, Memo
from quantry.mix.judge import Score
from quantry.mix.mixer import Mixer
from quantry.mix.sensitivity import sensitivity
from quantry.mix.stage import MixRequest, candidates, mix, target_options
from quantry.observe import Statistics
from quantry.plan import plan
from quantry.recipe import Recipe
from quantry.scale import scale


@dataclass(frozen=True, eq=False)
class MixInputs:
    """What the stages before gave.

    Attributes:
        model: The float model.
        statistics: What was observed of it.
        plan: The plan with one type everywhere.
        data: Calibration data.
    """

    model: Handle[FloatModel]
    statistics: Handle[Statistics] | Statistics
    plan: Handle[QuantPlan]
    data: CalibrationData


def run_mix(memo: Memo, given: MixInputs, recipe: Recipe, score: Score | None) -> Handle[QuantPlan]:
    """Run the stages of mixed precision.

    Args:
        memo: Keeps and finds results; how much each tensor matters is kept for all goals.
        given: What the stages before gave.
        recipe: Options of every stage; ``recipe.mix.mixed`` is not None.
        score: The user's function of the outputs. A plan that is found with it is found anew each time.

    Returns:
        The mixed plan.
    """
    wanted = recipe.mix.mixed
    assert wanted is not None
    plans = (given.plan, *(memo.run(plan, given.model, entry) for entry in target_options(recipe.plan, wanted)))
    params = tuple(memo.run(scale, given.model, given.statistics, entry, recipe.scale) for entry in plans)
    tensors = candidates(given.model.value, [entry.value for entry in plans], wanted)
    measured = memo.run(sensitivity, given.model, given.data.take(wanted.samples), plans, params, tensors)
    if score is None:
        request = MixRequest(wanted, recipe.scale)
        return memo.run(mix, given.model, given.statistics, plans, given.data, measured, request)
    observed = given.statistics.value if isinstance(given.statistics, Handle) else given.statistics
    mixer = Mixer(
        model=given.model.value,
        statistics=observed,
        plans=[entry.value for entry in plans],
        data=given.data,
        measured=measured.value,
        options=wanted,
        scaling=recipe.scale,
        score=score,
    )
    return Handle.of_value("mix", mixer.plan())
