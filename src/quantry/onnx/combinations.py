"""Settings that do not go together, refused before any work in the words of AMD Quark."""

from typing import TYPE_CHECKING

from quantry.errors import RecipeError
from quantry.recipe import (
    DataType,
    DerivedBias,
    FixNeuron,
    OwnBias,
    PerChannel,
    PerTensor,
    PowerOfTwoScale,
    Qdq,
    QOperator,
    TensorSpec,
)

if TYPE_CHECKING:
    from quantry.onnx.options.draft import Draft

_BYTES = (DataType.INT8, DataType.UINT8)

WIDEST_DERIVED_BIAS = 24
"""Bits of activation and weight together up to which int32 holds a bias on the product of their scales."""


def check_draft(draft: "Draft") -> None:
    """Refuse a draft whose options contradict each other.

    Raises:
        RecipeError: Two options do not go together; the message has the reason and the nearest setting that works.
    """
    if draft.npu:
        _check_npu(draft)
    if isinstance(draft.format, FixNeuron):
        _check_fix_neuron(draft)
    if isinstance(draft.format, QOperator):
        _check_qoperator(draft)
    if isinstance(draft.format, Qdq):
        _check_qdq(draft)
    _check_granularity(draft)
    _check_bias(draft)


def _demand(holds: bool, must: str, because: str, given: str, nearest: str) -> None:
    if not holds:
        raise RecipeError(f"{must}, because {because}; got {given}; {nearest}")


def _check_npu(draft: "Draft") -> None:
    with_npu = "with enable_npu_cnn=True"
    off = "or set enable_npu_cnn=False"
    activation, weight = draft.plan.activation, draft.plan.weight
    _demand(
        _power_of_two(activation) and _power_of_two(weight),
        f"calibrate_method must be a PowerOfTwoMethod {with_npu}",
        "the NPU rescales by shifting",
        "a method with float scales",
        f"use PowerOfTwoMethod.MinMSE, {off}",
    )
    _demand(
        isinstance(weight.granularity, PerTensor),
        f"per_channel must be False {with_npu}",
        "the NPU has one shift for a tensor",
        "per_channel=True",
        f"use per_channel=False (include_cle=True evens channels out), {off}",
    )
    _demand(
        not draft.scale.reduce_range,
        f"reduce_range must be False {with_npu}",
        "the NPU's accumulators hold products of 8 bits",
        "reduce_range=True",
        f"use reduce_range=False, {off}",
    )
    _demand(
        weight.dtype == DataType.INT8,
        f"weight_type must be QInt8 {with_npu}",
        "the NPU multiplies signed bytes",
        weight.dtype.value,
        f"use QInt8, {off}",
    )
    _demand(
        activation.dtype in _BYTES,
        f"activation_type must be QUInt8 or QInt8 {with_npu}",
        "the NPU multiplies bytes",
        activation.dtype.value,
        f"use QUInt8, {off}",
    )
    for key, spec in (("ActivationSymmetric", activation), ("WeightSymmetric", weight)):
        _demand(
            spec.symmetric,
            f"extra_options[{key!r}] must be True {with_npu}",
            "the NPU adds no zero points",
            "False",
            f"set it to True, {off}",
        )
    _demand(
        not isinstance(draft.format, QOperator),
        f"quant_format must be a QDQ format or FixNeuron {with_npu}",
        "integer operators of onnxruntime have 32-bit biases and the NPU has 8-bit ones",
        "QOperator",
        f"use QuantFormat.QDQ, {off}",
    )
    _demand(
        not draft.bias_given or (isinstance(draft.plan.bias, OwnBias) and draft.plan.bias.spec.dtype == DataType.INT8),
        f"biases must be 8-bit {with_npu}",
        "the NPU stores them so, with a position of their own",
        f"{draft.plan.bias}",
        f"leave QuantizeBias, Int32Bias and Int16Bias out, {off}",
    )


def _check_fix_neuron(draft: "Draft") -> None:
    because = "FixNeuron stores one bit position for each tensor and nothing else"
    must = "with VitisQuantFormat.FixNeuron"
    for key, spec in (("ActivationSymmetric", draft.plan.activation), ("WeightSymmetric", draft.plan.weight)):
        _demand(
            _power_of_two(spec),
            f"calibrate_method must be a PowerOfTwoMethod {must}",
            because,
            "a method with float scales",
            "use PowerOfTwoMethod.MinMSE, or quant_format=QuantFormat.QDQ",
        )
        _demand(
            spec.symmetric,
            f"extra_options[{key!r}] must be True {must}",
            because,
            "False",
            "set it to True, or use quant_format=VitisQuantFormat.QDQ",
        )
        _demand(
            isinstance(spec.granularity, PerTensor),
            f"per_channel must be False {must}",
            because,
            "per_channel=True",
            "use per_channel=False, or quant_format=VitisQuantFormat.QDQ",
        )


def _check_qoperator(draft: "Draft") -> None:
    for name, spec in (("activation_type", draft.plan.activation), ("weight_type", draft.plan.weight)):
        _demand(
            spec.dtype in _BYTES,
            f"{name} must have 8 bits with QuantFormat.QOperator",
            "its kernels have no other",
            spec.dtype.value,
            "use QuantType.QUInt8 or QInt8, or quant_format=QuantFormat.QDQ, which carries 4 to 16 bits",
        )


def _check_qdq(draft: "Draft") -> None:
    for name, spec in (("activation_type", draft.plan.activation), ("weight_type", draft.plan.weight)):
        _demand(
            not spec.dtype.is_block and spec.dtype.bits <= 16,
            f"{name} must be an integer of 4 to 16 bits or a 16-bit float with QuantFormat.QDQ",
            "standard ONNX writes no other",
            spec.dtype.value,
            "use quant_format=ExtendedQuantFormat.QDQ",
        )


def _check_granularity(draft: "Draft") -> None:
    weight = draft.plan.weight
    _demand(
        weight.dtype.is_integer or not isinstance(weight.granularity, PerChannel),
        "per_channel must be False beside a weight_type without scales",
        "16-bit floats and block formats have none to give to each channel",
        weight.dtype.value,
        "use per_channel=False, or an integer weight_type",
    )


def _check_bias(draft: "Draft") -> None:
    if not draft.bias_given or not isinstance(draft.plan.bias, DerivedBias):
        return
    activation, weight = draft.plan.activation.dtype, draft.plan.weight.dtype
    _demand(
        activation.is_integer and weight.is_integer and activation.bits + weight.bits <= WIDEST_DERIVED_BIAS,
        "extra_options['Int32Bias'] can be True for integers of at most 24 bits together only",
        "its scale is the product of theirs, and finer ones overflow int32",
        f"{activation.value} activations and {weight.value} weights",
        "leave Int32Bias out, which gives an int32 bias a scale of its own",
    )


def _power_of_two(spec: TensorSpec) -> bool:
    return isinstance(spec.scale, PowerOfTwoScale)
