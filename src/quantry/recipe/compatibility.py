"""Which options go together; refused before any work."""

from quantry.errors import RecipeError
from quantry.recipe.bias import DerivedBias, OwnBias
from quantry.recipe.data_type import DataType
from quantry.recipe.granularity import PerChannel, PerTensor
from quantry.recipe.options import FixNeuron, Format, PlanOptions, Qdq, QOperator, VitisDialect, VitisQdq
from quantry.recipe.run_time_formats import Dynamic, MatMulNBits
from quantry.recipe.scale_kind import PowerOfTwoScale
from quantry.recipe.tensor_spec import TensorSpec
from quantry.recipe.weights_only_compatibility import check_weights_only

_ACTIVATIONS = (DataType.INT4, DataType.UINT4, DataType.INT8, DataType.UINT8, DataType.INT16, DataType.UINT16)
_FLOATS = (DataType.FLOAT16, DataType.BFLOAT16)
_WIDE = (DataType.INT32, DataType.UINT32)
_BLOCKS = tuple(dtype for dtype in DataType if dtype.is_block)
_BIASES = (DataType.INT8, DataType.INT16, DataType.INT32)


def check_types(plan: PlanOptions, emitted: Format) -> None:
    """Refuse types that the format cannot carry.

    Args:
        plan: The types asked for.
        emitted: The format asked for.

    Raises:
        RecipeError: A type does not go with the format; the message says which do.
    """
    allowed = _carried(emitted)
    check_weights_only(plan, emitted)
    if not plan.weights_only:
        _check("plan.activation.dtype", plan.activation.dtype, allowed, emitted)
    _check("plan.weight.dtype", plan.weight.dtype, allowed, emitted)
    if isinstance(plan.bias, OwnBias):
        others = tuple(dtype for dtype in allowed if not dtype.is_integer)
        _check("plan.bias.spec.dtype", plan.bias.spec.dtype, (*_BIASES, *others), emitted)
    if plan.weight.dtype in _WIDE and not isinstance(plan.weight.granularity, PerTensor):
        raise RecipeError(
            f"plan.weight must be PerTensor() with {plan.weight.dtype.value}, whose 32 bits leave channels nothing to "
            f"gain from scales of their own; got {plan.weight.granularity}"
        )
    _check_own_bias(plan)
    _check_derived_bias(plan)
    if isinstance(emitted, QOperator):
        _check_qoperator(plan)
    if isinstance(emitted, FixNeuron):
        if not plan.weights_only:
            _check_fix_neuron("plan.activation", plan.activation)
        _check_fix_neuron("plan.weight", plan.weight)
        if isinstance(plan.bias, OwnBias):
            _check_fix_neuron("plan.bias.spec", plan.bias.spec)


def _carried(emitted: Format) -> tuple[DataType, ...]:
    """Return the types of activations and weights that a format can write."""
    if isinstance(emitted, Qdq):
        return (*_ACTIVATIONS, *_FLOATS)
    if isinstance(emitted, VitisQdq) and emitted.dialect == VitisDialect.QUARK:
        return (*_ACTIVATIONS, *_WIDE, *_FLOATS, *_BLOCKS)
    if isinstance(emitted, Dynamic):
        return (DataType.INT8, DataType.UINT8)
    return _ACTIVATIONS[:4] if isinstance(emitted, MatMulNBits) else _ACTIVATIONS


def _check_own_bias(plan: PlanOptions) -> None:
    if isinstance(plan.bias, OwnBias) and isinstance(plan.bias.spec.granularity, PerChannel):
        raise RecipeError(
            f"plan.bias.spec must be PerTensor(), because a bias has one value for each channel; got "
            f"{plan.bias.spec.granularity}"
        )
    if not isinstance(plan.bias, OwnBias) or plan.bias.spec.dtype not in _WIDE or plan.weights_only:
        return
    if all(dtype.is_integer and dtype.bits == 8 for dtype in (plan.activation.dtype, plan.weight.dtype)):
        raise RecipeError(
            f"plan.bias cannot be {plan.bias.spec.dtype.value} with a scale of its own beside 8-bit activations and "
            "weights, because onnxruntime's integer kernels take a 32-bit bias to be on the grid of input scale x "
            "weight scale; use DerivedBias(), or OwnBias() with int8 or int16"
        )


def _check_derived_bias(plan: PlanOptions) -> None:
    if not isinstance(plan.bias, DerivedBias) or plan.weights_only:
        return
    activation, weight = plan.activation.dtype, plan.weight.dtype
    if not activation.is_integer or not weight.is_integer:
        raise RecipeError(
            "plan.bias cannot be DerivedBias() unless activation and weight are integers, because its scale is the "
            f"product of theirs; got {activation.value} and {weight.value}; use OwnBias(plan.weight) or FloatBias()"
        )
    if activation.bits + weight.bits > 24:
        raise RecipeError(
            "plan.bias cannot be DerivedBias() when activation and weight together have more than 24 bits, because the "
            f"product of their scales is too fine for int32; got {activation.value} and "
            f"{weight.value}; use OwnBias(TensorSpec(DataType.INT32))"
        )


def _check(where: str, dtype: DataType, allowed: tuple[DataType, ...], emitted: Format) -> None:
    if dtype not in allowed:
        names = ", ".join(member.value for member in allowed)
        carrier = VitisQdq(VitisDialect.QUARK)
        hint = "; the format VitisQdq(VitisDialect.QUARK) carries it" if dtype in _carried(carrier) else ""
        raise RecipeError(f"{where} must be one of {names} in format {type(emitted).__name__}, got {dtype.value}{hint}")


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
