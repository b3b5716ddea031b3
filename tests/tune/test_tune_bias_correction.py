"""Bias correction restores the means that rounding shifts."""

import numpy as np
import onnx
import onnxruntime
import pytest

import quantry
from quantry.recipe import (
    BiasCorrection,
    DataType,
    DerivedBias,
    MinMax,
    OwnBias,
    PlanOptions,
    PowerOfTwoScale,
    Recipe,
    ScaleOptions,
    TensorSpec,
    TuneOptions,
)

CONVS = """<ir_version: 8, opset_import: ["": 17]> g (float[1,3,8,8] x) => (float[1,2,6,6] y) {
    a = Conv <pads = [1,1,1,1]> (x, w, b) r = Relu(a) c = Conv <group = 4> (r, v, d) q = Relu(c) y = Conv(q, u, e) }"""
MATRICES = """<ir_version: 8, opset_import: ["": 17]> g (float[n,6] x) => (float[n,5] y) {
    m = MatMul(x, w) a = Add(m, b) r = Relu(a) y = Gemm <transB = 1> (r, v, d) }"""


def model(text: str, shapes: dict[str, tuple[int, ...]]) -> onnx.ModelProto:
    random = np.random.default_rng(5)
    proto = onnx.parser.parse_model(text)
    for name, shape in shapes.items():
        array = random.standard_normal(shape) * 10 ** random.uniform(-1, 0.3, (shape[0], *[1] * (len(shape) - 1)))
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    return proto


MODELS = {
    "convolutions": (
        model(
            CONVS,
            {"w": (4, 3, 3, 3), "b": (4,), "v": (4, 1, 3, 3), "d": (4,), "u": (2, 4, 1, 1), "e": (2,)},
        ),
        (1, 3, 8, 8),
    ),
    "matrices": (model(MATRICES, {"w": (6, 8), "b": (8,), "v": (5, 8), "d": (5,)}), (40, 6)),
}


def mean_error(case: str, options: PlanOptions, step: BiasCorrection | None) -> float:
    proto, shape = MODELS[case]
    random = np.random.default_rng(0)
    data = [{"x": random.uniform(0, 1, shape).astype(np.float32)} for _ in range(16)]
    tune = TuneOptions(() if step is None else (step,))
    recipe = Recipe(plan=options, scale=ScaleOptions(MinMax(), MinMax()), tune=tune)
    result = quantry.quantize(proto, data, recipe, store=None)
    outputs = []
    for content in (proto.SerializeToString(), result.to_bytes()):
        session_options = onnxruntime.SessionOptions()
        session_options.add_session_config_entry("session.disable_quant_qdq", "1")
        session = onnxruntime.InferenceSession(content, session_options, providers=["CPUExecutionProvider"])
        outputs.append(np.concatenate([session.run(None, sample)[0] for sample in data]))
    channels = tuple(axis for axis in range(outputs[0].ndim) if axis != 1)
    return float(np.abs((outputs[1] - outputs[0]).mean(axis=channels)).mean())


@pytest.mark.parametrize("case", MODELS)
@pytest.mark.parametrize("bias", [DerivedBias(), OwnBias(TensorSpec(DataType.INT16))])
def test_means_of_outputs_are_restored(case: str, bias: DerivedBias | OwnBias) -> None:
    options = PlanOptions(TensorSpec(DataType.UINT16, symmetric=False), TensorSpec(DataType.INT4), bias)
    if isinstance(bias, DerivedBias):
        options = PlanOptions(TensorSpec(DataType.UINT8, symmetric=False), TensorSpec(DataType.INT4), bias)
    plain = mean_error(case, options, None)
    assert mean_error(case, options, BiasCorrection()) < plain / 4
    assert mean_error(case, options, BiasCorrection(sequential=False)) < plain


def test_a_bias_with_a_scale_of_its_own_follows_its_new_values() -> None:
    proto, shape = MODELS["convolutions"]
    random = np.random.default_rng(0)
    data = [{"x": random.uniform(0, 9, shape).astype(np.float32)} for _ in range(4)]
    spec = TensorSpec(DataType.INT8, scale=PowerOfTwoScale())
    plan = PlanOptions(spec, TensorSpec(DataType.INT4, scale=PowerOfTwoScale()), OwnBias(spec))
    recipe = Recipe(plan=plan, tune=TuneOptions((BiasCorrection(samples=2),)))
    result = quantry.quantize(proto, data, recipe, store=None)
    tuned = result.stages.tuned[0].value
    for name in ("b", "d", "e"):
        params, values = result.params.tensors[name], tuned.weights[name]
        assert np.abs(values).max() <= (params.highest + 1) * params.scale * 2
        assert np.log2(params.scale) == np.rint(np.log2(params.scale))
    assert any("3 of 3 layers corrected sequentially" in str(note) for note in tuned.notes)


def test_layers_without_a_bias_are_counted() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n,6] x) => (float[n,5] y) { y = MatMul(x, w) }"""
    proto = model(text, {"w": (6, 5)})
    data = [{"x": np.ones((2, 6), np.float32)}]
    recipe = Recipe(tune=TuneOptions((BiasCorrection(),)))
    result = quantry.quantize(proto, data, recipe, store=None)
    assert not result.stages.tuned[0].value.weights
    assert "0 of 1 layers" in str(result.stages.tuned[0].value.notes[0])


def test_shift_of_few_positions_is_not_corrected() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n,4] x) => (float[n,2] y) { y = Gemm(x, w, b) }"""
    proto = onnx.parser.parse_model(text)
    weight = np.array([[1.0, 0.0], [0.0, 1.0], [0.06, 0.0], [0.0, 0.06]], np.float32)
    for name, array in {"w": weight, "b": np.zeros(2, np.float32)}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    # Int4 rounds 0.06 away; column 2 is large in one position of ten, column 3 is 5 in all.
    values = np.random.default_rng(0).uniform(-1, 1, (40, 4)).astype(np.float32)
    values[:, 2], values[:, 3] = np.where(np.arange(40) % 10 == 0, 50.0, 0.0), 5.0
    plan = PlanOptions(TensorSpec(DataType.UINT16, symmetric=False), TensorSpec(DataType.INT4), DerivedBias())
    recipe = Recipe(plan=plan, tune=TuneOptions((BiasCorrection(),)))
    result = quantry.quantize(proto, [{"x": values}], recipe, store=None)
    np.testing.assert_allclose(result.stages.tuned[0].value.weights["b"], [0.0, 0.3], atol=1e-2)


def test_what_a_relu_cuts_off_is_not_corrected() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n,2] x) => (float[n,1] y)
        { a = Gemm(x, w, b) y = Relu(a) }"""
    proto = onnx.parser.parse_model(text)
    # Int4 rounds 0.06 away. Its column is 5 where the sum is negative with and without it, and 0 elsewhere.
    for name, array in {"w": np.array([[1.0], [0.06]], np.float32), "b": np.zeros(1, np.float32)}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    signs = np.where(np.arange(40) % 2, 1.0, -1.0)
    values = np.stack([signs, np.where(signs < 0, 5.0, 0.0)], axis=1).astype(np.float32)
    plan = PlanOptions(TensorSpec(DataType.UINT16, symmetric=False), TensorSpec(DataType.INT4), DerivedBias())
    recipe = Recipe(plan=plan, tune=TuneOptions((BiasCorrection(),)))
    result = quantry.quantize(proto, [{"x": values}], recipe, store=None)
    np.testing.assert_allclose(result.stages.tuned[0].value.weights["b"], [0.0], atol=1e-2)
