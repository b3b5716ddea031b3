"""Types of single layers and tensors: which tensor gets which, where conversions are, and that onnxruntime runs it."""

from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

import quantry
from quantry.errors import RecipeError, SelectionError
from quantry.graph.load import model_source
from quantry.graph.quant_plan import DerivedBiasPlan, OwnBiasPlan, OwnRange, QuantPlan, SharedRange
from quantry.notes import Note
from quantry.plan import plan
from quantry.prepare import prepare
from quantry.recipe import (
    DataType,
    DerivedBias,
    EmitOptions,
    FixNeuron,
    Format,
    LayerTypes,
    OwnBias,
    PerBlock,
    PerChannel,
    PlanOptions,
    PowerOfTwoScale,
    PrepareOptions,
    QOperator,
    Recipe,
    TensorSpec,
    TensorTypes,
    VitisDialect,
    VitisQdq,
    find_preset,
    from_yaml,
    to_yaml,
)

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
fork (float[N,4,8,8] x) => (float[N,4,8,8] left, float[N,4,8,8] right) {
    [stem] s = Conv(x, stem_w, stem_b)
    [relu] t = Relu(s)
    [a] u = Conv(t, a_w, a_b)
    [flip] f = Transpose<perm = [0,1,3,2]>(t)
    [b] v = Conv(f, b_w, b_b)
    [sum] left = Add(u, v)
    [mul] right = Mul(t, factor)
}
"""
INT8 = TensorSpec(DataType.INT8)
BLOCKS = TensorSpec(DataType.BFP16, granularity=PerBlock())
INT16 = TensorSpec(DataType.INT16)
NARROW = {
    "int4": TensorSpec(DataType.INT4),
    "uint4": TensorSpec(DataType.UINT4, symmetric=False),
    "uint8": TensorSpec(DataType.UINT8, symmetric=False),
    "int16": INT16,
    "uint16": TensorSpec(DataType.UINT16, symmetric=False),
    "bfloat16": TensorSpec(DataType.BFLOAT16),
    "float16": TensorSpec(DataType.FLOAT16),
}


def fork() -> onnx.ModelProto:
    model = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(0)
    for name in ("stem", "a", "b"):
        weight, bias = rng.normal(size=(4, 4, 1, 1)) / 2, rng.normal(size=4) / 10
        model.graph.initializer.append(numpy_helper.from_array(weight.astype(np.float32), f"{name}_w"))
        model.graph.initializer.append(numpy_helper.from_array(bias.astype(np.float32), f"{name}_b"))
    model.graph.initializer.append(numpy_helper.from_array(np.float32([1.5]), "factor"))
    return model


def planned(*layers: LayerTypes, tensors: tuple[TensorTypes, ...] = ()) -> QuantPlan:
    options = PlanOptions(activation=INT8, layers=layers, tensors=tensors)
    return plan(prepare(model_source(fork()), PrepareOptions()), options)


def data(seed: int = 1) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.normal(size=(4, 4, 8, 8)).astype(np.float32)} for _ in range(3)]


def outputs(model: bytes) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, data(2)[0])


def noise(recipe: Recipe) -> float:
    """Return the error of the first output relative to its size."""
    quantized = quantry.quantize(fork(), data(), recipe, store=None)
    exact, found = outputs(fork().SerializeToString())[0], outputs(quantized.to_bytes())[0]
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def recipe(*layers: LayerTypes, written: Format | None = None) -> Recipe:
    wanted = Recipe(plan=PlanOptions(activation=INT8, layers=layers))
    return wanted if written is None else replace(wanted, emit=EmitOptions(written))


def test_without_entries_nothing_is_converted() -> None:
    assert not planned().conversions


def test_tensor_with_one_reader_takes_the_type_that_reader_wants() -> None:
    result = planned(LayerTypes(("sum",), activation=INT16))
    assert result.activations["u"] == OwnRange(INT16)
    assert result.activations["v"] == OwnRange(INT16)
    assert not result.conversions


def test_readers_that_want_different_types_get_a_pair_each() -> None:
    result = planned(LayerTypes(("a",), activation=INT16))
    assert result.activations["t"] == OwnRange(INT16)
    (name, conversion), *others = result.conversions.items()
    # `flip` only moves data and reads any type; after it, `b` wants the type of the whole model.
    assert {entry.tensor: entry.readers for entry in result.conversions.values()} == {"t": ("mul",), "f": ("b",)}
    assert conversion.spec == INT8
    assert name not in result.activations
    assert len(others) == 1


def test_reshaped_tensor_shares_the_type_of_its_source() -> None:
    result = planned(LayerTypes(("b",), activation=INT16))
    assert result.activations["f"] == SharedRange("t")
    assert result.activations["t"] == OwnRange(INT16)
    assert {entry.readers for entry in result.conversions.values()} == {("a", "mul")}


def test_readers_without_a_type_of_their_own_use_the_output_type_of_the_layer() -> None:
    result = planned(LayerTypes(("stem",), output=INT16))
    assert result.activations["t"] == OwnRange(INT16), "the tensor before the fused Relu does not exist"
    assert not result.conversions


def test_pinned_tensor_has_its_type_for_all_readers() -> None:
    result = planned(LayerTypes(("a",), activation=NARROW["uint8"]), tensors=(TensorTypes(("t", "b_w", "b_b"), INT16),))
    assert result.activations["t"] == OwnRange(INT16)
    assert result.weights["b_w"].spec == INT16
    assert result.biases["b_b"] == OwnBiasPlan(INT16)
    assert not result.conversions


def test_activation_pinned_to_a_scale_for_each_channel_is_refused() -> None:
    channels = TensorTypes(("t",), TensorSpec(granularity=PerChannel()))
    with pytest.raises(RecipeError, match=r"plan\.tensors of 't'\.granularity must be PerTensor\(\)"):
        planned(tensors=(channels,))


def test_later_entry_wins_field_by_field() -> None:
    result = planned(
        LayerTypes(operators=("Conv",), weight=INT16, activation=INT16), LayerTypes(("^[ab]$",), weight=NARROW["int4"])
    )
    assert result.weights["stem_w"].spec == INT16
    assert result.weights["a_w"].spec == result.weights["b_w"].spec == NARROW["int4"]
    assert result.activations["t"] == OwnRange(INT16)


def test_constant_operand_has_the_type_its_reader_wants() -> None:
    assert planned(LayerTypes(("mul",), activation=INT16)).weights["factor"].spec == INT16


def test_layer_can_stay_float() -> None:
    result = planned(LayerTypes(operators=("Conv",), weight=INT16), LayerTypes(("a",), keep_float=True))
    assert {entry.node: entry.reason for entry in result.declined} == {"a": "kept float by plan.layers[1]"}
    assert "a_w" not in result.weights


def test_bias_follows_what_its_layer_reads() -> None:
    result = planned(LayerTypes(("a",), activation=INT16))
    assert result.biases["a_b"] == DerivedBiasPlan("t", "a_w")
    conversion = next(name for name, entry in result.conversions.items() if entry.readers == ("b",))
    assert result.biases["b_b"] == DerivedBiasPlan(conversion, "b_w")


def test_bias_that_cannot_be_derived_has_a_scale_of_its_own() -> None:
    result = planned(LayerTypes(("a",), activation=INT16, weight=INT16), LayerTypes(("b",), weight=NARROW["bfloat16"]))
    assert result.biases["a_b"] == OwnBiasPlan(TensorSpec(DataType.INT32))
    assert result.biases["b_b"] == OwnBiasPlan(NARROW["bfloat16"])


def test_bias_that_the_user_wants_derived_where_it_cannot_be_is_refused() -> None:
    with pytest.raises(RecipeError, match="int16 and int16 of Conv 'a'"):
        planned(LayerTypes(("a",), activation=INT16, weight=INT16, bias=DerivedBias()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (PlanOptions(layers=(LayerTypes(("stm",), weight=INT16),)), r"plan.layers\[0\].match .*'stm'.*'stem'"),
        (PlanOptions(layers=(LayerTypes(operators=("Cnv",), weight=INT16),)), r"plan.layers\[0\].operators .*'Conv'"),
        (PlanOptions(tensors=(TensorTypes(("a_ww",), INT16),)), r"plan.tensors\[0\].match .*'a_ww'.*'a_w'"),
        (PlanOptions(tensors=(TensorTypes(("^(",), INT16),)), "valid regular expressions"),
    ],
)
def test_entry_that_matches_nothing_is_refused_with_the_nearest_spelling(options: PlanOptions, message: str) -> None:
    with pytest.raises(SelectionError, match=message):
        plan(prepare(model_source(fork()), PrepareOptions()), options)


@pytest.mark.parametrize("field", ["activation", "weight", "output"])
@pytest.mark.parametrize("dtype", NARROW)
def test_every_type_of_one_layer_runs_in_onnxruntime(dtype: str, field: str) -> None:
    wanted = recipe(LayerTypes(("a",), **{field: NARROW[dtype]}))
    error = noise(wanted)
    assert error < {"int4": 0.3, "uint4": 0.3}.get(dtype, 0.03)


def test_finer_types_of_all_layers_lose_less_than_coarse_ones() -> None:
    wide = LayerTypes(operators=("Conv", "Add", "Mul"), activation=INT16, weight=INT16, output=INT16)
    assert noise(recipe(wide)) < noise(recipe()) / 50


@pytest.mark.parametrize(
    "written", [VitisQdq(VitisDialect.VAI), VitisQdq(VitisDialect.QUARK), VitisQdq(VitisDialect.CONTRIB), FixNeuron()]
)
def test_vendors_formats_carry_conversions(written: Format) -> None:
    narrow, wide = (TensorSpec(dtype, scale=PowerOfTwoScale()) for dtype in (DataType.INT8, DataType.INT16))
    layers = (LayerTypes(("a",), activation=wide), LayerTypes(("sum",), activation=wide))
    options = PlanOptions(activation=narrow, weight=narrow, bias=OwnBias(narrow))
    standard = Recipe(plan=replace(options, layers=layers))
    assert noise(replace(standard, emit=EmitOptions(written))) == pytest.approx(noise(standard), rel=1e-5)


@pytest.mark.parametrize(
    ("layer", "written", "message"),
    [
        (LayerTypes(("a",), activation=INT16), QOperator(), r"plan.layers\[0\]: plan.activation.dtype .*QOperator"),
        (LayerTypes(("a",), activation=NARROW["bfloat16"]), VitisQdq(), r"plan.layers\[0\]: .*bfloat16"),
        (LayerTypes(("a",), output=TensorSpec(DataType.INT32)), None, r"plan.layers\[0\]\.output: .*got int32"),
        (LayerTypes(("a",), activation=INT16, output=BLOCKS), None, r"plan.layers\[0\]\.output: .*got bfp16"),
    ],
)
def test_format_that_cannot_carry_a_layers_type_is_refused(
    layer: LayerTypes, written: Format | None, message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe(layer, written=written)


def test_npu_takes_words_in_single_layers_only() -> None:
    preset = find_preset("XINT8").recipe
    wide = replace(preset.plan.activation, dtype=DataType.INT16)
    layered = replace(preset, plan=replace(preset.plan, layers=(LayerTypes(("a",), activation=wide, weight=wide),)))
    assert noise(layered) < 0.1
    with pytest.raises(RecipeError, match=r"plan.layers\[0\]: .*PowerOfTwoScale"):
        replace(preset, plan=replace(preset.plan, layers=(LayerTypes(("a",), activation=INT16),)))
    with pytest.raises(RecipeError, match="multiplies bytes"):
        replace(preset, plan=replace(preset.plan, activation=wide))


@pytest.mark.parametrize(
    "fields",
    [{}, {"weight": INT16}, {"match": ("a",)}, {"match": ("a",), "weight": INT16, "keep_float": True}],
    ids=["nothing", "no layer", "no type", "both"],
)
def test_entry_that_says_too_little_or_too_much_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(RecipeError, match="LayerTypes must"):
        LayerTypes(**fields)  # type: ignore[arg-type]


def test_recipe_with_layers_round_trips_through_yaml() -> None:
    wanted = Recipe(
        plan=PlanOptions(
            layers=(
                LayerTypes(("a", "^head"), activation=INT16, bias=OwnBias(INT16)),
                LayerTypes(operators=("Conv",), keep_float=True),
            ),
            tensors=(TensorTypes(("t",), NARROW["float16"]),),
        )
    )
    assert from_yaml(to_yaml(wanted)) == wanted


def test_plan_with_conversions_survives_its_blob() -> None:
    result = replace(planned(LayerTypes(("a",), activation=INT16)), notes=(Note.of("said"),))
    assert result.conversions
    assert QuantPlan.from_blob(result.to_blob()) == result
