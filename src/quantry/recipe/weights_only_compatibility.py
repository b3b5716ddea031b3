"""Which options go with activations that stay float; refused before any work."""

from quantry.errors import RecipeError
from quantry.recipe.bias import OwnBias
from quantry.recipe.granularity import PerChannel, PerGroup
from quantry.recipe.options import Format, PlanOptions, Qdq, QOperator
from quantry.recipe.run_time_formats import Dynamic, MatMulNBits


def check_weights_only(plan: PlanOptions, emitted: Format) -> None:
    """Refuse plans of weights that a format cannot write, and formats of float activations with any other plan.

    Args:
        plan: What is quantized.
        emitted: The format asked for.

    Raises:
        RecipeError: They do not go together; the message says what does.
    """
    name = type(emitted).__name__
    if isinstance(emitted, Dynamic | MatMulNBits) and not plan.weights_only:
        raise RecipeError(
            f"plan.weights_only must be True in format {name}, whose activations are float tensors; got False; set "
            "True, or use the format Qdq()"
        )
    if isinstance(emitted, QOperator) and plan.weights_only:
        raise RecipeError(
            "plan.weights_only must be False in format QOperator, whose operators read integers; got True; set False, "
            "or use the format Dynamic(), whose activations become integers while the model runs"
        )
    if isinstance(emitted, Dynamic | MatMulNBits) and isinstance(plan.bias, OwnBias):
        raise RecipeError(
            f"plan.bias must be FloatBias() in format {name}, which adds it to a float result; got {plan.bias}"
        )
    _check_groups(plan, emitted)
    one_for_each = isinstance(plan.weight.granularity, PerChannel)
    if isinstance(emitted, Dynamic) and one_for_each and not plan.weight.symmetric:
        raise RecipeError(
            "plan.weight must be symmetric with PerChannel() in format Dynamic, whose ConvInteger has one zero point "
            f"for all channels; got {plan.weight}; use symmetric=True, or PerTensor()"
        )


def _check_groups(plan: PlanOptions, emitted: Format) -> None:
    name = type(emitted).__name__
    grouped = isinstance(plan.weight.granularity, PerGroup)
    if isinstance(emitted, MatMulNBits) and not grouped:
        raise RecipeError(
            f"plan.weight must be PerGroup() in format MatMulNBits, which has one scale for each group; got "
            f"{plan.weight.granularity}; use PerGroup(128)"
        )
    if grouped and not isinstance(emitted, MatMulNBits | Qdq):
        raise RecipeError(
            f"plan.weight cannot be PerGroup() in format {name}; use the format MatMulNBits() or Qdq(), or PerChannel()"
        )
    if grouped and not plan.weights_only:
        raise RecipeError(
            "plan.weights_only must be True with PerGroup() weights, because integer products have one scale for all "
            "they sum over; got False; set True, or use PerChannel()"
        )
    if isinstance(plan.bias, OwnBias) and isinstance(plan.bias.spec.granularity, PerGroup):
        raise RecipeError(f"plan.bias.spec must be PerTensor(), got {plan.bias.spec.granularity}")
