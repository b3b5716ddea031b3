"""QConfig and its parts."""

from typing import Any

import pytest
from facade_models import Reader, cnn, operators

from quantry.errors import RecipeError
from quantry.onnx import (
    BFP16Spec,
    CalibMethod,
    CLEConfig,
    Config,
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
    UInt8Spec,
    XInt8Spec,
)
from quantry.recipe import (
    CrossLayer,
    DataType,
    DerivedBias,
    FloatScale,
    MinMSE,
    NpuLimits,
    OwnBias,
    Percentile,
    PerChannel,
    Qdq,
    Recipe,
    Subgraph,
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


def test_least_squares_keep_the_float_scale_that_was_asked_for() -> None:
    made = recipe(QLayerConfig(Int8Spec(calibration_method=CalibMethod.MinMSE)))
    assert made.scale.activation == MinMSE()
    assert made.plan.activation.scale == FloatScale()


def test_powers_of_two_ask_for_the_npu() -> None:
    made = recipe(QLayerConfig(XInt8Spec(), weight=XInt8Spec()))
    assert made.scale.npu == NpuLimits()
    assert isinstance(made.plan.bias, OwnBias)


def test_bias_has_a_specification_of_its_own() -> None:
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
        (QLayerConfig(Int8Spec(calibration_method=CalibMethod.Distribution)), "calibration_method"),
    ],
)
def test_what_no_recipe_can_say_names_the_field(layer: QLayerConfig, field: str) -> None:
    with pytest.raises(RecipeError, match=field):
        recipe(layer)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"specific_layer_config": {INT8: ["a"]}}, "specific_layer_config"),
        ({"layer_type_config": {INT8: ["Conv"]}}, "layer_type_config"),
        ({"algo_config": ["adaround"]}, "algo_config"),
        ({"exclude": [("a", "b", "c")]}, "exclude"),
    ],
)
def test_setting_that_no_recipe_can_say_names_itself(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(RecipeError, match=field):
        recipe(**settings)


def test_quantizer_takes_it_with_algorithms_on_top() -> None:
    plain = ModelQuantizer(QConfig(INT8)).quantize_model(cnn(), None, Reader())
    equalized = ModelQuantizer(QConfig(INT8)).quantize_model(cnn(), None, Reader(), algorithms=[CLEConfig()])
    assert plain is not None
    assert ("", "QuantizeLinear") in operators(plain)
    assert plain != equalized
    with pytest.raises(RecipeError, match="QConfig"):
        ModelQuantizer(Config(QuantizationConfig())).quantize_model(cnn(), None, Reader(), algorithms=[CLEConfig()])
