"""QConfig and its parts."""

import json
from dataclasses import fields
from typing import Any

import onnx
import pytest
from facade_models import Reader, cnn, operators, run, samples

from quantry.errors import RecipeError
from quantry.onnx import (
    AdaQuantConfig,
    AdaRoundConfig,
    BFP16Spec,
    BiasCorrectionConfig,
    CalibMethod,
    CLEConfig,
    Config,
    ExtendedCalibrationMethod,
    GPTQConfig,
    Int8Spec,
    Int16Spec,
    Int32Spec,
    ModelQuantizer,
    QConfig,
    QLayerConfig,
    QTensorConfig,
    QuantGranularity,
    QuantizationConfig,
    ScaleType,
    SmoothQuantConfig,
    UInt8Spec,
    XInt8Spec,
)
from quantry.onnx.options import NESTED
from quantry.recipe import (
    AdaQuant,
    AdaRound,
    BiasCorrection,
    CrossLayer,
    DataType,
    DerivedBias,
    FloatScale,
    Gptq,
    MinMSE,
    NpuLimits,
    OwnBias,
    Percentile,
    PerChannel,
    Qdq,
    Recipe,
    SmoothQuant,
    Subgraph,
    TensorSpec,
    VitisDialect,
    VitisQdq,
)

INT8 = QLayerConfig(input_tensors=UInt8Spec(), weight=Int8Spec())


def recipe(layer: QLayerConfig = INT8, **settings: Any) -> Recipe:
    return QConfig(layer, **settings).to_job().recipe


def test_specifications_reach_the_plan() -> None:
    made = recipe(QLayerConfig(UInt8Spec(), weight=Int8Spec(quant_granularity=QuantGranularity.Channel)))
    assert made.plan.activation.dtype == DataType.UINT8
    assert not made.plan.activation.symmetric
    assert made.plan.weight.granularity == PerChannel()
    assert made.scale.activation == Percentile()
    assert made.equalize.cross_layer is None
    assert made.emit.format == Qdq()


def test_min_mse_keeps_the_requested_float_scale() -> None:
    made = recipe(QLayerConfig(Int8Spec(calibration_method=CalibMethod.MinMSE)))
    assert made.scale.activation == MinMSE()
    assert made.plan.activation.scale == FloatScale()


def test_power_of_two_scales_enable_the_npu_rules() -> None:
    made = recipe(QLayerConfig(XInt8Spec(), weight=XInt8Spec()))
    assert made.scale.npu == NpuLimits()
    assert isinstance(made.plan.bias, OwnBias)


def test_bias_has_its_own_specification() -> None:
    assert recipe(QLayerConfig(UInt8Spec(), weight=Int8Spec(), bias=Int32Spec())).plan.bias == DerivedBias()
    bias = recipe(QLayerConfig(UInt8Spec(), weight=Int8Spec(), bias=Int16Spec())).plan.bias
    assert isinstance(bias, OwnBias)
    assert bias.spec.dtype == DataType.INT16


def test_wide_and_block_types_take_the_extended_format() -> None:
    assert recipe(QLayerConfig(Int16Spec(), weight=Int8Spec())).emit.format == VitisQdq(VitisDialect.CONTRIB)
    assert recipe(QLayerConfig(BFP16Spec(), weight=BFP16Spec())).emit.format == VitisQdq(VitisDialect.QUARK)


def test_exclusions_reach_the_selection() -> None:
    made = recipe(
        exclude=["a", "^b.*", ("c", "d"), (["e"], ["f"])], layer_type_config={None: ["Softmax"]}
    ).plan.selection
    assert made.exclude == ("a", "^b.*")
    assert made.exclude_subgraphs == (Subgraph(("c",), ("d",)), Subgraph(("e",), ("f",)))
    assert made.exclude_operators == ("Softmax",)


def test_equalization_comes_from_its_configuration() -> None:
    made = recipe(algo_config=[CLEConfig(cle_steps=3)])
    assert made.equalize.cross_layer == CrossLayer(steps=3, convergence=1.9e-7)


def test_options_are_keywords_or_a_dictionary() -> None:
    assert recipe(CalibDataSize=3) == recipe(extra_options={"CalibDataSize": 3})
    assert recipe(OptimizeModel=False).prepare.fold_batch_norm is False
    with pytest.raises(RecipeError, match="did you mean 'CalibDataSize'"):
        recipe(CalibDataSiz=3)


@pytest.mark.parametrize(
    ("layer", "field"),
    [
        (QLayerConfig(), "input_tensors"),
        (QLayerConfig(UInt8Spec(), output_tensors=Int8Spec()), "output_tensors"),
        (QLayerConfig(QTensorConfig(scale_type=ScaleType.Int16)), "scale_type"),
        (
            QLayerConfig(UInt8Spec(), weight=Int8Spec(quant_granularity=QuantGranularity.Group)),
            "weight.quant_granularity",
        ),
    ],
)
def test_unsupported_specification_names_the_field(layer: QLayerConfig, field: str) -> None:
    with pytest.raises(RecipeError, match=field):
        recipe(layer)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"specific_layer_config": {QLayerConfig(): ["a"]}}, "specific_layer_config must have a type"),
        ({"specific_layer_config": {"a": INT8}}, "specific_layer_config must have QLayerConfig as keys"),
        ({"specific_layer_config": {INT8: "a"}}, "specific_layer_config must have lists of names"),
        (
            {"specific_layer_config": {INT8: [("a", "b")]}},
            "specific_layer_config can have pairs of nodes only with a model",
        ),
        ({"algo_config": ["adaround"]}, "algo_config"),
        ({"algo_config": [AdaRoundConfig(), AdaQuantConfig()]}, "one algorithm for include_fast_ft, got AdaRoundConf"),
        ({"exclude": [("a", "b", "c")]}, "exclude"),
    ],
)
def test_unsupported_setting_names_the_field(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(RecipeError, match=field):
        recipe(**settings)


def test_layers_and_operator_types_have_their_own_types() -> None:
    wide, narrow = QLayerConfig(activation=Int16Spec(), output_tensors=UInt8Spec()), QLayerConfig(weight=Int16Spec())
    made = recipe(specific_layer_config={wide: ["a", "^b"], None: ["c"]}, layer_type_config={narrow: ["Conv"]})
    operators, layers, floats = made.plan.layers
    assert (operators.operators, operators.weight) == (("Conv",), TensorSpec(DataType.INT16))
    assert (layers.match, layers.activation) == (("a", "^b"), TensorSpec(DataType.INT16))
    assert layers.output == TensorSpec(DataType.UINT8, symmetric=False)
    assert (floats.match, floats.keep_float) == (("c",), True)
    assert made.emit.format == VitisQdq(VitisDialect.CONTRIB)


def test_types_of_layers_reach_the_model() -> None:
    wide = QLayerConfig(activation=Int16Spec(), weight=Int16Spec())
    config = QConfig(INT8, specific_layer_config={wide: ["Gemm_12"]})
    model = ModelQuantizer(config).quantize_model(cnn(), None, Reader())
    assert model is not None
    kinds = {entry.name: entry.data_type for entry in model.graph.initializer}
    assert kinds["w3_quantized"] == onnx.TensorProto.INT16
    assert kinds["w2_quantized"] == onnx.TensorProto.INT8
    assert run(model, samples(1)[0])[0].shape == (2, 5)


def test_layers_of_an_npu_model_need_power_of_two_scales() -> None:
    npu = QLayerConfig(XInt8Spec(), weight=XInt8Spec())
    wide = QLayerConfig(weight=Int16Spec(scale_type=ScaleType.PowerOf2))
    model = ModelQuantizer(QConfig(npu, specific_layer_config={wide: ["Conv_0"]})).quantize_model(cnn(), None, Reader())
    assert model is not None
    assert run(model, samples(1)[0])[0].shape == (2, 5)
    floats = QLayerConfig(weight=Int16Spec())
    with pytest.raises(
        RecipeError, match=r"QLayerConfig of Conv_0: weight.scale_type must be ScaleType.PowerOf2 .* EnableNPUCnn=False"
    ):
        recipe(npu, specific_layer_config={floats: ["Conv_0"]})
    assert recipe(npu, specific_layer_config={floats: ["Conv_0"]}, EnableNPUCnn=False).scale.npu is None


def test_pair_of_nodes_selects_the_nodes_between() -> None:
    config = QConfig(INT8, specific_layer_config={None: [("Conv_5", "Mul_8")]})
    model = ModelQuantizer(config).quantize_model(cnn(), None, Reader())
    assert model is not None
    names = {entry.name for entry in model.graph.initializer}
    assert "w2_quantized" not in names
    assert {"w1_quantized", "w3_quantized"} & names
    with pytest.raises(RecipeError, match="no path from 'Gemm_12' to 'Conv_5'"):
        QConfig(INT8, specific_layer_config={None: [("Gemm_12", "Conv_5")]}).to_job(model=cnn())


def test_specifications_are_edited_by_their_setters() -> None:
    spec = Int8Spec()
    spec.set_symmetric(False)
    spec.set_calibration_method(CalibMethod.MinMax)
    spec.set_scale_type(ScaleType.PowerOf2)
    spec.set_quant_granularity(QuantGranularity.Channel)
    spec.set_data_type("uint8")
    changed = UInt8Spec(
        scale_type=ScaleType.PowerOf2,
        calibration_method=CalibMethod.MinMax,
        quant_granularity=QuantGranularity.Channel,
    )
    assert spec.to_spec("here") == changed.to_spec("here")
    assert Int8Spec() != spec


ALGORITHMS: dict[str, tuple[Any, str, Any]] = {
    "AdaRoundConfig": (
        AdaRoundConfig(num_iterations=10, lr_adjust=(1.0, 0.2), output_qdq=True),
        "tune.steps",
        (AdaRound(iterations=10, learning_rate_adjust=(1.0, 0.2), output_pair=True),),
    ),
    "AdaQuantConfig": (AdaQuantConfig(), "tune.steps", (AdaQuant(iterations=3000, update_bias=False),)),
    "BiasCorrectionConfig": (BiasCorrectionConfig(), "tune.steps", (BiasCorrection(),)),
    "SmoothQuantConfig": (SmoothQuantConfig(alpha=0.7), "equalize.smooth", SmoothQuant(alpha=0.7)),
    "GPTQConfig": (GPTQConfig(act_order=True), "tune.steps", (Gptq(),)),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithm_reaches_the_recipe(name: str) -> None:
    algorithm, path, expected = ALGORITHMS[name]
    found = recipe(algo_config=[algorithm])
    for part in path.split("."):
        found = getattr(found, part)
    assert found == expected


def test_arguments_of_algorithms_are_the_keys_of_the_table() -> None:
    for kind in (AdaRoundConfig, GPTQConfig):
        names = {row.key for row in NESTED[kind.holder]} - {"OptimAlgorithm", "NumIterLR"}
        arguments = {part.name for part in fields(kind)}
        assert set(kind.from_settings(dict.fromkeys(names, 1)).settings()) - {"OptimAlgorithm"} == names
        assert len(arguments) == len(names)


def test_configuration_is_plain_data_and_back() -> None:
    wide = QLayerConfig(activation=Int16Spec(), weight=XInt8Spec())
    config = QConfig(
        INT8,
        specific_layer_config={wide: ["a", ("b", "c")], None: ["d"]},
        layer_type_config={None: ["Softmax"]},
        exclude=["e", ("f", "g")],
        algo_config=[CLEConfig(cle_steps=2), AdaRoundConfig(lr_adjust=(1.0, 0.1))],
        WeightCalibrateMethod=ExtendedCalibrationMethod.MinMSE,
    )
    text = json.dumps(config.to_dict())
    again = QConfig.from_dict(json.loads(text))
    assert again.to_dict() == config.to_dict()
    assert list(again.specific_layer_config) == [wide, None]
    assert again.extra_options == config.extra_options
    with pytest.raises(RecipeError, match="did you mean 'exclude'"):
        QConfig.from_dict({"exclud": []})
    with pytest.raises(RecipeError, match="did you mean 'Int8Spec'"):
        QConfig.from_dict({"global_config": {"$": "Int8Specs"}})
    with pytest.raises(RecipeError, match=r"extra_options\['EvalDataReader'\] must hold plain data"):
        QConfig(INT8, EvalDataReader=Reader()).to_dict()


def test_quantizer_accepts_additional_algorithms() -> None:
    plain = ModelQuantizer(QConfig(INT8)).quantize_model(cnn(), None, Reader())
    equalized = ModelQuantizer(QConfig(INT8)).quantize_model(cnn(), None, Reader(), algorithms=[CLEConfig()])
    assert plain is not None
    assert ("", "QuantizeLinear") in operators(plain)
    assert plain != equalized
    with pytest.raises(RecipeError, match="QConfig"):
        ModelQuantizer(Config(QuantizationConfig())).quantize_model(cnn(), None, Reader(), algorithms=[CLEConfig()])
