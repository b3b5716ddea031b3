"""Settings that do not go together, refused before any work in the words of AMD Quark."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from quantry.errors import RecipeError
from quantry.recipe import (
    Bias,
    DataType,
    DerivedBias,
    Dynamic,
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
    if draft.plan.weights_only:
        _check_weights_only(draft)
    if draft.npu:
        _check_npu(draft)
        _check_npu_layers(draft)
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


class _Demand(NamedTuple):
    """What the NPU asks of one setting.

    Attributes:
        holds: Whether a draft is as it must be.
        must: What must hold, with the name of the setting.
        because: The reason.
        given: What was given instead.
        nearest: The nearest setting that works.
    """

    holds: "Callable[[Draft], bool]"
    must: str
    because: str
    given: "Callable[[Draft], str]"
    nearest: str


_NPU_DEMANDS = (
    _Demand(
        lambda draft: _power_of_two(draft.plan.activation) and _power_of_two(draft.plan.weight),
        "calibrate_method must be a PowerOfTwoMethod",
        "the NPU rescales by shifting",
        lambda draft: f"{type(draft.scale.activation).__name__} with float scales",
        "use PowerOfTwoMethod.MinMSE",
    ),
    _Demand(
        lambda draft: isinstance(draft.plan.weight.granularity, PerTensor),
        "per_channel must be False",
        "the NPU has one shift for a tensor",
        lambda draft: str(draft.plan.weight.granularity),
        "use per_channel=False (include_cle=True evens channels out)",
    ),
    _Demand(
        lambda draft: not draft.scale.reduce_range,
        "reduce_range must be False",
        "the NPU's accumulators hold products of 8 bits",
        lambda draft: str(draft.scale.reduce_range),
        "use reduce_range=False",
    ),
    _Demand(
        lambda draft: draft.plan.weight.dtype == DataType.INT8,
        "weight_type must be QInt8",
        "the NPU multiplies signed bytes",
        lambda draft: draft.plan.weight.dtype.value,
        "use QInt8",
    ),
    _Demand(
        lambda draft: draft.plan.activation.dtype in _BYTES,
        "activation_type must be QUInt8 or QInt8",
        "the NPU multiplies bytes",
        lambda draft: draft.plan.activation.dtype.value,
        "use QUInt8",
    ),
    _Demand(
        lambda draft: draft.plan.activation.symmetric,
        "extra_options['ActivationSymmetric'] must be True",
        "the NPU adds no zero points",
        lambda draft: str(draft.plan.activation.symmetric),
        "set it to True",
    ),
    _Demand(
        lambda draft: draft.plan.weight.symmetric,
        "extra_options['WeightSymmetric'] must be True",
        "the NPU adds no zero points",
        lambda draft: str(draft.plan.weight.symmetric),
        "set it to True",
    ),
    _Demand(
        lambda draft: not isinstance(draft.format, QOperator),
        "quant_format must be a QDQ format or FixNeuron",
        "integer operators of onnxruntime have 32-bit biases and the NPU has 8-bit ones",
        lambda draft: type(draft.format).__name__,
        "use QuantFormat.QDQ",
    ),
    _Demand(
        lambda draft: draft.bias is None or _is_8_bit(draft.bias),
        "biases must be 8-bit",
        "the NPU stores them so, with a position of their own",
        lambda draft: str(draft.bias),
        "leave QuantizeBias, Int32Bias and Int16Bias out",
    ),
)


def _check_npu(draft: "Draft") -> None:
    for demand in _NPU_DEMANDS:
        _demand(
            demand.holds(draft),
            f"{demand.must} with enable_npu_cnn=True",
            demand.because,
            demand.given(draft),
            f"{demand.nearest}, or set enable_npu_cnn=False",
        )


def _check_npu_layers(draft: "Draft") -> None:
    for layer in draft.plan.layers:
        for spec in (layer.activation, layer.output, layer.weight):
            _demand(
                spec is None or _power_of_two(spec),
                f"QLayerConfig of {', '.join((*layer.match, *layer.operators))} must have scale_type "
                "ScaleType.PowerOf2 with the rules of the NPU",
                "it rescales by shifting",
                str(spec),
                "set scale_type=ScaleType.PowerOf2, or EnableNPUCnn=False",
            )


def _is_8_bit(bias: Bias) -> bool:
    return isinstance(bias, OwnBias) and bias.spec.dtype == DataType.INT8


def _check_weights_only(draft: "Draft") -> None:
    asked = "use_dynamic_quant=True" if isinstance(draft.format, Dynamic) else "weights alone"
    _demand(
        not draft.npu,
        f"enable_npu_cnn must be False with {asked}",
        "the NPU multiplies integers whose scales are known",
        "enable_npu_cnn=True",
        "use enable_npu_cnn=False, or quantize activations too",
    )
    _demand(
        not isinstance(draft.format, QOperator),
        f"quant_format must be a QDQ format with {asked}",
        "integer operators read integer activations",
        "QOperator",
        "use quant_format=QuantFormat.QDQ, or use_dynamic_quant=True",
    )
    if isinstance(draft.format, Dynamic):
        _demand(
            draft.plan.weight.dtype in _BYTES,
            f"weight_type must be QInt8 or QUInt8 with {asked}",
            "ConvInteger and MatMulInteger have no other",
            draft.plan.weight.dtype.value,
            "use QUInt8",
        )


def _check_fix_neuron(draft: "Draft") -> None:
    because = "FixNeuron stores one bit position for each tensor and nothing else"
    must = "with VitisQuantFormat.FixNeuron"
    for key, spec in (("ActivationSymmetric", draft.plan.activation), ("WeightSymmetric", draft.plan.weight)):
        _demand(
            spec.dtype.is_integer and spec.dtype.bits <= 16,
            f"activation_type and weight_type must be integers of at most 16 bits {must}",
            because,
            spec.dtype.value,
            "use QInt8 or QInt16, or quant_format=ExtendedQuantFormat.QDQ",
        )
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
    _demand(
        draft.plan.activation.dtype == DataType.UINT8 or draft.plan.weight.dtype == DataType.INT8,
        "weight_type must be QInt8 beside QInt8 activations with QuantFormat.QOperator",
        "no other kernel exists",
        draft.plan.weight.dtype.value,
        "use weight_type=QuantType.QInt8, activation_type=QuantType.QUInt8 or quant_format=QuantFormat.QDQ",
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
    _demand(
        weight.dtype != DataType.UINT32 or not isinstance(weight.granularity, PerChannel),
        "per_channel must be False beside QUInt32 weights",
        "the function that defines them takes one scale",
        "per_channel=True",
        "use per_channel=False, or weight_type=ExtendedQuantType.QInt32",
    )


def _check_bias(draft: "Draft") -> None:
    if not isinstance(draft.bias, DerivedBias):
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
