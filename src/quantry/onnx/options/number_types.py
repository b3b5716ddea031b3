"""Options of types, symmetry and biases."""

from dataclasses import replace

from quantry.onnx.options import tensor_types, weights_only
from quantry.onnx.options.draft import Draft, own_bias_spec, with_field
from quantry.onnx.options.option_row import Kind, OptionRow, sets
from quantry.recipe import DataType, DerivedBias, FloatBias, FloatScale, OwnBias, PowerOfTwoScale, TensorSpec


def _quantize_bias(draft: Draft, value: bool) -> Draft:
    return draft if value else replace(draft, bias=FloatBias())


def _int32_bias(draft: Draft, value: bool) -> Draft:
    if draft.bias is not None:
        return draft.noted("Int32Bias has no effect beside QuantizeBias=False")
    return replace(draft, bias=DerivedBias() if value else OwnBias(own_bias_spec(draft.plan.weight)))


def _int16_bias(draft: Draft, value: bool) -> Draft:
    return replace(draft, bias=OwnBias(TensorSpec(DataType.INT16, scale=draft.plan.weight.scale))) if value else draft


def _power_of_two(draft: Draft, value: bool) -> Draft:
    for path in ("plan.activation.scale", "plan.weight.scale"):
        draft = with_field(draft, path, PowerOfTwoScale() if value else FloatScale())
    return draft


ROWS = (
    # Before the biases, whose scales are of the same kind.
    OptionRow(
        "UsePowerOf2Scale",
        Kind.BOOL,
        "True with a PowerOfTwoMethod, else False",
        "Scales that are powers of two, whatever the method.",
        "plan.activation.scale, plan.weight.scale",
        _power_of_two,
    ),
    OptionRow(
        "ActivationSymmetric",
        Kind.BOOL,
        "False; True with enable_npu_cnn or FixNeuron, and for types without zero point",
        "Fix the zero point of activations at the centre of the type.",
        "plan.activation.symmetric",
        sets("plan.activation.symmetric"),
    ),
    OptionRow(
        "WeightSymmetric",
        Kind.BOOL,
        "True for signed weights, else False",
        "Fix the zero point of weights at the centre of the type.",
        "plan.weight.symmetric",
        sets("plan.weight.symmetric"),
    ),
    OptionRow(
        "WeightsSymmetric",
        Kind.BOOL,
        "as WeightSymmetric",
        "The spelling of WeightSymmetric in AMD's page on accuracy.",
        "plan.weight.symmetric",
        sets("plan.weight.symmetric"),
    ),
    OptionRow(
        "UseUnsignedReLU",
        Kind.BOOL,
        "False",
        "Give symmetric int8 activations that are never negative an unsigned range.",
        refused="one model has one activation type here; use activation_type=QuantType.QUInt8 with "
        "ActivationSymmetric=False, which spends no step on negative numbers",
        harmless=(False,),
    ),
    OptionRow(
        "QuantizeBias",
        Kind.BOOL,
        "True",
        "False leaves biases float.",
        "plan.bias = FloatBias()",
        _quantize_bias,
    ),
    OptionRow(
        "Int32Bias",
        Kind.BOOL,
        "True; False with enable_npu_cnn, FixNeuron and for types without scale",
        "True: int32 biases on the product of the input's and the weight's scale. False: the weight's width, with a "
        "scale of their own.",
        "plan.bias = DerivedBias() or OwnBias(...)",
        _int32_bias,
    ),
    OptionRow(
        "Int16Bias",
        Kind.BOOL,
        "False",
        "Biases in int16, with a scale of their own.",
        "plan.bias = OwnBias(TensorSpec(DataType.INT16))",
        _int16_bias,
    ),
    OptionRow(
        "ActivationScaled",
        Kind.BOOL,
        "False",
        "Scale 16-bit float activations into +-2 first.",
        refused="float16 and bfloat16 are written without scale here; leave it out",
        harmless=(False,),
    ),
    OptionRow(
        "WeightScaled",
        Kind.BOOL,
        "False",
        "Scale 16-bit float weights into +-2 first.",
        refused="float16 and bfloat16 are written without scale here; leave it out",
        harmless=(False,),
    ),
    OptionRow(
        "QuantizeFP16",
        Kind.BOOL,
        "True for float16 models",
        "Quantize a float16 model without converting it.",
        refused="the stages compute in float32; use convert_fp16_to_fp32=True",
        harmless=(False,),
    ),
    OptionRow(
        "UseFP32Scale",
        Kind.BOOL,
        "as QuantizeFP16",
        "Keep scales in float32.",
        refused="scales are float32 here, as the stages compute in it; leave it out",
        harmless=(True,),
    ),
    *weights_only.ROWS,
    *tensor_types.ROWS,
    OptionRow(
        "Int16Scale",
        Kind.BOOL,
        "False",
        "Scales M / 2**N with a 16-bit M.",
        refused="scales are float32 or powers of two; use a CalibrationMethod or a PowerOfTwoMethod",
        harmless=(False,),
    ),
)
