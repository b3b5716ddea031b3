"""Which options go together; refused before any work."""

from quantry.errors import RecipeError
from quantry.recipe.data_type import DataType
from quantry.recipe.granularity import PerTensor
from quantry.recipe.options import DerivedBias, FixNeuron, Format, OwnBias, PlanOptions, QOperator
from quantry.recipe.scale_kind import PowerOfTwoScale
from quantry.recipe.tensor_spec import TensorSpec

_ACTIVATIONS = (DataType.INT4, DataType.UINT4, DataType.INT8, DataType.UINT8, DataType.INT16, DataType.UINT16)
_WEIGHTS = _ACTIVATIONS
_BIASES = (DataType.INT8, DataType.INT16, DataType.INT32)


def check_types(plan: PlanOptions, emitted: Format) -> None:
    """Refuse types that the format cannot carry.

    Args:
        plan: The types asked for.
        emitted: The format asked for.

    Raises:
        RecipeError: A type does not go with the format; the message says which do.
    """
    name = type(emitted).__name__
    _check("plan.activation.dtype", plan.activation.dtype, _ACTIVATIONS, name)
    _check("plan.weight.dtype", plan.weight.dtype, _WEIGHTS, name)
    if isinstance(plan.bias, OwnBias):
        _check("plan.bias.spec.dtype", plan.bias.spec.dtype, _BIASES, name)
    if isinstance(emitted, QOperator):
        _check_qoperator(plan)
    if isinstance(emitted, FixNeuron):
        _check_fix_neuron("plan.activation", plan.activation)
        _check_fix_neuron("plan.weight", plan.weight)
        if isinstance(plan.bias, OwnBias):
            _check_fix_neuron("plan.bias.spec", plan.bias.spec)
    if isinstance(plan.bias, DerivedBias) and plan.activation.dtype.bits + plan.weight.dtype.bits > 24:
        raise RecipeError(
            "plan.bias cannot be DerivedBias() when activation and weight together have more than 24 bits, because the "
            f"product of their scales is too fine for int32; got {plan.activation.dtype.value} and "
            f"{plan.weight.dtype.value}; use OwnBias(TensorSpec(DataType.INT32))"
        )


def _check(where: str, dtype: DataType, allowed: tuple[DataType, ...], emitted: str) -> None:
    if dtype not in allowed:
        names = ", ".join(member.value for member in allowed)
        raise RecipeError(f"{where} must be one of {names} in format {emitted}, got {dtype.value}")


def _check_fix_neuron(where: str, spec: TensorSpec) -> None:
    if not spec.symmetric or not isinstance(spec.scale, PowerOfTwoScale) or not isinstance(spec.granularity, PerTensor):
        raise RecipeError(
            f"{where} must be symmetric, PerTensor() and PowerOfTwoScale() in format FixNeuron, which stores one bit "
            f"position for each tensor; got {spec}; use TensorSpec(DataType.{spec.dtype.name}, "
            "scale=PowerOfTwoScale()), as preset XINT8 does, or the format VitisQdq()"
        )


def _check_qoperator(plan: PlanOptions) -> None:
    kernels = {DataType.UINT8: (DataType.INT8, DataType.UINT8), DataType.INT8: (DataType.INT8,)}
    weights = kernels.get(plan.activation.dtype)
    if weights is None:
        raise RecipeError(
            f"plan.activation.dtype must be int8 or uint8 in format QOperator, whose kernels have 8 bits; got "
            f"{plan.activation.dtype.value}; use uint8, or the format Qdq()"
        )
    if plan.weight.dtype not in weights:
        raise RecipeError(
            f"plan.weight.dtype must be {' or '.join(dtype.value for dtype in weights)} beside "
            f"{plan.activation.dtype.value} activations in format QOperator, because no other kernel exists; got "
            f"{plan.weight.dtype.value}; use int8, or the format Qdq()"
        )
