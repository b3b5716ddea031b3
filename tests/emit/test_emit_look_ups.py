"""Look-ups give the bits of the nodes they replace, and nothing is replaced that others read."""

import ctypes

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import quantry
from quantry import demo
from quantry.demo.evaluation import image_tensor
from quantry.demo.scenes import calibration_scenes
from quantry.emit import look_ups, use_look_ups
from quantry.evaluate.arithmetic import EXACT
from quantry.numerics import kernels
from quantry.runtime.sessions import run_session, simulation_session

pytestmark = pytest.mark.skipif(kernels.library_file() is None, reason="there are no compiled kernels")

HARD = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-30, -1e-30, 3e38, -3e38, 0.5, 1.5, -0.5, -2.5], np.float32)


def _model(nodes: str, constants: dict[str, np.ndarray], outputs: str = "float[n] y") -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[n] x) => ({outputs}) {{ {nodes} }}'
    )
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    return model


def _number(value: float, dtype: type = np.float32) -> np.ndarray:
    return np.array(value, dtype)


def _checked(model: onnx.ModelProto, values: np.ndarray, count: int) -> list[str]:
    """Compare both forms of a model bit by bit, and return the operators of the look-up form."""
    expected = run_session(simulation_session(model.SerializeToString(), threads=1), {"x": values})
    assert use_look_ups(model) == count
    session = simulation_session(model.SerializeToString(), threads=1, look_ups=count > 0)
    got = run_session(session, {"x": values})
    for name, value in expected.items():
        assert np.array_equal(value.view(np.int32), got[name].view(np.int32)), name
    return [node.op_type for node in model.graph.node]


def _values(scale: float, size: int = 3001) -> np.ndarray:
    generator = np.random.default_rng(0)
    ties = (np.arange(-300, 300) + 0.5) * scale
    near = np.where(np.abs(HARD) < 1e30, HARD, 1.0) * scale
    return np.concatenate([HARD, near, ties, generator.normal(0, 60 * scale, size)]).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
@pytest.mark.parametrize("scale", [0.0137, 0.125, 3.0, 1e-20])
@pytest.mark.parametrize("zero_point", [0, 3, 127])
def test_pair_of_any_type_and_scale(dtype: type, scale: float, zero_point: int) -> None:
    pair = "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)"
    model = _model(pair, {"s": _number(scale), "z": _number(zero_point, dtype)})
    assert _checked(model, _values(scale), 1) == ["LookUp"]


SILU = """
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
    a = Sigmoid(d) aq = QuantizeLinear(a, t, z) ad = DequantizeLinear(aq, t, z)
    m = Mul(d, ad) mq = QuantizeLinear(m, u, z) y = DequantizeLinear(mq, u, z)
"""
SCALES = {"s": _number(0.03), "t": _number(0.00391), "u": _number(0.021)}


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_everything_after_a_pair_is_one_table(dtype: type) -> None:
    model = _model(SILU, {**SCALES, "z": _number(5, dtype)})
    assert _checked(model, _values(0.03), 1) == ["LookUp"]


CHAINS = {
    "relu": "r = Relu(d) v = Clip(r, low, high)",
    "gelu": "e = Div(d, root) f = Erf(e) h = Add(f, one) i = Mul(d, h) v = Mul(i, half)",
    "hard swish": "f = HardSigmoid <alpha = 0.16666667, beta = 0.5> (d) v = Mul(d, f)",
    "float silu": "f = Sigmoid(d) v = Mul(d, f)",
    "tanh": "f = Tanh(d) e = Neg(f) v = Sub(one, e)",
    "leaky": "f = LeakyRelu <alpha = 0.1> (d) v = Elu(f)",
}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_chains_of_functions(chain: str, dtype: type) -> None:
    pair = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
    end = "w = QuantizeLinear(v, t, z) y = DequantizeLinear(w, t, z)"
    constants = {"root": np.float32(2) ** np.float32(0.5), "one": 1.0, "half": 0.5, "low": 0.0, "high": 2.0}
    numbers = {name: _number(value) for name, value in constants.items()}
    model = _model(
        f"{pair} {CHAINS[chain]} {end}", {"s": _number(0.031), "t": _number(0.02), "z": _number(100, dtype), **numbers}
    )
    operators = _checked(model, _values(0.031), 1)
    # A result that depends on the position in a tensor would keep its functions.
    assert operators == ["LookUp"] or chain == "leaky"


def test_values_that_are_read_in_between_get_a_look_up_of_their_own() -> None:
    outputs = "float[n] y, float[n] ad, float[n] k"
    model = _model(f"{SILU} k = ReduceSum <keepdims = 1> (d)", {**SCALES, "z": _number(5, np.uint8)}, outputs)
    assert _checked(model, _values(0.03)[13:], 3) == ["LookUp", "LookUp", "LookUp", "ReduceSum"]


def test_a_second_tensor_ends_the_table() -> None:
    nodes = """
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) r = Relu(d)
        n = Abs(x) o = QuantizeLinear(n, t, z) p = DequantizeLinear(o, t, z) y = Add(r, p)
    """
    model = _model(nodes, {**SCALES, "z": _number(5, np.uint8)})
    assert sorted(_checked(model, _values(0.03), 2)) == ["Abs", "Add", "LookUp", "LookUp"]


def test_each_reader_may_have_its_own_dequantizer() -> None:
    nodes = SILU.replace("m = Mul(d, ad)", "e = DequantizeLinear(q, s, z) m = Mul(e, ad)")
    model = _model(nodes, {**SCALES, "z": _number(5, np.int8)})
    assert _checked(model, _values(0.03), 1) == ["LookUp"]


@pytest.mark.parametrize(
    "change",
    [
        ("integers are an output", "", "float[n] y, int8[n] q"),
        ("another scale", "DequantizeLinear(q, t, z)", "float[n] y"),
        ("another zero point", "DequantizeLinear(q, s, o)", "float[n] y"),
    ],
    ids=lambda change: change[0],
)
def test_other_pairs_stay(change: tuple[str, str, str]) -> None:
    _, dequantizer, outputs = change
    nodes = f"q = QuantizeLinear(x, s, z) y = {dequantizer or 'DequantizeLinear(q, s, z)'}"
    model = _model(nodes, {**SCALES, "z": _number(5, np.int8), "o": _number(6, np.int8)}, outputs)
    before = model.SerializeToString()
    assert use_look_ups(model) == 0
    assert model.SerializeToString() == before


def test_channels_with_scales_of_their_own_stay() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 13]> g (float[2, 3] x) => (float[2, 3] y)
        <float[3] s = {0.1, 0.2, 0.3}, int8[3] z = {0, 0, 0}>
        { q = QuantizeLinear <axis = 1> (x, s, z) y = DequantizeLinear <axis = 1> (q, s, z) }"""
    )
    assert use_look_ups(model) == 0


def test_what_the_body_of_a_condition_reads_is_still_there() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 13]> g (float[n] x) => (float[n] y)
        <float s = {0.1}, uint8 z = {9}, float zero = {0}>
        {
            q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) r = Relu(d)
            t = ReduceSum <keepdims = 0> (r) c = Greater(t, zero)
            y = If (c) <then_branch = yes () => (float[n] a) { a = Neg(d) },
                        else_branch = no () => (float[n] b) { b = Identity(r) }>
        }"""
    )
    values = np.random.default_rng(0).normal(size=77).astype(np.float32)
    assert _checked(model, values, 2) == ["LookUp", "LookUp", "ReduceSum", "Greater", "If"]


def test_functions_that_depend_on_the_position_keep_their_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_ups, "_CHAINS", {})
    monkeypatch.setattr(look_ups._Chain, "_is_alike_everywhere", lambda _self, _inputs: False)
    model = _model(SILU, {**SCALES, "z": _number(5, np.uint8)})
    assert _checked(model, _values(0.03), 3) == ["LookUp", "Sigmoid", "LookUp", "Mul", "LookUp"]


def test_without_compiled_kernels_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_ups.kernels, "library_file", lambda: None)
    assert use_look_ups(_model(SILU, {**SCALES, "z": _number(5, np.uint8)})) == 0


@pytest.mark.parametrize("recipe", ["S8S8_AAWS", "U8S8_AAWS", "A16W8", "INT8_CNN_DEFAULT", "VINT8"])
def test_whole_models_have_the_same_outputs(recipe: str) -> None:
    images = [{"images": image_tensor(scene)} for scene in calibration_scenes(3)]
    quantized = quantry.quantize(demo.model_path(), data=images[:2], recipe=recipe).quantized
    expected = run_session(simulation_session(quantized, threads=1), images[2])
    got = run_session(EXACT.open(quantized, threads=2), images[2])
    assert all(np.array_equal(value, got[name]) for name, value in expected.items())


def test_every_level_of_the_processor_gives_the_same_bits() -> None:
    library, values = ctypes.CDLL(str(kernels.library_file())), _values(0.03)
    for table in (np.zeros(0), np.arange(256) ** 0.5):
        parameters = np.concatenate([[0.03, -100, 155], table]).astype(np.float32)
        results = []
        for level in kernels.supported_levels():
            result = np.empty_like(values)
            addresses = [ctypes.c_void_p(array.ctypes.data) for array in (values, result, parameters)]
            sizes = [ctypes.c_size_t(array.size) for array in (values, parameters)]
            getattr(library, f"quantry_look_up_{level}")(addresses[0], addresses[1], sizes[0], addresses[2], sizes[1])
            results.append(result.view(np.int32))
        assert all(np.array_equal(result, results[0]) for result in results)
