"""Every row of the option table: applied, without effect, another name for a field, or unsupported."""

import re
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from facade_models import Reader

from quantry.errors import RecipeError
from quantry.onnx import (
    CalibrationMethod,
    ExtendedCalibrationMethod,
    ExtendedQuantFormat,
    ExtendedQuantType,
    Int8Spec,
    Int16,
    Int16Spec,
    LayerWiseMethod,
    PowerOfTwoMethod,
    QLayerConfig,
    QuantFormat,
    QuantizationConfig,
    QuantType,
    VitisQuantFormat,
)
from quantry.onnx.options import FIELDS, NESTED, ROWS, OptionRow
from quantry.onnx.translate import translate
from quantry.recipe import (
    AdaQuant,
    AdaRound,
    BiasCorrection,
    CrossLayer,
    DataType,
    DerivedBias,
    Distribution,
    Dynamic,
    Entropy,
    FixNeuron,
    FloatBias,
    Gptq,
    LayerCount,
    LayerTarget,
    LayerWisePercentile,
    MatMulNBits,
    MinMax,
    MinMSE,
    MixedPrecision,
    NonOverflow,
    NpuConversions,
    NpuLimits,
    OwnBias,
    PerBlock,
    Percentile,
    PerChannel,
    PerGroup,
    PowerOfTwoScale,
    Qdq,
    QOperator,
    SmoothQuant,
    Subgraph,
    TensorSpec,
    TensorTypes,
    VitisDialect,
    VitisQdq,
    WithinDrop,
    WithinError,
)

NPU = {
    "enable_npu_cnn": True,
    "calibrate_method": PowerOfTwoMethod.MinMSE,
    "activation_type": QuantType.QUInt8,
}
CLE = {"include_cle": True}
PERCENTILE = {"calibrate_method": CalibrationMethod.Percentile}
DISTRIBUTION = {"calibrate_method": CalibrationMethod.Distribution}
ENTROPY = {"calibrate_method": CalibrationMethod.Entropy}
LAYER_WISE = {"calibrate_method": LayerWiseMethod.LayerWisePercentile}
BF16 = {"activation_type": ExtendedQuantType.QBFloat16, "weight_type": ExtendedQuantType.QBFloat16}
BFP = {
    "activation_type": ExtendedQuantType.QBFP,
    "weight_type": ExtendedQuantType.QBFP,
    "quant_format": ExtendedQuantFormat.QDQ,
}
MX = {
    "activation_type": ExtendedQuantType.QMX,
    "weight_type": ExtendedQuantType.QMX,
    "quant_format": ExtendedQuantFormat.QDQ,
}
READER = Reader()

Case = tuple[dict[str, Any], Any, str, Any]
"""Other fields, the value, a path in the job, and the value expected there."""

OPTIONS: dict[str, Case] = {
    "UsePowerOf2Scale": ({}, True, "recipe.plan.weight.scale", PowerOfTwoScale()),
    "ActivationSymmetric": ({}, True, "recipe.plan.activation.symmetric", True),
    "WeightSymmetric": ({}, False, "recipe.plan.weight.symmetric", False),
    "WeightsSymmetric": ({}, False, "recipe.plan.weight.symmetric", False),
    "QuantizeBias": ({}, False, "recipe.plan.bias", FloatBias()),
    "Int32Bias": ({}, False, "recipe.plan.bias.spec.dtype", DataType.INT8),
    "Int16Bias": ({}, True, "recipe.plan.bias.spec.dtype", DataType.INT16),
    "ForceQuantizeNoInputCheck": ({}, True, "recipe.plan.force_pass_through", True),
    "EnableSubgraph": ({}, False, "recipe.plan.body_weights", False),
    "MatMulConstBOnly": ({}, True, "recipe.plan.constant_right_operand_only", True),
    "AddQDQPairToWeight": ({}, False, "recipe.emit.format", Qdq()),
    "UseQDQVitisCustomOps": ({}, True, "recipe.emit.format", VitisQdq(VitisDialect.VITIS)),
    "UseQDQContribOps": ({}, True, "recipe.emit.format", VitisQdq(VitisDialect.CONTRIB)),
    "RemoveQDQConvRelu": ({}, False, "recipe.plan.fused_activations", ("Clip", "LeakyRelu", "PRelu")),
    "RemoveQDQConvClip": ({}, False, "recipe.plan.fused_activations", ("Relu", "LeakyRelu", "PRelu")),
    "RemoveQDQConvLeakyRelu": ({}, False, "recipe.plan.fused_activations", ("Relu", "Clip", "PRelu")),
    "RemoveQDQConvPRelu": ({}, False, "recipe.plan.fused_activations", ("Relu", "Clip", "LeakyRelu")),
    "BF16QDQToCast": ({**BF16, "quant_format": ExtendedQuantFormat.QDQ}, True, "recipe.emit.format", Qdq()),
    "BFPAttributes": (
        BFP,
        {"bfp_method": "to_bfp_prime", "bit_width": 13, "block_size": 32, "axis": 2},
        "recipe.plan.weight.granularity",
        PerBlock(32, 2),
    ),
    "MXAttributes": (MX, {"element_dtype": "fp6_e2m3"}, "recipe.plan.activation.dtype", DataType.MXFP6E2M3),
    "CLEScaleAppendBias": (CLE, False, "recipe.equalize.cross_layer.include_bias", False),
    "CLEWeightThreshold": (CLE, 0.25, "recipe.equalize.cross_layer.weight_threshold", 0.25),
    "CLEScaleUseThreshold": (CLE, False, "recipe.equalize.cross_layer.use_threshold", False),
    "CLETotalLayerDiffThreshold": (CLE, 1e-3, "recipe.equalize.cross_layer.convergence", 1e-3),
    "CLESteps": (CLE, -1, "recipe.equalize.cross_layer.steps", -1),
    "SmoothAlpha": ({"include_sq": True}, 0.6, "recipe.equalize.smooth", SmoothQuant(alpha=0.6)),
    "RMatrixDim": ({}, 16, "draft.notes", ("RMatrixDim has no effect without include_rotation",)),
    "UseRandomHad": ({}, True, "draft.notes", ("UseRandomHad has no effect without include_rotation",)),
    "RConfigPath": ({}, "r.json", "draft.notes", ("RConfigPath has no effect without include_rotation",)),
    "UseGPTQ": ({}, True, "recipe.tune.steps", (Gptq(order_by_activation=False),)),
    "GPTQParams": (
        {"extra_options": {"UseGPTQ": True}},
        {"Bits": 4, "ActOrder": True, "PerChannel": True},
        "recipe.plan.weight",
        TensorSpec(DataType.INT4, granularity=PerChannel()),
    ),
    "BiasCorrection": ({}, True, "recipe.tune.steps", (BiasCorrection(),)),
    "AutoMixprecision": (
        {"include_auto_mp": True},
        {"ActTargetQuantType": QuantType.QInt8, "WeightTargetQuantType": QuantType.QInt8, "L2Target": 0.1},
        "recipe.mix.mixed",
        MixedPrecision((LayerTarget(TensorSpec(symmetric=False), TensorSpec()),), WithinError(0.1)),
    ),
    "FastFinetune": (
        {"include_fast_ft": True},
        {"NumIterations": 10, "OptimAlgorithm": "adaquant"},
        "recipe.tune.steps",
        (AdaQuant(iterations=10),),
    ),
    "WeightsOnly": ({}, True, "recipe.plan.weights_only", True),
    "UseMatMulNBits": ({}, True, "recipe.emit.format", MatMulNBits()),
    "MatMulNBitsParams": (
        {"extra_options": {"UseMatMulNBits": True}},
        {"GroupSize": 32, "Symmetric": False, "Bits": 8},
        "recipe.plan.weight",
        TensorSpec(DataType.INT8, symmetric=False, granularity=PerGroup(32)),
    ),
    "TensorQuantOverrides": (
        {},
        {"a": [{"quant_type": QuantType.QInt16, "symmetric": True}]},
        "recipe.plan.tensors",
        (TensorTypes(("a",), TensorSpec(DataType.INT16)),),
    ),
    "MixedPrecisionTensor": (
        {"specific_tensor_precision": True},
        {QuantType.QUInt16: ["a", "b"]},
        "recipe.plan.tensors",
        (TensorTypes(("a", "b"), TensorSpec(DataType.UINT16, symmetric=False)),),
    ),
    "SkipPreprocess": ({}, True, "recipe.prepare.fold_batch_norm", False),
    "SimplifyModel": ({}, False, "recipe.prepare.fold_constants", False),
    "ConvertOpsetVersion": ({}, 19, "recipe.prepare.opset", 19),
    "FixShapes": (
        {},
        "image:[1,3, 8,8]; mask:[4]",
        "draft.fixed_shapes",
        {"image": (1, 3, 8, 8), "mask": (4,)},
    ),
    "FoldBatchNorm": ({}, False, "recipe.prepare.fold_batch_norm", False),
    "ConvertBNToConv": ({}, True, "recipe.prepare.npu.batch_norm_to_conv", True),
    "ConvertReduceMeanToGlobalAvgPool": ({}, True, "recipe.prepare.npu.reduce_mean_to_pool", True),
    "SplitLargeKernelPool": (NPU, False, "recipe.prepare.npu.split_large_pool", False),
    "ConvertSplitToSlice": (NPU, False, "recipe.prepare.npu.split_to_slice", False),
    "ReplaceClip6Relu": (CLE, True, "recipe.equalize.cross_layer.clip6_to_relu", True),
    "CalibDataSize": ({}, 7, "recipe.observe.samples", 7),
    "Percentile": (PERCENTILE, 99.9, "recipe.scale.activation", Percentile(99.9)),
    "CalibTensorRangeSymmetric": (PERCENTILE, False, "recipe.scale.activation", Percentile(symmetric=False)),
    "CalibMovingAverage": ({}, True, "recipe.scale.activation", MinMax(0.01)),
    "CalibMovingAverageConstant": (
        {"extra_options": {"CalibMovingAverage": True}},
        0.5,
        "recipe.scale.activation",
        MinMax(0.5),
    ),
    "LWPMetric": (LAYER_WISE, "mse", "recipe.scale.activation", LayerWisePercentile(metric="mse")),
    "PercentileCandidates": (LAYER_WISE, [99, 100], "recipe.scale.activation", LayerWisePercentile((99.0, 100.0))),
    "NumBins": (ENTROPY, 512, "recipe.scale.activation", Entropy(bins=512)),
    "NumQuantizedBins": (ENTROPY, 64, "recipe.scale.activation", Entropy(quantized_bins=64)),
    "WeightCalibrateMethod": ({}, ExtendedCalibrationMethod.MinMSE, "recipe.scale.weight", MinMSE()),
    "UseRandomData": ({}, True, "draft.random_given", True),
    "OpTypesToExcludeOutputQuantization": ({}, ["MatMul", "Gemm"], "recipe.plan.float_outputs", ("MatMul", "Gemm")),
    "QuantizeFP16": ({}, True, "draft.quantize_fp16", True),
    "UseFP32Scale": ({}, False, "draft.fp32_scale", False),
    "TmpDir": ({}, ".", "draft.temporary_folder", "."),
    "Scenario": (DISTRIBUTION, "p3", "recipe.scale.activation", Distribution(1 / 3)),
    "QuantizeAllOpTypes": ({}, True, "recipe.plan.every_operator", True),
    "DedicatedQDQPair": ({}, True, "recipe.emit.dedicated_pairs", True),
    "MinimumRealRange": ({}, 0.5, "recipe.scale.smallest_range", 0.5),
    "ActivationRestrictedAsymmetric": ({}, True, "recipe.scale.zero_point_at_an_end", True),
    "UseUnsignedReLU": (
        {"extra_options": {"ActivationSymmetric": True}},
        True,
        "recipe.scale.zero_point_at_an_end",
        True,
    ),
    "BlockSize": ({}, 32, "recipe.plan.weight.granularity", PerGroup(32)),
    "RandomDataReaderInputShape": ({}, {"image": [1, 3, 8, 8]}, "draft.random.shapes", {"image": (1, 3, 8, 8)}),
    "RandomDataReaderInputDataRange": ({}, {"image": [-1, 1]}, "draft.random.ranges", {"image": (-1.0, 1.0)}),
    "ConvertLeakyReluToDPUVersion": (NPU, False, "recipe.prepare.npu.leaky_relu", False),
    "ConvertSigmoidToHardSigmoid": (NPU, False, "recipe.prepare.npu.sigmoid_to_hard_sigmoid", False),
    "ConvertHardSigmoidToDPUVersion": (NPU, False, "recipe.prepare.npu.hard_sigmoid", False),
    "ConvertAvgPoolToDPUVersion": (NPU, False, "recipe.prepare.npu.average_pool", False),
    "ConvertReduceMeanToDPUVersion": (NPU, False, "recipe.prepare.npu.reduce_mean", False),
    "ConvertClipToDPUVersion": (NPU, True, "recipe.prepare.npu.clip", True),
    "SimulateDPU": (NPU, False, "recipe.prepare.npu.sigmoid_to_hard_sigmoid", False),
    "AdjustShiftCut": (NPU, False, "recipe.scale.npu.shift_cut", False),
    "AdjustShiftBias": (NPU, False, "recipe.scale.npu.shift_bias", False),
    "AdjustShiftRead": (NPU, False, "recipe.scale.npu.shift_read", False),
    "AdjustShiftWrite": (NPU, False, "recipe.scale.npu.shift_write", False),
    "AdjustHardSigmoid": (NPU, False, "recipe.scale.npu.hard_sigmoid", False),
    "AdjustShiftSwish": (NPU, False, "recipe.scale.npu.swish", False),
    "AlignConcat": (NPU, False, "recipe.scale.npu.align_concat", False),
    "AlignPool": (NPU, False, "recipe.scale.npu.align_pool", False),
    "AlignPad": (NPU, False, "recipe.scale.npu.align_pad", False),
    "AlignSlice": (NPU, False, "recipe.scale.npu.align_slice", False),
    "MaxLoopNum": (NPU, 9, "recipe.scale.npu.max_rounds", 9),
    "NPULimitationCheck": (NPU, False, "recipe.scale.npu", None),
    "EvalMetrics": ({}, True, "draft.evaluate", True),
    "EvalDataReader": (
        {"extra_options": {"EvalMetrics": True}},
        READER,
        "draft.evaluation_data",
        READER,
    ),
}

FIELD_CASES: dict[str, Case] = {
    "activation_type": ({}, QuantType.QUInt16, "recipe.plan.activation.dtype", DataType.UINT16),
    "weight_type": ({}, QuantType.QUInt8, "recipe.plan.weight.symmetric", False),
    "calibrate_method": ({}, PowerOfTwoMethod.NonOverflow, "recipe.scale.weight", NonOverflow()),
    "quant_format": (
        {"calibrate_method": PowerOfTwoMethod.MinMSE},
        VitisQuantFormat.FixNeuron,
        "recipe.emit.format",
        FixNeuron(),
    ),
    "per_channel": ({}, True, "recipe.plan.weight.granularity", PerChannel()),
    "reduce_range": ({}, True, "recipe.scale.reduce_range", True),
    "input_nodes": ({}, ["a"], "recipe.plan.selection.input_nodes", ("a",)),
    "output_nodes": ({}, ["a"], "recipe.plan.selection.output_nodes", ("a",)),
    "nodes_to_quantize": ({}, ["a"], "recipe.plan.selection.include", ("a",)),
    "nodes_to_exclude": ({}, ["^a.*"], "recipe.plan.selection.exclude", ("^a.*",)),
    "op_types_to_quantize": ({}, ["Conv", "Gemm"], "recipe.plan.selection.operators", ("^(Conv|Gemm)$",)),
    "extra_op_types_to_quantize": (
        {"op_types_to_quantize": ["Conv"]},
        ["Gemm"],
        "recipe.plan.selection.operators",
        ("^(Conv|Gemm)$",),
    ),
    "subgraphs_to_exclude": (
        {},
        [(["a"], ["b", "c"])],
        "recipe.plan.selection.exclude_subgraphs",
        (Subgraph(("a",), ("b", "c")),),
    ),
    "execution_providers": (
        {},
        ["X", "CPUExecutionProvider"],
        "recipe.observe.providers",
        ("X", "CPUExecutionProvider"),
    ),
    "optimize_model": ({}, False, "recipe.prepare.fold_batch_norm", False),
    "convert_fp16_to_fp32": ({}, True, "recipe.prepare.float16_to_float32", True),
    "use_external_data_format": ({}, True, "draft.external_data", True),
    "include_cle": ({}, True, "recipe.equalize.cross_layer", CrossLayer()),
    "enable_npu_cnn": ({**NPU, "enable_npu_cnn": False}, True, "recipe.scale.npu", NpuLimits()),
    "enable_npu_transformer": ({}, True, "recipe.plan.selection.operators", ("Gemm", "MatMul")),
    "specific_tensor_precision": ({}, True, "draft.tensor_types", True),
    "use_dynamic_quant": ({}, True, "recipe.emit.format", Dynamic()),
    "convert_nchw_to_nhwc": ({}, True, "draft.channels_last", True),
    "include_auto_mp": (
        {"extra_options": {"AutoMixprecision": {"TargetQuantType": QuantType.QInt8, "NumTarget": 1}}},
        True,
        "recipe.mix.mixed.goal",
        LayerCount(1),
    ),
    "include_sq": ({}, True, "recipe.equalize.smooth", SmoothQuant(alpha=0.5)),
    "include_fast_ft": ({}, True, "recipe.tune.steps", (AdaRound(),)),
    "print_summary": ({}, False, "draft.summary", False),
    "ignore_warnings": ({}, False, "draft.quiet", False),
    "log_severity_level": ({}, 3, "draft.log_severity", 3),
    "debug_mode": ({}, True, "draft.log_severity", 0),
}

WRONG_TYPES = {"bool": "yes", "int": 1.5, "float": "much", "str": 3, "list": "one", "dict": [1], "enum": "MinMSE"}
OTHER_VALUES = {"bool": True, "str": "something", "list": ["x"], "dict": {"x": 1}}


def place(job: Any, path: str) -> Any:
    for name in path.split("."):
        job = getattr(job, name)
    return job


def with_option(key: str, value: Any, settings: dict[str, Any] | None = None) -> QuantizationConfig:
    others = dict(settings or {})
    options = others.pop("extra_options", {})
    return QuantizationConfig(**others, extra_options={key: value, **options})


def rows(**wanted: bool) -> list[OptionRow]:
    return [row for row in ROWS.values() if all(bool(getattr(row, name)) == flag for name, flag in wanted.items())]


def other_value(row: OptionRow) -> Any:
    return not row.harmless[0] if isinstance(row.harmless[0], bool) else OTHER_VALUES[row.kind.value]


def test_every_applied_option_has_a_case() -> None:
    assert set(OPTIONS) == {key for key, row in ROWS.items() if row.apply is not None}


def test_every_field_has_a_row_and_a_case_or_is_unsupported() -> None:
    assert set(FIELDS) | {"extra_options"} == {part.name for part in fields(QuantizationConfig)}
    assert set(FIELD_CASES) == {key for key, row in FIELDS.items() if row.apply is not None}


@pytest.mark.parametrize("key", OPTIONS)
def test_option_sets_its_field(key: str) -> None:
    settings, value, path, expected = OPTIONS[key]
    config = with_option(key, value, settings)
    assert place(translate(config), path) == expected


@pytest.mark.parametrize(
    "key",
    [
        key
        for key, case in OPTIONS.items()
        if case[2].startswith("recipe") and key not in ("AddQDQPairToWeight", "AutoMixprecision")
    ],
)
def test_option_changes_the_recipe(key: str) -> None:
    settings, value, _, _ = OPTIONS[key]
    without = QuantizationConfig(**settings)
    assert translate(with_option(key, value, settings)).recipe != translate(without).recipe


@pytest.mark.parametrize("key", FIELD_CASES)
def test_field_sets_its_recipe_field(key: str) -> None:
    settings, value, path, expected = FIELD_CASES[key]
    assert place(translate(QuantizationConfig(**{**settings, key: value})), path) == expected


@pytest.mark.parametrize("row", rows(refused=True), ids=lambda row: row.key)
def test_unsupported_option_says_what_to_use_instead(row: OptionRow) -> None:
    with pytest.raises(RecipeError, match=re.escape(row.refused)):
        translate(with_option(row.key, other_value(row)))


@pytest.mark.parametrize("row", rows(refused=True), ids=lambda row: row.key)
def test_unsupported_option_accepts_harmless_values(row: OptionRow) -> None:
    for value in row.harmless:
        assert translate(with_option(row.key, value)).recipe == translate(QuantizationConfig()).recipe


@pytest.mark.parametrize("row", [row for row in FIELDS.values() if row.refused], ids=lambda row: row.key)
def test_unsupported_field_says_what_to_use_instead(row: OptionRow) -> None:
    with pytest.raises(RecipeError, match=re.escape(row.refused)):
        translate(QuantizationConfig(**{row.key: True}))


@pytest.mark.parametrize("row", rows(satisfied=True), ids=lambda row: row.key)
def test_option_without_effect_does_not_change_the_recipe(row: OptionRow) -> None:
    value = {"bool": True, "int": 4, "list": ["Conv"]}[row.kind.value]
    assert translate(with_option(row.key, value)).recipe == translate(QuantizationConfig()).recipe


@pytest.mark.parametrize("row", rows(spelling_of=True), ids=lambda row: row.key)
def test_other_name_of_a_field_has_the_same_effect(row: OptionRow) -> None:
    field = row.spelling_of
    if FIELDS[field].refused:
        with pytest.raises(RecipeError, match=re.escape(FIELDS[field].refused)):
            translate(with_option(row.key, True))  # noqa: FBT003
        return
    settings, value, path, expected = FIELD_CASES[field]
    assert place(translate(with_option(row.key, value, settings)), path) == expected


@pytest.mark.parametrize(
    "row", [row for row in ROWS.values() if row.kind.value in WRONG_TYPES], ids=lambda row: row.key
)
def test_wrong_type_is_an_error_that_names_the_key(row: OptionRow) -> None:
    with pytest.raises(RecipeError, match=row.key):
        translate(with_option(row.key, WRONG_TYPES[row.kind.value]))


def test_unknown_key_is_an_error_with_the_nearest_spelling() -> None:
    with pytest.raises(RecipeError, match="did you mean 'ActivationSymmetric'"):
        translate(with_option("ActivationSymetric", True))  # noqa: FBT003


def test_field_in_extra_options_is_reported_as_a_field() -> None:
    with pytest.raises(RecipeError, match="include_cle is a field of QuantizationConfig"):
        translate(with_option("include_cle", True))  # noqa: FBT003


def test_unknown_key_of_finetuning_is_an_error_with_the_nearest_spelling() -> None:
    with pytest.raises(RecipeError, match="did you mean 'LearningRate'"):
        translate(with_option("FastFinetune", {"LearnRate": 0.1}))


def test_option_of_another_method_is_noted() -> None:
    job = translate(with_option("Percentile", 99.9))
    assert job.draft.notes == ("Percentile has no effect without CalibrationMethod.Percentile",)
    assert job.recipe == translate(QuantizationConfig()).recipe


def test_master_switches_override_single_ones() -> None:
    options = {"SimulateDPU": False, "ConvertClipToDPUVersion": True, "NPULimitationCheck": False, "AlignPool": True}
    recipe = translate(QuantizationConfig(**NPU, extra_options=options)).recipe
    assert recipe.scale.npu is None
    assert recipe.prepare.npu == NpuConversions(
        leaky_relu=False,
        sigmoid_to_hard_sigmoid=False,
        hard_sigmoid=False,
        average_pool=False,
        reduce_mean=False,
    )


def test_alpha_outside_its_range_names_the_option() -> None:
    with pytest.raises(RecipeError, match=r"extra_options\['SmoothAlpha'\] must be between 0 and 1, got 2"):
        translate(with_option("SmoothAlpha", 2, {"include_sq": True}))
    assert translate(with_option("SmoothAlpha", 0.5)).draft.notes == ("SmoothAlpha has no effect without include_sq",)


def test_zero_steps_skip_equalization() -> None:
    assert translate(with_option("CLESteps", 0, CLE)).recipe.equalize.cross_layer is None
    assert translate(with_option("CLESteps", 2, CLE)).recipe.equalize.cross_layer == CrossLayer(steps=2)


def test_bias_follows_types() -> None:
    assert translate(QuantizationConfig()).recipe.plan.bias == DerivedBias()
    wide = QuantizationConfig(activation_type=QuantType.QInt16, weight_type=QuantType.QInt16)
    bias = translate(wide).recipe.plan.bias
    assert isinstance(bias, OwnBias)
    assert bias.spec.dtype == DataType.INT32


@pytest.mark.parametrize("attributes", [{"rounding_mode": 0}, {"bit_width": 12}, {"blocksize": 8}])
def test_unsupported_block_attribute_raises(attributes: dict[str, int]) -> None:
    with pytest.raises(RecipeError, match="BFPAttributes"):
        translate(with_option("BFPAttributes", attributes, BFP))


def test_extended_format_chooses_the_dialect_by_types() -> None:
    extended = {"quant_format": ExtendedQuantFormat.QDQ}
    assert translate(QuantizationConfig(**extended)).recipe.emit.format == VitisQdq(VitisDialect.CONTRIB)
    assert translate(QuantizationConfig(**BF16, **extended)).recipe.emit.format == VitisQdq(VitisDialect.QUARK)
    assert translate(QuantizationConfig(quant_format=QuantFormat.QOperator)).recipe.emit.format == QOperator()


OWNERS: dict[str, dict[str, Any]] = {
    "FastFinetune": {"include_fast_ft": True},
    "AutoMixprecision": {"include_auto_mp": True},
    "GPTQParams": {"extra_options": {"UseGPTQ": True}},
    "MatMulNBitsParams": {"extra_options": {"UseMatMulNBits": True}},
}
MIX = {"TargetLayerConfig": QLayerConfig(activation=Int8Spec(), weight=Int8Spec())}
NESTED_VALUES: dict[str, dict[str, Any]] = {
    "AutoMixprecision": {
        "ActTargetQuantType": QuantType.QInt16,
        "WeightTargetQuantType": QuantType.QInt16,
        "BiasTargetQuantType": QuantType.QInt16,
        "TargetQuantType": Int16,
        "TargetLayerConfig": {QLayerConfig(activation=Int16Spec()): ["a"]},
        "TargetOpType": ["Conv"],
        "IncludeLayers": ["a"],
        "TargetTensors": ["a"],
        "ExcludeLayers": ["a"],
        "DataSize": 3,
        "OutputIndex": 1,
        "MetricOutputIndex": 1,
        "NoInputQDQShared": True,
        "L2Target": 0.1,
        "NumTarget": 2,
        "MetricThreshold": 0.5,
    },
    "FastFinetune": {
        "OptimAlgorithm": "adaquant",
        "OptimDevice": "cuda:1",
        "InferDevice": "hip:0",
        "FixedSeed": 1,
        "DataSize": 5,
        "BatchSize": 2,
        "NumBatches": 3,
        "NumIterations": 7,
        "LearningRate": 0.5,
        "EarlyStop": True,
        "LRAdjust": [1.0, 0.2],
        "TargetOpType": ["Conv"],
        "SelectiveUpdate": True,
        "OutputQDQ": True,
        "DropRatio": 0.5,
        "MemOptLevel": 2,
        "CacheDir": "here",
        "RegParam": 0.1,
        "BetaRange": (10, 1),
        "WarmStart": 0.1,
        "LogPeriod": 3,
        "OutputIndex": 1,
    },
    "GPTQParams": {
        "Bits": 4,
        "PerChannel": True,
        "GroupSize": 32,
        "MSE": True,
        "WeightSymmetric": False,
        "BlockSize": 64,
        "PercDamp": 0.1,
        "ActOrder": True,
    },
    "MatMulNBitsParams": {"Algorithm": "GPTQ", "GroupSize": 32, "Symmetric": False, "Bits": 8, "AccuracyLevel": 4},
}
NESTED_ROWS = [(key, row) for key, rows in NESTED.items() for row in rows]


# Types are given, so that what is looked at is the one key under test.
BASE: dict[str, dict[str, Any]] = {"AutoMixprecision": {"TargetQuantType": QuantType.QUInt8, "NumTarget": 1}}
PARTS_OF_ONE = {"UpdateBias", "Top1AccTarget", "EvaluateFunction", "MetricEvaluateFn", "MetricDefault"}
PARTS_OF_ONE |= {"MetricOptimizeObject", "MetricThreshold"}
"""Keys that have an effect only together with others; they have separate tests."""


def under(key: str, settings: dict[str, Any]) -> Any:
    return translate(with_option(key, {**BASE.get(key, {}), **settings}, OWNERS[key]))


@pytest.mark.parametrize(
    ("key", "name"),
    [(key, row.key) for key, row in NESTED_ROWS if row.apply is not None and row.key not in PARTS_OF_ONE],
)
def test_nested_key_changes_the_recipe(key: str, name: str) -> None:
    assert under(key, {name: NESTED_VALUES[key][name]}).recipe != under(key, {}).recipe


@pytest.mark.parametrize(
    ("key", "row"),
    [(key, row) for key, row in NESTED_ROWS if row.refused],
    ids=lambda value: getattr(value, "key", value),
)
def test_unsupported_nested_key_says_what_to_use_instead(key: str, row: OptionRow) -> None:
    with pytest.raises(RecipeError, match=re.escape(row.refused)):
        under(key, {row.key: {"list": [1], "object": print}.get(row.kind.value) or other_value(row)})


@pytest.mark.parametrize(
    ("key", "row"),
    [(key, row) for key, row in NESTED_ROWS if row.kind.value in WRONG_TYPES],
    ids=lambda value: getattr(value, "key", value),
)
def test_nested_key_checks_its_type(key: str, row: OptionRow) -> None:
    with pytest.raises(RecipeError, match=re.escape(f"extra_options['{key}']['{row.key}'] must be of type")):
        under(key, {row.key: WRONG_TYPES[row.kind.value]})


@pytest.mark.parametrize("key", NESTED)
def test_nested_options_of_a_disabled_feature_are_noted(key: str) -> None:
    name, value = next(iter(NESTED_VALUES[key].items()))
    assert "has no effect without" in translate(with_option(key, {name: value})).draft.notes[0]


def test_settings_of_the_other_algorithm_are_noted() -> None:
    notes = under("FastFinetune", {"OptimAlgorithm": "adaquant", "RegParam": 0.1}).draft.notes
    assert notes == ("FastFinetune: RegParam has no effect with AdaQuant",)
    assert under("FastFinetune", {"UpdateBias": True}).draft.notes[0].endswith("no effect with AdaRound")


def test_defaults_of_finetuning_are_those_of_the_document() -> None:
    (step,) = translate(QuantizationConfig(include_fast_ft=True)).recipe.tune.steps
    assert isinstance(step, AdaRound)
    assert (step.device, step.batch_size, step.iterations, step.learning_rate) == ("cpu", 1, 1000, 0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"OptimAlgorithm": "adarond"}, "did you mean 'adaround'"),
        ({"InferDevice": "gpu"}, r"\['InferDevice'\] cannot be 'gpu'.*'cuda:N' or 'hip:N', got 'gpu'"),
        ({"OptimDevice": "tpu:0"}, r"\['OptimDevice'\] cannot be 'tpu:0'.*'cuda:N'"),
        ({"BatchSize": 0}, r"\['BatchSize'\] cannot be 0.*above 0"),
    ],
)
def test_unsupported_value_names_its_key(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        under("FastFinetune", settings)


def test_algorithms_run_in_a_fixed_order() -> None:
    options = {"FastFinetune": {"NumIterations": 3}, "BiasCorrection": True, "UseGPTQ": True}
    steps = translate(QuantizationConfig(include_fast_ft=True, extra_options=options)).recipe.tune.steps
    assert [type(step) for step in steps] == [Gptq, BiasCorrection, AdaRound]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"scale": 0.1}, "'scale' and 'zero_point' together"),
        ({"quant_typ": QuantType.QInt8}, "did you mean 'quant_type'"),
    ],
)
def test_unsupported_tensor_override_raises(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        translate(with_option("TensorQuantOverrides", {"a": [entry]}))


def mixed(**settings: Any) -> MixedPrecision:
    config = QuantizationConfig(include_auto_mp=True, extra_options={"AutoMixprecision": settings})
    found = translate(config).recipe.mix.mixed
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("settings", "goal"),
    [
        ({}, LayerCount(10**9)),
        ({"MetricThreshold": 0.25}, WithinError(0.25)),
        ({"MetricThreshold": 0.25, "MetricDefault": "cosine"}, WithinError(0.75, "cosine")),
        ({"MetricThreshold": -30, "MetricDefault": "sqnr", "MetricOptimizeObject": "quality"}, WithinError(30, "sqnr")),
        ({"MetricThreshold": 0.1, "MetricEvaluateFn": len}, WithinDrop(0.1)),
        ({"Top1AccTarget": 0.1, "EvaluateFunction": len}, WithinDrop(0.1)),
        ({"NumTarget": 3}, LayerCount(3)),
    ],
)
def test_keys_of_mixed_precision_make_one_goal(settings: dict[str, Any], goal: Any) -> None:
    assert mixed(**MIX, **settings).goal == goal


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "must have target types"),
        ({"TargetQuantType": QuantType.QInt8}, "must have a goal"),
        ({**MIX, "Top1AccTarget": 0.1}, "'Top1AccTarget'.* needs EvaluateFunction"),
        ({**MIX, "EvaluateFunction": "top1"}, "must be a function"),
        ({**MIX, "MetricDefault": "cosin"}, "did you mean 'cosine'"),
        ({**MIX, "MetricOptimizeObject": "sped"}, "did you mean 'speed'"),
        ({"TargetLayerConfig": "int8"}, "must be a QLayerConfig"),
        ({"ActTargetQuantType": "QInt8"}, "ActTargetQuantType.* must be a QuantType such as"),
    ],
)
def test_incomplete_mixed_precision_names_the_missing_key(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        mixed(**settings)


def test_score_of_mixed_precision_reads_the_first_output() -> None:
    config = QuantizationConfig(
        include_auto_mp=True,
        extra_options={"AutoMixprecision": {**MIX, "Top1AccTarget": 0.1, "EvaluateFunction": lambda out: out.sum()}},
    )
    draft = translate(config).draft
    assert draft.mix is not None
    assert draft.mix.score is not None
    assert draft.mix.score([np.ones(3, np.float32), np.zeros(1, np.float32)]) == 3.0
