"""Channel groups: the same outputs in onnxruntime, and only where they gain enough."""

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings

import quantry
from quantry.equalize import group_channels
from quantry.errors import RecipeError
from quantry.graph.float_model import FloatModel
from quantry.graph.load import model_source
from quantry.prepare import prepare
from quantry.recipe import (
    PRESETS,
    ChannelGroups,
    EqualizeOptions,
    PerChannel,
    PrepareOptions,
    TensorSpec,
    from_plain,
)

FIRST = "a = Conv(x, w8_3_3_3, b8) "
LAST = "y = Conv(r, w4_8_1_1)"
LAWFUL = {
    "relu": FIRST + "r = Relu(a) " + LAST,
    "silu": FIRST + "s = Sigmoid(a) r = Mul(a, s) " + LAST,
    "depthwise": FIRST + "h = Relu(a) d = Conv <group = 8, pads = [1,1,1,1]> (h, w8_1_3_3, c8) r = Relu(d) " + LAST,
    "residual": FIRST + "h = Relu(a) d = Conv(h, w8_8_1_1, c8) r = Add(h, d) " + LAST,
    "join": FIRST + "c = Conv(x, w6_3_3_3) m = Concat <axis = 1> (c, a) r = Relu(m) y = Conv(r, w4_14_1_1)",
    "flattened": FIRST + "p = MaxPool <kernel_shape = [2, 2]> (a) r = Flatten(p) y = Gemm <transB = 1> (r, w4_200)",
    "two readers": FIRST + "r = Relu(a) p = Conv(r, w4_8_1_1) q = Conv(r, v4_8_3_3) z = GlobalMaxPool(q) y = Add(p, z)",
    "gated": FIRST + "p = GlobalAveragePool(a) g = Conv(p, w8_8_1_1, c8) s = Sigmoid(g) r = Mul(a, s) " + LAST,
}
UNLAWFUL = {
    "constant": (FIRST + "q = Mul(a, s8_1_1) r = Relu(q) " + LAST, "Mul combines it with a tensor of another rank"),
    "output": (FIRST + "y = Relu(a)", "its channels are an input or output of the model"),
    "softmax": (FIRST + "r = Softmax <axis = 1> (a) " + LAST, "Softmax needs the order of its channels"),
    "grouped": (FIRST + "y = Conv <group = 2> (a, w4_4_1_1)", "reads its channels by their order"),
    "input": ("a = Conv(x, w3_3_1_1) r = Add(a, x) y = Conv(r, w4_3_1_1)", "an input or output of the model"),
}


def network(body: str, seed: int = 0, opset: int = 17) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g (float[2,3,8,8] x) => (float y) {{ {body} }}'
    )
    random = np.random.default_rng(seed)
    names = {name for node in proto.graph.node for name in node.input if name[0] in "wvbcs" and len(name) > 1}
    for name in sorted(names):
        shape = tuple(map(int, name[1:].split("_")))
        array = random.standard_normal(shape)
        for axis in range(min(2, len(shape))):
            spread = 10 ** random.uniform(-1.5, 1.5, shape[axis])
            array *= spread.reshape([-1 if other == axis else 1 for other in range(len(shape))])
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    return proto


def prepared(body: str, seed: int = 0, opset: int = 17) -> FloatModel:
    return prepare(model_source(network(body, seed, opset)), PrepareOptions())


def outputs(model: FloatModel) -> np.ndarray:
    content = onnx.ModelProto.FromString(model.to_blob().files["model.onnx"]).SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)
    result: np.ndarray = session.run(None, {"x": x})[0]
    return result


def assert_same_function(before: FloatModel, after: FloatModel) -> None:
    onnx.checker.check_model(onnx.ModelProto.FromString(after.to_blob().files["model.onnx"]), full_check=True)
    reference = outputs(before)
    np.testing.assert_allclose(outputs(after), reference, rtol=1e-4, atol=1e-5 * np.abs(reference).max())


def operators(model: FloatModel) -> list[str]:
    return [node.op_type for node in model.model.graph]


@given(st.sampled_from(sorted(LAWFUL)), st.integers(0, 1000), st.integers(2, 4))
@settings(max_examples=40, deadline=None)
def test_groups_keep_the_function(case: str, seed: int, groups: int) -> None:
    before = prepared(LAWFUL[case], seed)
    after = group_channels(before, ChannelGroups(groups, gain=1.0, tolerance=0.0), TensorSpec())
    assert_same_function(before, after)
    assert operators(after).count("Conv") > operators(before).count("Conv")


@pytest.mark.parametrize("case", LAWFUL)
def test_grouping_is_deterministic(case: str) -> None:
    before = prepared(LAWFUL[case])
    after = group_channels(before, ChannelGroups(gain=1.0, tolerance=0.0), TensorSpec())
    again = group_channels(before, ChannelGroups(gain=1.0, tolerance=0.0), TensorSpec())
    assert after.to_blob().files == again.to_blob().files


@pytest.mark.parametrize("case", UNLAWFUL)
def test_layer_that_cannot_change_is_declined_with_its_reason(case: str) -> None:
    body, reason = UNLAWFUL[case]
    before = prepared(body)
    after = group_channels(before, ChannelGroups(gain=1.0, tolerance=0.0), TensorSpec())
    assert after.model is before.model
    assert any(reason in str(note) for note in after.notes), after.notes


def test_channels_are_grouped_in_front_of_a_reshape_that_flattens_them() -> None:
    body = FIRST + "k = Constant <value = int64[2] {2, 288}> () r = Reshape(a, k) y = Gemm <transB = 1> (r, w4_288)"
    before = prepared(body)
    after = group_channels(before, ChannelGroups(gain=1.0, tolerance=0.0), TensorSpec())
    assert after.model is not before.model
    assert_same_function(before, after)


def test_split_before_opset_13_has_its_lengths_in_an_attribute() -> None:
    before = prepared(LAWFUL["depthwise"], opset=12)
    after = group_channels(before, ChannelGroups(gain=1.0, tolerance=0.0), TensorSpec())
    assert "Split" in operators(after)
    assert_same_function(before, after)


def test_function_after_a_convolution_is_split_with_it() -> None:
    before = prepared(LAWFUL["relu"])
    after = group_channels(before, ChannelGroups(2, gain=1.0, tolerance=0.0), TensorSpec())
    assert operators(after) == ["Conv", "Relu", "Conv", "Relu", "Concat", "Conv"]
    assert next(node for node in after.model.graph if node.op_type == "Concat").outputs[0].name == "r"


@pytest.mark.parametrize("weight", [TensorSpec(granularity=PerChannel())])
def test_weights_with_scales_enough_are_left_alone(weight: TensorSpec) -> None:
    before = prepared(LAWFUL["relu"])
    assert group_channels(before, ChannelGroups(gain=1.0, tolerance=0.0), weight).model is before.model


def test_even_weights_are_left_alone() -> None:
    proto = network(LAWFUL["residual"])
    random = np.random.default_rng(0)
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(
            onnx.numpy_helper.from_array(random.uniform(-1, 1, tensor.dims).astype(np.float32), tensor.name)
        )
    before = prepare(model_source(proto), PrepareOptions())
    assert group_channels(before, ChannelGroups(), TensorSpec()).model is before.model


@pytest.mark.parametrize("preset", ["XINT8", "S8S8_AAWS"])
def test_groups_help_where_channels_differ(preset: str) -> None:
    proto = network(LAWFUL["depthwise"], seed=3)
    random = np.random.default_rng(2)
    data = [{"x": random.standard_normal((2, 3, 8, 8)).astype(np.float32)} for _ in range(4)]
    plain = PRESETS[preset].recipe
    alone = quantry.quantize(proto, data, replace(plain, equalize=EqualizeOptions()), store=None)
    options = EqualizeOptions(groups=ChannelGroups())
    grouped = quantry.quantize(proto, data, replace(plain, equalize=options), store=None)
    assert any(str(note).startswith("channel groups: ") and "0 of" not in str(note) for note in grouped.notes)
    assert grouped.evaluation.metrics["sqnr"].value > alone.evaluation.metrics["sqnr"].value + 1


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"groups": {"groups": 5}}, "ChannelGroups.groups must be 2 to 4, got 5"),
        ({"groups": {"gain": 0.5}}, "ChannelGroups.gain must be at least 1"),
        ({"groups": {"tolerence": 0.5}}, "tolerance"),
        ({"groups": {"tolerance": -1.0}}, "ChannelGroups.tolerance must not be negative"),
        ({"absorp": {}}, "absorp"),
    ],
)
def test_bad_options_are_refused(section: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        from_plain({"equalize": section})
