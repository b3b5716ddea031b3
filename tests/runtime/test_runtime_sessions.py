"""The sessions against onnxruntime without any optimisation, and what they say to bad input."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import parser

from quantry.errors import DataError, ModelError, RecipeError
from quantry.runtime.sessions import deployment_session, loadable, run_session, simulation_session


def _model(text):
    return parser.parse_model(text)


# Relu and Clip before a quantizer of 4 bits, and a float bias between quantized tensors: what the optimisations of
# onnxruntime 1.31 get wrong, refuse or round.
TRAPS = """
<ir_version: 10, opset_import: ["" : 21]>
traps (float[1,4,6,6] x) => (float[1,3,6,6] y, float[1,4,6,6] z)
<float s = {0.05}, float wide = {0.3}, int8 zero = {0}, int4 narrow = {0}, float low = {-0.4}, float high = {0.7}>
{
    xq = QuantizeLinear(x, s, zero)
    xd = DequantizeLinear(xq, s, zero)
    wd = DequantizeLinear(w, wide, zero)
    c = Conv <kernel_shape = [1, 1]> (xd, wd, bias)
    cq = QuantizeLinear(c, s, zero)
    y = DequantizeLinear(cq, s, zero)
    p = Relu(xd)
    pq = QuantizeLinear(p, wide, narrow)
    pd = DequantizeLinear(pq, wide, narrow)
    k = Clip(xd, low, high)
    kq = QuantizeLinear(k, wide, narrow)
    kd = DequantizeLinear(kq, wide, narrow)
    z = Sub(pd, kd)
}
"""


@pytest.fixture(scope="module")
def traps():
    model = _model(TRAPS)
    generator = np.random.default_rng(0)
    weights = {
        "w": generator.integers(-5, 5, (3, 4, 1, 1), dtype=np.int8),
        "bias": generator.normal(0, 0.3, 3).astype(np.float32),
    }
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in weights.items())
    return model.SerializeToString()


def _unoptimized(model, feeds):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, feeds)


@pytest.mark.parametrize("interleaved", [False, True])
def test_simulation_computes_what_the_graph_says(traps, interleaved):
    feeds = {"x": np.random.default_rng(1).normal(0, 1, (1, 4, 6, 6)).astype(np.float32)}
    got = run_session(simulation_session(traps, interleaved=interleaved), feeds)
    for ours, expected in zip(got.values(), _unoptimized(traps, feeds), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_simulation_keeps_two_pairs_with_different_scales():
    # onnxruntime removes the product with 1 and then merges both pairs, so that the first rounding is lost.
    model = _model(
        """<ir_version: 8, opset_import: ["" : 13]>
        twice (float[1,64] x) => (float[1,64] y)
        <float coarse = {0.5}, float fine = {0.125}, float one = {1}, uint8 zero = {128}>
        {
            a = QuantizeLinear(x, coarse, zero)
            b = DequantizeLinear(a, coarse, zero)
            c = Mul(b, one)
            d = QuantizeLinear(c, fine, zero)
            y = DequantizeLinear(d, fine, zero)
        }"""
    ).SerializeToString()
    feeds = {"x": np.random.default_rng(1).normal(0, 3, (1, 64)).astype(np.float32)}
    got = run_session(simulation_session(model), feeds)
    np.testing.assert_array_equal(got["y"], _unoptimized(model, feeds)[0])


def test_simulation_has_the_settings_that_were_measured(monkeypatch):
    seen = {}

    def fake(source, options, **arguments):
        seen.update(arguments, qdq=options.get_session_config_entry("session.disable_quant_qdq"))

    monkeypatch.setattr(onnxruntime, "InferenceSession", fake)
    simulation_session(b"anything")
    assert seen["qdq"] == "1"
    assert seen["disabled_optimizers"] == [
        *("ReluQuantRewrite", "ClipQuantRewrite", "WeightBiasQuantization"),
        "DoubleQDQPairsRemover",
    ]
    assert seen["providers"] == ["CPUExecutionProvider"]


ADD_ONE = """
<ir_version: 8, opset_import: ["" : 13]>
add (float[n,2] x) => (float[n,2] y, int64[n] best)
<float one = {1}>
{ y = Add(x, one)  best = ArgMax <axis = 1, keepdims = 0> (y) }
"""
FEEDS = {"x": np.array([[1, 2], [4, 3]], np.float32)}


@pytest.mark.parametrize("open_session", [simulation_session, deployment_session])
def test_every_form_of_a_model_is_accepted(tmp_path, open_session):
    proto = _model(ADD_ONE)
    onnx.save(proto, tmp_path / "add.onnx")
    forms = (proto.SerializeToString(), tmp_path / "add.onnx", str(tmp_path / "add.onnx"), ir.from_proto(proto))
    for form in forms:
        outputs = run_session(open_session(form), FEEDS)
        assert list(outputs) == ["y", "best"]
        np.testing.assert_array_equal(outputs["y"], [[2, 3], [5, 4]])
        np.testing.assert_array_equal(outputs["best"], [1, 0])


def test_a_model_too_large_for_memory_is_loaded_from_a_file():
    proto = _model(
        """<ir_version: 8, opset_import: ["" : 13]>
        mul (float[1,2000] x) => (float[1,2000] y) { y = Mul(x, w) }"""
    )
    weights = np.arange(2000, dtype=np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    model = ir.from_proto(proto)
    with loadable(model, inline_limit=1000) as file, loadable(model) as inline:
        assert isinstance(file.source, str)
        assert isinstance(inline.source, bytes)
        assert file.size == pytest.approx(inline.size, abs=300)
        session = deployment_session(file.source)
    # The file is gone here, and the session must not need it.
    y = run_session(session, {"x": np.ones((1, 2000), np.float32)})["y"]
    np.testing.assert_array_equal(y[0], weights)


def test_threads_are_passed_on():
    assert (
        deployment_session(_model(ADD_ONE).SerializeToString(), threads=1).get_session_options().intra_op_num_threads
        == 1
    )


def test_an_unknown_provider_is_an_error_with_the_nearest_spelling():
    with pytest.raises(RecipeError, match=r"got 'CPUExecutionProvidr'; did you mean 'CPUExecutionProvider'\?"):
        deployment_session(b"", providers=("CPUExecutionProvidr",))


@pytest.mark.parametrize("source", [b"no protobuf at all", "missing.onnx"])
def test_a_model_that_does_not_load_is_a_model_error(source):
    with pytest.raises(ModelError, match="onnxruntime must be able to load"):
        deployment_session(source)


@pytest.mark.parametrize(
    "feeds",
    [{}, {"q": FEEDS["x"]}, {"x": FEEDS["x"].astype(np.float64)}, {"x": np.ones((2, 3), np.float32)}],
    ids=["none", "name", "dtype", "shape"],
)
def test_wrong_inputs_are_a_data_error(feeds, capfd):
    session = deployment_session(_model(ADD_ONE).SerializeToString())
    with pytest.raises(DataError, match="must be able to run on the inputs"):
        run_session(session, feeds)
    assert capfd.readouterr().err == ""


def test_an_output_that_is_no_tensor_is_a_model_error():
    model = _model(
        """<ir_version: 8, opset_import: ["" : 13]>
        split (float[2] x) => (seq(float[1]) y) { y = SplitToSequence(x) }"""
    )
    with pytest.raises(ModelError, match="every output must be a tensor, got a list; output 'y'"):
        run_session(deployment_session(model.SerializeToString()), {"x": np.ones(2, np.float32)})
