"""What an integer NPU with power-of-two scales can take; refused before any work.

Which options go with activations that stay float; refused before any work.

Which options go together; refused before any work.

Types of single layers and tensors must go with the format and the NPU as those of the whole model do.
"""

from collections.abc import Iterator
from dataclasses import replace

from quantry.errors import RecipeError
from quantry.recipe.formats import Dynamic, FixNeuron, Format, MatMulNBits, Qdq, QOperator, VitisDialect, VitisQdq
from quantry.recipe.layers import TensorTypes, nearest_bias
from quantry.recipe.mixing import MixOptions
from quantry.recipe.options import PlanOptions, ScaleOptions
from quantry.recipe.tensor_spec import (
    Bias,
    DataType,
    DerivedBias,
    OwnBias,
    PerChannel,
    PerGroup,
    PerTensor,
    PowerOfTwoScale,
    TensorSpec,
)

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
        _compatibility_check("plan.activation.dtype", plan.activation.dtype, allowed, emitted)
    _compatibility_check("plan.weight.dtype", plan.weight.dtype, allowed, emitted)
    if isinstance(plan.bias, OwnBias):
        others = tuple(dtype for dtype in allowed if not dtype.is_integer)
        _compatibility_check("plan.bias.spec.dtype", plan.bias.spec.dtype, (*_BIASES, *others), emitted)
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


def _compatibility_check(where: str, dtype: DataType, allowed: tuple[DataType, ...], emitted: Format) -> None:
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


def check_layers(plan: PlanOptions, mix: MixOptions, scale: ScaleOptions, emitted: Format) -> None:
    """Refuse types of layers and tensors that the format cannot carry or the NPU cannot compute.

    Args:
        plan: The entries, and the types of the whole model.
        mix: What layers may become.
        scale: Whether the NPU's limits are asked for.
        emitted: The format asked for.

    Raises:
        RecipeError: Types do not go together; the message names the entry.
    """
    for where, variant in _variants(plan, mix):
        try:
            check_npu(variant, scale, wide=True)
            check_types(variant, emitted)
        except RecipeError as error:
            raise RecipeError(f"{where}: {error}") from error


def _variants(plan: PlanOptions, mix: MixOptions) -> Iterator[tuple[str, PlanOptions]]:
    """Yield, for each entry, what the options of the whole model would be if it held for all."""
    whole = replace(plan, layers=(), tensors=())
    for index, layer in enumerate(plan.layers):
        if not layer.keep_float:
            yield f"plan.layers[{index}]", _with_types(whole, layer.activation, layer.weight, layer.bias)
        if layer.output is not None:
            # What a layer writes is what others read, so it must be a type of activations as well.
            yield f"plan.layers[{index}].output", _with_types(whole, layer.output, None, None)
    for index, tensor in enumerate(plan.tensors):
        yield f"plan.tensors[{index}]", _with_tensor(whole, tensor)
    for index, target in enumerate(() if mix.mixed is None else mix.mixed.targets):
        yield f"mix.mixed.targets[{index}]", _with_types(whole, target.activation, target.weight, target.bias)


def _with_types(
    whole: PlanOptions, activation: TensorSpec | None, weight: TensorSpec | None, bias: Bias | None
) -> PlanOptions:
    activation, weight = activation or whole.activation, weight or whole.weight
    bias = bias or nearest_bias(whole.bias, activation, weight)
    return replace(whole, activation=activation, weight=weight, bias=bias)


def _with_tensor(whole: PlanOptions, tensor: TensorTypes) -> PlanOptions:
    # Whether it is an activation, a weight or a bias is known only with the model; 32 bits are for biases mostly.
    if tensor.spec.dtype == DataType.INT32:
        wide = replace(whole.weight, dtype=DataType.INT16) if whole.weight.dtype.is_integer else whole.weight
        return replace(whole, weight=wide, bias=OwnBias(tensor.spec))
    return replace(whole, weight=tensor.spec, bias=nearest_bias(whole.bias, whole.activation, tensor.spec))
