import emit_cases as cases
import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from quantry.data.open_data import calibration_data
from quantry.emit import emit
from quantry.graph.load import model_source
from quantry.graph.quantized_model import QuantizedModel
from quantry.observe import observe
from quantry.plan import plan
from quantry.prepare import prepare
from quantry.recipe import (
    PRESETS,
    DataType,
    EmitOptions,
    ObserveOptions,
    PerChannel,
    PlanOptions,
    PrepareOptions,
    Qdq,
    Recipe,
    ScaleOptions,
    Selection,
    TensorSpec,
)
from quantry.scale import scale

TEXT = """
<ir_version: 8, opset_import: ["" : {opset}]>
g (float[N,3,8,8] x) => (float[N,5] y) {{
    [conv] t = Conv<pads = [1,1,1,1]>(x, w, b)
    [relu] r = Relu(t)
    [pool] p = MaxPool<kernel_shape = [2,2], strides = [2,2]>(r)
    [flat] f = Flatten(p)
    [fc] y = Gemm<transB = 1>(f, v, c)
}}
"""
SHAPES = {"w": (4, 3, 3, 3), "b": (4,), "v": (5, 64), "c": (5,)}

QDQ_PRESETS = [name for name in cases.distinct_presets() if PRESETS[name].recipe.emit.format == Qdq()]


def float_model(opset: int = 17) -> onnx.ModelProto:
    rng = np.random.default_rng(7)
    model = onnx.parser.parse_model(TEXT.format(opset=opset))
    for name, shape in SHAPES.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    return model


def samples(count: int = 4) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.normal(size=(2, 3, 8, 8)).astype(np.float32)} for _ in range(count)]


def emitted(recipe: Recipe, opset: int = 17) -> QuantizedModel:
    model = prepare(model_source(float_model(opset)), PrepareOptions())
    planned = plan(model, recipe.plan)
    statistics = observe(model, calibration_data(samples(), model.inputs), ObserveOptions())
    params = scale(model, statistics, planned, recipe.scale)
    return emit(model, planned, params, recipe.emit, {"quantry.version": "test"})


def proto(model: QuantizedModel) -> onnx.ModelProto:
    return onnx.load_from_string(model.to_bytes())


def run(model: bytes, level: ort.GraphOptimizationLevel) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 3
    session = ort.InferenceSession(model, options)
    return np.concatenate([session.run(None, sample)[0] for sample in samples()])


def sqnr(reference: np.ndarray, other: np.ndarray) -> float:
    return float(10 * np.log10((reference**2).sum() / ((reference - other) ** 2).sum()))


# Powers of two, four bits and E5M2 are coarse, and averaged extremes cut off the rare ones.
FOUR_BITS = tuple(name for name in PRESETS if "W4A8" in name)
COARSE = ("XINT8", "VINT8", "INT8_TRANSFORMER_DEFAULT", "INT16_TRANSFORMER_DEFAULT", *FOUR_BITS, "FP8_E5M2")


@pytest.mark.parametrize(
    "preset", [name for name in cases.distinct_presets() if PRESETS[name].recipe.emit.format == Qdq()]
)
@pytest.mark.parametrize("opset", [11, 17, 21])
def test_model_of_every_preset_loads_at_every_level_and_stays_near_the_float_one(preset: str, opset: int) -> None:
    reference = run(float_model(17).SerializeToString(), ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    model = emitted(PRESETS[preset].recipe, opset)
    onnx.checker.check_model(proto(model), full_check=True)
    for level in (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL):
        assert sqnr(reference, run(model.to_bytes(), level)) > (14 if preset in COARSE else 25)


def test_weights_are_stored_as_integers_and_floats_are_gone() -> None:
    model = proto(emitted(PRESETS["S8S8_AAWS"].recipe))
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    assert types["w_quantized"] == types["v_quantized"] == onnx.TensorProto.INT8
    assert types["b_quantized"] == types["c_quantized"] == onnx.TensorProto.INT32
    assert not {"w", "v", "b", "c"} & set(types)


def test_derived_bias_scale_is_the_product_of_input_and_weight_scales() -> None:
    model = proto(emitted(PRESETS["CPU_INT8"].recipe))
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    np.testing.assert_allclose(values["b_scale"], values["x_scale"] * values["w_scale"], rtol=1e-6)
    assert values["b_scale"].shape == (4,)


def test_movement_is_closed_with_the_scale_it_shares() -> None:
    model = proto(emitted(PRESETS["S8S8_AAWS"].recipe))
    scales = {node.name: node.input[1] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    assert scales["r_QuantizeLinear"] == scales["p_QuantizeLinear"] == scales["f_QuantizeLinear"] == "r_scale"


def test_input_and_output_names_types_and_shapes_are_kept() -> None:
    model = proto(emitted(PRESETS["XINT8"].recipe))
    reference = float_model()
    assert [value.name for value in model.graph.input] == ["x"]
    assert [value.name for value in model.graph.output] == ["y"]
    assert model.graph.output[0].type == reference.graph.output[0].type


def test_result_is_the_same_bytes_every_time() -> None:
    assert emitted(PRESETS["XINT8"].recipe).to_bytes() == emitted(PRESETS["XINT8"].recipe).to_bytes()


@pytest.mark.parametrize(
    ("activation", "weight", "opset"),
    [
        (DataType.INT8, DataType.INT8, 17),
        (DataType.INT16, DataType.INT8, 21),
        (DataType.UINT8, DataType.INT4, 21),
    ],
)
def test_opset_is_raised_only_for_types_that_need_it(activation: DataType, weight: DataType, opset: int) -> None:
    recipe = Recipe(plan=PlanOptions(activation=TensorSpec(activation), weight=TensorSpec(weight)))
    model = proto(emitted(recipe))
    assert model.opset_import[0].version == opset
    assert model.ir_version <= 10


def test_four_bit_weights_are_packed_and_run() -> None:
    recipe = Recipe(plan=PlanOptions(weight=TensorSpec(DataType.INT4, granularity=PerChannel())))
    model = emitted(recipe)
    weight = next(tensor for tensor in proto(model).graph.initializer if tensor.name == "w_quantized")
    assert weight.data_type == onnx.TensorProto.INT4
    assert len(weight.raw_data) == 4 * 3 * 3 * 3 // 2
    reference = run(float_model().SerializeToString(), ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    assert sqnr(reference, run(model.to_bytes(), ort.GraphOptimizationLevel.ORT_DISABLE_ALL)) > 10


def test_excluded_movement_after_int8_still_loads_at_opset_21() -> None:
    """Trap: newer runtimes refuse an int8 DequantizeLinear before movement without a quantizer after it."""
    plan_options = PlanOptions(selection=Selection(exclude=("pool", "flat", "fc")))
    model = emitted(Recipe(plan=plan_options, scale=ScaleOptions()), opset=21)
    assert any(node.domain == "com.microsoft" for node in proto(model).graph.node)
    run(model.to_bytes(), ort.GraphOptimizationLevel.ORT_ENABLE_ALL)


def test_excluded_reader_of_a_shared_weight_keeps_the_float_one() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,4] x) => (float[1,4] y) { [one] t = MatMul(x, w) [two] y = MatMul(t, w) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.eye(4, dtype=np.float32) * 0.37, "w"))
    options = PlanOptions(selection=Selection(exclude=("two",)))
    prepared = prepare(model_source(model), PrepareOptions())
    planned = plan(prepared, options)
    data = calibration_data([{"x": np.ones((1, 4), np.float32)}], prepared.inputs)
    params = scale(prepared, observe(prepared, data, ObserveOptions()), planned, ScaleOptions())
    result = proto(emit(prepared, planned, params, EmitOptions(), {}))
    readers = {node.name: node.input[1] for node in result.graph.node if node.op_type == "MatMul"}
    assert readers["two"] == "w"
    assert readers["one"] == "w_DequantizeLinear_Output"


def test_metadata_and_producer_are_written() -> None:
    model = proto(emitted(PRESETS["XINT8"].recipe))
    assert model.producer_name == "quantry"
    assert {entry.key: entry.value for entry in model.metadata_props} == {"quantry.version": "test"}


def test_model_round_trips_through_its_blob() -> None:
    model = emitted(PRESETS["A16W8"].recipe)
    blob = model.to_blob()
    assert blob is not None
    assert QuantizedModel.from_blob(blob).to_bytes() == model.to_bytes()
