"""The written-out arithmetic of HTP gives the integers of Qualcomm's emulator."""

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from target_models import installed, network, noise, samples

import quantry
from quantry.evaluate import EXACT, arithmetic_in_force
from quantry.graph.load import read_model
from quantry.graph.passes.infer_shapes import infer_shapes
from quantry.runtime.sessions import run_session, simulation_session
from quantry.targets import TARGETS, simulated_for
from quantry.targets.arithmetic import simulated_model
from quantry.targets.backends.htp_arithmetic import write_htp_arithmetic
from quantry.targets.backends.htp_parts import cut_multiplier, short_multiplier, stored_bias

HEAD = '<ir_version: 9, opset_import: ["": 17]>'
PARAMETERS = """<float sx = {0.0187}, uint8 zx = {114}, float sz = {0.0231}, uint8 zz = {7}, float sy = {0.0291},
    uint8 zy = {121}>"""
READ = "xq = QuantizeLinear(x, sx, zx) xd = DequantizeLinear(xq, sx, zx)"
WRITE = "yq = QuantizeLinear(c, sy, zy) y = DequantizeLinear(yq, sy, zy)"
WEIGHT = "wd = DequantizeLinear<axis = 0>(w, sw, zw)"


def convolution(
    attributes: str, shape: tuple[int, ...], sides: tuple[int, int], *, biased: bool = False
) -> onnx.ModelProto:
    into, out = sides
    bias, third = ("bd = DequantizeLinear<axis = 0>(b, sb, zb)", ", bd") if biased else ("", "")
    model = onnx.parser.parse_model(
        f"{HEAD} g (float[1,8,{into},{into}] x) => (float[1,8,{out},{out}] y) {PARAMETERS} "
        f"{{ {READ} {WEIGHT} {bias} c = Conv<{attributes}>(xd, wd{third}) {WRITE} }}"
    )
    generator = np.random.default_rng(0)
    scales = np.geomspace(0.002, 0.05, 8).astype(np.float32)
    arrays = {"w": generator.integers(-127, 128, shape).astype(np.int8), "sw": scales, "zw": np.zeros(8, np.int8)}
    if biased:
        arrays["b"] = generator.integers(-3000, 3000, 8).astype(np.int32)
        arrays |= {"sb": np.float32(0.0187) * scales, "zb": np.zeros(8, np.int32)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


def elementwise(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"{HEAD} g (float[1,8,24,24] x, float[1,8,24,24] z) => (float[1,8,24,24] y) {PARAMETERS} "
        f"{{ {READ} zq = QuantizeLinear(z, sz, zz) zd = DequantizeLinear(zq, sz, zz) {body} {WRITE} }}"
    )


MODELS = {
    "dense": convolution("kernel_shape = [3, 3], pads = [1, 1, 1, 1]", (8, 8, 3, 3), (24, 24)),
    "depthwise": convolution("kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 8", (8, 1, 3, 3), (24, 24)),
    "strided depthwise": convolution("kernel_shape = [3, 3], strides = [2, 2], group = 8", (8, 1, 3, 3), (25, 12)),
    "biased": convolution("kernel_shape = [3, 3], pads = [1, 1, 1, 1]", (8, 8, 3, 3), (24, 24), biased=True),
    "sum": elementwise("c = Add(xd, zd)"),
}


def levels(
    model: onnx.ModelProto, *, rounded: bool, step: float = 0.0291
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    backend = installed("qnn")
    generator = np.random.default_rng(1)
    feeds = {
        value.name: generator.normal(0, 1, [d.dim_value for d in value.type.tensor_type.shape.dim]).astype(np.float32)
        for value in model.graph.input
    }
    loaded = read_model(model.SerializeToString())
    simulated = simulated_model(loaded, backend if rounded else None)
    ours = run_session(simulation_session(simulated), feeds)["y"]
    theirs = backend.open(model.SerializeToString()).run(feeds)["y"]
    return np.rint(ours / np.float64(np.float32(step))), np.rint(theirs / np.float64(np.float32(step)))


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose activations have 16 bits, with scales that are 256 times finer."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.opset_import[0].version = 21
    for tensor in made.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if tensor.name in ("zx", "zy", "zz"):
            array = array.astype(np.uint16) * 256
        elif tensor.name in ("sx", "sy", "sz", "sb"):
            array = (array / 256).astype(np.float32)
        elif tensor.name == "b":
            array = array * 256
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(array), tensor.name))
    return made


def gate() -> onnx.ModelProto:
    """Return x * Sigmoid(x) with 16 bits, as detectors have it after every layer."""
    return onnx.parser.parse_model(
        f"{HEAD.replace('17', '21')} g (float[1,8,24,24] x) => (float[1,8,24,24] y) "
        "<float ss = {0.0000152587890625}, uint16 zs = {0}, "
        "float sx = {0.00011}, uint16 zx = {30000}, float sy = {0.00007}, uint16 zy = {4000}> "
        f"{{ {READ} s = Sigmoid(xd) sq = QuantizeLinear(s, ss, zs) sd = DequantizeLinear(sq, ss, zs) "
        f"c = Mul(xd, sd) {WRITE} }}"
    )


@pytest.mark.parametrize("name", ["dense", "strided depthwise", "gate"])
def test_a_result_with_16_bits_may_be_an_output_too(name: str) -> None:
    proto = gate() if name == "gate" else widened(MODELS[name])
    plain = onnx.ValueInfoProto()
    plain.CopyFrom(proto.graph.output[0])
    plain.name = "c"
    proto.graph.output.append(plain)
    model = read_model(proto.SerializeToString())
    infer_shapes(model)
    assert write_htp_arithmetic(model) >= 1
    shape = [axis.dim_value for axis in proto.graph.input[0].type.tensor_type.shape.dim]
    small = np.random.default_rng(1).uniform(-0.03, 0.03, shape).astype(np.float32)  # no sum leaves the range of y
    found = run_session(simulation_session(model), {"x": small})
    # HTP cuts sums to 256 of their steps, which are 0.0187 / 256 * 0.05 in the coarsest channel.
    np.testing.assert_allclose(found["c"], found["y"], atol=1.2 * 0.0187 * 0.05)


def test_gates_with_16_bits_are_rounded_as_the_emulator_rounds_them() -> None:
    ours, theirs = levels(gate(), rounded=True, step=0.00007)
    plain, _ = levels(gate(), rounded=False, step=0.00007)
    assert np.abs(ours - theirs).max() <= 2
    assert (ours != theirs).mean() < 0.09
    assert (plain != theirs).mean() > 0.15


@pytest.mark.parametrize("name", ["dense", "depthwise", "strided depthwise", "biased"])
def test_simulation_has_the_integers_of_the_emulator_with_16_bits(name: str) -> None:
    ours, theirs = levels(widened(MODELS[name]), rounded=True, step=0.0291 / 256)
    assert (ours != theirs).mean() < 5e-3
    plain, _ = levels(widened(MODELS[name]), rounded=False, step=0.0291 / 256)
    assert (plain != theirs).mean() > 0.05


@pytest.mark.parametrize("name", MODELS)
def test_simulation_has_the_integers_of_the_emulator(name: str) -> None:
    ours, theirs = levels(MODELS[name], rounded=True)
    assert (ours != theirs).mean() < 2e-5
    plain, _ = levels(MODELS[name], rounded=False)
    assert (plain != theirs).mean() > 2e-3


def test_multipliers_have_few_bits() -> None:
    ratio = np.array([0.3, 0.0123, 1e-5])
    step, multiplier = cut_multiplier(ratio)
    assert np.all((multiplier > 1 / 16) & (multiplier <= 1 / 8))
    assert np.all(multiplier * 2**15 == np.rint(multiplier * 2**15))
    assert multiplier / step == pytest.approx(ratio, rel=3e-4)
    assert short_multiplier(ratio, 15) == pytest.approx(ratio, rel=2**-15)


def test_biases_are_stored_relative_to_the_largest() -> None:
    # Every label was read from the emulator: 1 where the bias comes out one step closer to 0.
    labels = (
        "......########................#######..#.................########"
        "..............###########..............######..###......"
    )
    bias = np.append(np.arange(300, 421), 427).astype(np.int32)
    lost = bias - stored_bias(bias, float(np.float32(0.0187) * np.float32(0.004)))
    assert "".join("#" if step else "." for step in lost[:-1]) == labels + "#" * (121 - len(labels))
    assert np.array_equal(stored_bias(np.zeros(3, np.int32), 0.1), np.zeros(3))


def test_scores_for_htp_come_from_its_arithmetic() -> None:
    backend = installed("qnn")
    model = quantry.quantize(network(), samples(), "CPU_INT8", target="qnn-htp", store=None)
    sample = samples(1)[0]
    device = backend.open(model.to_bytes()).run(sample)["y"]
    plain = run_session(simulation_session(model.to_bytes()), sample)["y"]
    rounded = run_session(simulation_session(simulated_model(read_model(model.to_bytes()), backend)), sample)["y"]
    assert noise(device, rounded) >= noise(device, plain)


def test_targets_without_a_known_arithmetic_are_simulated_as_before() -> None:
    for target in (None, "", *(name for name in TARGETS if name != "qnn-htp")):
        with simulated_for(target):
            assert arithmetic_in_force() is EXACT
