"""Every field of the configuration is validated; every member is supported or has a reason."""

import enum
import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from quantry import torch as facade
from quantry.errors import RecipeError, SelectionError
from quantry.recipe import (
    AdaRound,
    CrossLayer,
    DataType,
    DerivedBias,
    EqualizeOptions,
    FloatBias,
    Gptq,
    MinMax,
    MinMSE,
    NpuConversions,
    NpuLimits,
    OwnBias,
    Percentile,
    PerChannel,
    PowerOfTwoScale,
    SmoothQuant,
    TensorSpec,
)
from quantry.torch import (
    DeviceType,
    Dtype,
    QConfig,
    QLayerConfig,
    QSchemeType,
    QTensorConfig,
    QuantFlow,
    QuantizationMode,
    RoundType,
    ScaleType,
    ZeroPointType,
)
from quantry.torch.enums import DATA_TYPES, REFUSED
from quantry.torch.translate import NodeNames, recipe_of


def spec(dtype: Dtype = Dtype.int8, **changes: object) -> QTensorConfig:
    values: dict[str, object] = {
        "observer_cls": facade.PerTensorPowOf2MinMSEObserver,
        "is_dynamic": False,
        "qscheme": QSchemeType.per_tensor,
        "symmetric": True,
        "round_method": RoundType.half_even,
        "scale_type": ScaleType.float,
    }
    return QTensorConfig(dtype, **{**values, **changes})


def layer(**changes: object) -> QLayerConfig:
    values = {name: spec() for name in ("input_tensors", "output_tensors", "weight", "bias")}
    return QLayerConfig(**{**values, **changes})


def test_document_configuration_means_the_npu_recipe() -> None:
    recipe = recipe_of(QConfig(layer()))
    wanted = TensorSpec(DataType.INT8, scale=PowerOfTwoScale())
    assert recipe.plan.activation == recipe.plan.weight == wanted
    assert recipe.plan.bias == OwnBias(wanted)
    assert recipe.scale.activation == recipe.scale.weight == MinMSE()
    assert recipe.scale.npu == NpuLimits()
    assert recipe.prepare.npu is None


def test_older_names_are_the_newer_ones() -> None:
    assert facade.QuantizationSpec is QTensorConfig
    assert facade.QuantizationConfig is QLayerConfig
    assert facade.Config is QConfig


@pytest.mark.parametrize("member", list(REFUSED), ids=str)
def test_unsupported_members_give_their_reason(member: enum.Enum) -> None:
    uses: dict[type, Callable[[], object]] = {
        Dtype: lambda: spec(member),
        QSchemeType: lambda: spec(qscheme=member),
        ScaleType: lambda: spec(scale_type=member),
        ZeroPointType: lambda: spec(zero_point_type=member),
        RoundType: lambda: spec(round_method=member),
        QuantizationMode: lambda: QConfig(layer(), quant_mode=member),
        QuantFlow: lambda: QConfig(layer(), quant_flow=member),
    }
    with pytest.raises(RecipeError, match=re.escape(REFUSED[member])):
        uses[type(member)]()


@pytest.mark.parametrize("dtype", list(DATA_TYPES), ids=lambda dtype: dtype.name)
def test_accepted_types_become_those_of_recipes(dtype: Dtype) -> None:
    integer = DATA_TYPES[dtype].is_integer
    config = spec(dtype) if integer else QTensorConfig(dtype)
    assert config.tensor_spec().dtype is DATA_TYPES[dtype]


def test_every_member_is_supported_or_has_a_reason() -> None:
    assert set(Dtype) == set(DATA_TYPES) | {member for member in REFUSED if isinstance(member, Dtype)}


@pytest.mark.parametrize("name", ["is_dynamic", "observer_cls", "qscheme", "symmetric", "round_method", "scale_type"])
def test_integer_types_need_all_their_fields(name: str) -> None:
    with pytest.raises(RecipeError, match=name):
        spec(**{name: None})


@pytest.mark.parametrize("given", [{}, {"qscheme": QSchemeType.per_channel, "ch_axis": 0}], ids=["bare", "per_channel"])
def test_missing_fields_are_named_once_with_values_that_work(given: dict[str, object]) -> None:
    with pytest.raises(RecipeError) as caught:
        QTensorConfig(dtype=Dtype.int8, **given)
    text = str(caught.value)
    missing = {"is_dynamic", "observer_cls", "qscheme", "symmetric", "round_method", "scale_type"} - set(given)
    assert all(text.count(name) == 1 for name in missing)
    examples = dict(part.split("=") for part in text.split("for example ")[1].split(", "))
    values = {name: eval(value, vars(facade)) for name, value in examples.items()}
    assert set(values) == missing
    assert QTensorConfig(dtype=Dtype.int8, **given, **values).is_integer


def test_missing_type_is_named_with_an_example_that_works() -> None:
    with pytest.raises(RecipeError, match=r"QTensorConfig\.dtype must be set") as caught:
        QTensorConfig()
    assert eval(str(caught.value).split("for example ")[1], vars(facade)).is_integer


def test_scheme_in_the_message_fits_the_observer_given() -> None:
    with pytest.raises(RecipeError, match=re.escape("qscheme=QSchemeType.per_channel")):
        QTensorConfig(Dtype.int8, observer_cls=facade.PerChannelMinMaxObserver)


def test_configuration_of_layers_must_be_given() -> None:
    with pytest.raises(
        RecipeError, match=r"QConfig\.global_quant_config must be set, .* for example QConfig\(QLayerConfig"
    ):
        QConfig(exclude=["head"])


WRONG = {
    "is_dynamic": True,
    "group_size": 32,
    "block_size": 16,
    "scale_format": "float16",
    "scale_calculation_mode": "even",
    "mx_element_dtype": Dtype.fp4,
    "is_scale_quant": True,
    "enable_buffer_reuse": True,
    "max_input_numel": 10,
    "qat_spec": "tqt",
    "observer_cls": int,
    "symmetric": "yes",
    "ch_axis": 1,
    "qscheme": "per_tensor",
}


@pytest.mark.parametrize("name", WRONG)
def test_unsupported_fields_raise(name: str) -> None:
    with pytest.raises(RecipeError, match=name):
        spec(**{name: WRONG[name]})


def test_observer_must_fit_the_scheme() -> None:
    with pytest.raises(RecipeError, match="per_channel"):
        spec(observer_cls=facade.PerChannelMinMaxObserver)
    with pytest.raises(RecipeError, match="ch_axis"):
        spec(observer_cls=facade.PerChannelMinMaxObserver, qscheme=QSchemeType.per_channel)
    with pytest.raises(RecipeError, match="PerBlockMXObserver"):
        spec(observer_cls=facade.PerBlockMXObserver)


METHODS = {
    facade.PerTensorMinMaxObserver: (MinMax(), False),
    facade.PerTensorHistogramObserver: (MinMSE(), False),
    facade.PerTensorHistogramObserverPro: (MinMSE(), False),
    facade.PerTensorMSEObserver: (MinMSE(), False),
    facade.PerTensorPercentileObserver: (Percentile(99.99999999), False),
    facade.PerTensorPowOf2MinMaxObserver: (MinMax(), True),
    facade.PerTensorPowOf2MinMSEObserver: (MinMSE(), True),
    facade.LSQObserver: (MinMSE(), False),
    facade.TQTObserver: (MinMSE(), True),
}


@pytest.mark.parametrize("observer", METHODS, ids=lambda observer: observer.__name__)
def test_observers_choose_method_and_scale(observer: type) -> None:
    config = spec(observer_cls=observer)
    method, power_of_two = METHODS[observer]
    assert config.method == method
    assert isinstance(config.tensor_spec().scale, PowerOfTwoScale) == power_of_two


def test_power_of_two_scale_type_is_honoured() -> None:
    config = spec(observer_cls=facade.PerTensorMinMaxObserver, scale_type=ScaleType.pof2)
    assert config.tensor_spec().scale == PowerOfTwoScale()


def test_per_channel_weights_keep_their_axis() -> None:
    config = spec(observer_cls=facade.PerChannelPowOf2MinMaxObserver, qscheme=QSchemeType.per_channel, ch_axis=0)
    assert config.tensor_spec().granularity == PerChannel(0)


def test_bias_is_float_derived_or_has_its_own_scale() -> None:
    assert recipe_of(QConfig(layer(bias=None))).plan.bias == FloatBias()
    derived = recipe_of(QConfig(layer(bias=spec(Dtype.int32))))
    assert derived.plan.bias == DerivedBias()
    assert derived.scale.npu is None


def test_layer_needs_equal_inputs_and_outputs_and_both_kinds_of_tensor() -> None:
    with pytest.raises(RecipeError, match="output_tensors must equal"):
        layer(output_tensors=spec(Dtype.int16, observer_cls=facade.PerTensorMinMaxObserver))
    with pytest.raises(RecipeError, match="lists"):
        layer(weight=[spec()])
    with pytest.raises(RecipeError, match="no weight"):
        recipe_of(QConfig(QLayerConfig(input_tensors=spec())))


def test_npu_target_converts_operators() -> None:
    assert recipe_of(QConfig(layer(target_device=DeviceType.IPU))).prepare.npu == NpuConversions()


def test_algorithms_are_given_by_name_or_with_options() -> None:
    recipe = recipe_of(QConfig(layer(), algo_config=["adaround", Gptq(damping=0.1)]))
    assert recipe.tune.steps == (AdaRound(), Gptq(damping=0.1))
    with pytest.raises(RecipeError, match="'adaround'"):
        QConfig(layer(), algo_config=["adaroun"])


def test_one_entry_or_none_needs_no_list() -> None:
    assert recipe_of(QConfig(layer(), exclude=None, algo_config="gptq")).tune.steps == (Gptq(),)
    assert QConfig(layer(), exclude="head", algo_config=CrossLayer()).algo_config == (CrossLayer(),)
    with pytest.raises(RecipeError, match=r"got the class CrossLayer; write it with \(\)"):
        QConfig(layer(), algo_config=[CrossLayer])
    with pytest.raises(RecipeError, match="layer_quant_config must be a mapping"):
        QConfig(layer(), layer_quant_config=[("head", None)])


def test_equalizations_come_with_the_algorithms() -> None:
    recipe = recipe_of(QConfig(layer(), algo_config=["gptq", "cle", SmoothQuant(sweeps=2)]))
    assert recipe.tune.steps == (Gptq(),)
    assert recipe.equalize == EqualizeOptions(CrossLayer(), SmoothQuant(sweeps=2))
    with pytest.raises(RecipeError, match="each equalization at most once"):
        QConfig(layer(), algo_config=["smoothquant", SmoothQuant(sweeps=2)])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kv_cache_quant_config", {"k": 1}),
        ("min_kv_scale", 0.5),
        ("softmax_quant_spec", spec()),
        ("log_severity_level", 0),
        ("keep_prequantized_layers", False),
        ("layer_quant_config", {"a": 3}),
    ],
)
def test_fields_of_other_flows_raise(name: str, value: object) -> None:
    with pytest.raises(RecipeError):
        QConfig(layer(), **{name: value})


PLACES = (
    NodeNames("stem/conv", ("stem", "stem.conv", "conv2d", "stem/conv"), ("Net", "Conv2d")),
    NodeNames("head/gemm", ("head", "linear", "head/gemm"), ("Net", "Linear")),
)


def test_names_select_modules_nodes_and_tensors() -> None:
    assert recipe_of(QConfig(layer(), exclude=["head"]), PLACES).plan.selection.exclude == ("head/gemm",)
    assert recipe_of(QConfig(layer(), exclude=["st*"]), PLACES).plan.selection.exclude == ("stem/conv",)
    assert recipe_of(QConfig(layer(), exclude=["^he.d/"]), PLACES).plan.selection.exclude == ("head/gemm",)
    with pytest.raises(SelectionError, match=r"did you mean '\^he\.d/.\*'\? Regular expressions start with"):
        recipe_of(QConfig(layer(), exclude=["he.d/.*"]), PLACES)
    silent = QConfig(layer(), layer_quant_config={"linear": None})
    assert recipe_of(silent, PLACES).plan.selection.exclude == ("head/gemm",)
    with pytest.raises(SelectionError, match="'head'"):
        recipe_of(QConfig(layer(), exclude=["heat"]), PLACES)


def test_single_layers_have_their_own_types() -> None:
    wide = spec(Dtype.int16, observer_cls=facade.PerTensorMinMaxObserver)
    by_name = QConfig(layer(), layer_quant_config={"head": QLayerConfig(input_tensors=wide)})
    (types,) = recipe_of(by_name, PLACES).plan.layers
    assert types.match == ("head/gemm",)
    assert types.activation == TensorSpec(DataType.INT16)
    by_class = QConfig(layer(), layer_type_quant_config={"Conv2d": QLayerConfig(weight=wide)})
    assert recipe_of(by_class, PLACES).plan.layers[0].match == ("stem/conv",)
    with pytest.raises(SelectionError, match="'Conv2d'"):
        recipe_of(QConfig(layer(), layer_type_quant_config={"Conv2": None}), PLACES)


def test_older_paths_lead_to_the_same_names() -> None:
    from quantry.torch.quantization.config.config import Config
    from quantry.torch.quantization.config.type import Dtype as OlderDtype
    from quantry.torch.quantization.observer.observer import PerTensorPowOf2MinMSEObserver

    assert Config is QConfig
    assert OlderDtype is Dtype
    assert PerTensorPowOf2MinMSEObserver is facade.PerTensorPowOf2MinMSEObserver


def test_conflict_of_types_names_the_fields_of_the_layer() -> None:
    wide = QConfig(layer(input_tensors=spec(Dtype.int16), output_tensors=spec(Dtype.int16), weight=spec(Dtype.int16)))
    wide = QConfig(replace(wide.global_quant_config, bias=spec(Dtype.int32)))
    with pytest.raises(RecipeError, match=r"^QLayerConfig\.bias must be .* QLayerConfig\.weight\.dtype = Dtype\.int16"):
        recipe_of(wide)


def test_configuration_is_written_as_plain_data_and_read_again() -> None:
    config = QConfig(
        layer(target_device=DeviceType.IPU),
        exclude=["head"],
        algo_config=[SmoothQuant(0.7), AdaRound(), Gptq()],
        layer_quant_config={"body.*": layer(), "tail": None},
        layer_type_quant_config={"Linear": layer()},
    )
    written = json.loads(json.dumps(config.to_dict()))
    assert QConfig.from_dict(written) == config
    # The names and values of AMD Quark 0.13.
    assert written["quant_method"] == "quark"
    assert written["quant_mode"] == "fx_graph_mode"
    weight = written["global_quant_config"]["weight"]
    assert weight["observer_cls"] == "PerTensorPowOf2MinMSEObserver"
    assert (weight["dtype"], weight["qscheme"], weight["zero_point_type"]) == ("int8", "per_tensor", "int32")
    assert QTensorConfig.from_dict(weight) == spec()
    for broken in ({"dtyp": "int8"}, {"dtype": "int9"}, {**weight, "observer_cls": "MinMaxObserver"}):
        with pytest.raises(RecipeError, match="must be"):
            QTensorConfig.from_dict(broken)
    for broken in (None, {**written, "global_quant_config": "int8"}, {**written, "layer_quant_config": ["a"]}):
        with pytest.raises(RecipeError, match=r"must be .*dictionary"):
            QConfig.from_dict(broken)
    for broken in ({**weight, "dtype": ["int8"]}, {**weight, "observer_cls": ["a"]}):
        with pytest.raises(RecipeError, match=r"must be .*got \["):
            QTensorConfig.from_dict(broken)
