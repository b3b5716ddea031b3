"""What an integer NPU with power-of-two scales can take; refused before any work."""

from quantry.errors import RecipeError
from quantry.recipe.bias import OwnBias
from quantry.recipe.data_type import DataType
from quantry.recipe.granularity import PerTensor
from quantry.recipe.options import PlanOptions, ScaleOptions
from quantry.recipe.scale_kind import PowerOfTwoScale
from quantry.recipe.tensor_spec import TensorSpec

_OFF = "or leave the NPU's limits out with scale.npu = None"
_BYTES = (DataType.INT8, DataType.UINT8)


def check_npu(plan: PlanOptions, scale: ScaleOptions, *, wide: bool = False) -> None:
    """Refuse what does not go with the NPU's limits.

    Args:
        plan: Types and scales asked for.
        scale: Whether the NPU's limits are asked for.
        wide: Allow 16 bits, as single layers may have, which the limits then do not bind.

    Raises:
        RecipeError: Something does not go with them; the message has the reason and the nearest setting that does.
    """
    if scale.npu is None:
        return
    if plan.weights_only:
        raise RecipeError(
            "plan.weights_only must be False with scale.npu, because the NPU multiplies no floats; got True; set "
            f"False, {_OFF}"
        )
    words = (DataType.INT16,) if wide else ()
    _check("plan.activation", plan.activation, (*_BYTES, *words))
    _check("plan.weight", plan.weight, (DataType.INT8, *words))
    if not isinstance(plan.bias, OwnBias):
        raise RecipeError(
            "plan.bias must be OwnBias(TensorSpec(DataType.INT8, scale=PowerOfTwoScale())) with scale.npu, because the "
            f"NPU stores 8-bit biases with a position of their own; got {plan.bias}; set that, {_OFF}"
        )
    _check("plan.bias.spec", plan.bias.spec, (DataType.INT8, *words))
    if scale.reduce_range:
        raise RecipeError(
            "scale.reduce_range must be False with scale.npu, because the NPU's accumulators hold products of 8 bits; "
            f"got True; set False, {_OFF}"
        )


def _check(where: str, spec: TensorSpec, types: tuple[DataType, ...]) -> None:
    nearest = f"TensorSpec(DataType.{(spec.dtype if spec.dtype in types else types[0]).name}, scale=PowerOfTwoScale())"
    faults = {
        f"dtype {' or '.join(dtype.value for dtype in types)}, because the NPU multiplies bytes": spec.dtype in types,
        "scale PowerOfTwoScale(), because the NPU rescales by shifting": isinstance(spec.scale, PowerOfTwoScale),
        "symmetric, because the NPU adds no zero points": spec.symmetric,
        "PerTensor(), because the NPU has one shift for a tensor": isinstance(spec.granularity, PerTensor),
    }
    for demand, holds in faults.items():
        if not holds:
            raise RecipeError(f"{where} must be {demand} (scale.npu is set); got {spec}; use {nearest}, {_OFF}")
