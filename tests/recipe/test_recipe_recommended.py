"""The recommended recipes run and lose less accuracy than the plain ones."""

import numpy as np
import onnx
import pytest
from tests.onnx_oracle import from_text, run

import quantry
from quantry.recipe import find_preset, from_plain, to_plain


def network() -> onnx.ModelProto:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,3,8,8] x) => (float[1,4,8,8] y) {
        a = Conv(x, w, b) s = Sigmoid(a) m = Mul(a, s) d = Conv <group = 8, pads = [1,1,1,1]> (m, v, c) r = Relu(d)
        y = Conv(r, u, e) }"""
    proto = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    spread = np.repeat([0.05, 0.5, 4.0, 30.0], 2).astype(np.float32)
    shapes = {"w": (8, 3, 1, 1), "b": (8,), "v": (8, 1, 3, 3), "c": (8,), "u": (4, 8, 1, 1), "e": (4,)}
    for name, shape in shapes.items():
        array = random.standard_normal(shape).astype(np.float32)
        if name in ("w", "v"):
            array *= (spread if name == "w" else 1 / spread).reshape(-1, 1, 1, 1)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


@pytest.mark.parametrize(
    ("name", "plain"),
    [("recommended-npu", "XINT8"), ("recommended-npu-mixed", "XINT8"), ("recommended-cpu", "CPU_INT8")],
)
def test_recommended_is_better_than_plain(name: str, plain: str) -> None:
    random = np.random.default_rng(1)
    data = [{"x": random.uniform(-1, 2, (1, 3, 8, 8)).astype(np.float32)} for _ in range(8)]
    better, worse = (
        quantry.quantize(network(), data, recipe, store=None).evaluation.metrics["sqnr"].value
        for recipe in (name, plain)
    )
    assert better > worse + 1


@pytest.mark.parametrize("name", ["recommended-npu", "recommended-npu-mixed", "recommended-cpu"])
def test_recommended_recipes_round_trip_through_files(name: str) -> None:
    recipe = find_preset(name).recipe
    assert from_plain(to_plain(recipe)) == recipe


@pytest.mark.parametrize("name", ["recommended-cpu-w4a8-mixed", "recommended-npu-w4a8-mixed"])
def test_eight_bit_weights_of_mixed_recipes_have_no_zero_points(name: str) -> None:
    mixed = find_preset(name).recipe.mix.mixed
    assert mixed is not None
    assert [target.weight.symmetric for target in mixed.targets] == [True]


@pytest.mark.parametrize("name", ["recommended-cpu-w4a8", "recommended-npu-w4a8"])
def test_four_bit_weights_have_a_scale_for_each_channel(name: str) -> None:
    random = np.random.default_rng(0)
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,3,10,10] x) => (float[1,6,8,8] y)
        { a = Conv(x, w) r = Relu(a) y = Conv(r, v) }"""
    spread = np.exp2(random.uniform(-3, 3, 12)).astype(np.float32)[:, None, None, None]
    weights = {"w": random.standard_normal((12, 3, 3, 3)) * spread, "v": random.standard_normal((6, 12, 1, 1))}
    proto = from_text(text, **{key: array.astype(np.float32) for key, array in weights.items()})
    data = [{"x": random.standard_normal((1, 3, 10, 10)).astype(np.float32)} for _ in range(8)]
    result = quantry.quantize(proto, data, name, store=None)
    assert {result.params.tensors[key].dtype.bits for key in weights} == {4}
    assert result.params.tensors["w"].scale.shape == (12,)
    # Float scales come with zero points, power-of-two scales of NPUs without.
    assert bool(result.params.tensors["w"].zero_point.any()) == ("cpu" in name)
    assert result.evaluation.metrics["sqnr"].value > 15
    expected, got = run(proto, data[0])["y"], run(result.to_bytes(), data[0])["y"]
    assert np.corrcoef(expected.ravel(), got.ravel())[0, 1] > 0.98
