"""Random networks compute the same before and after, whatever they are made of."""

from dataclasses import dataclass

import hypothesis.strategies as st
import numpy as np
import onnxruntime as ort
from hypothesis import given, settings
from onnx import TensorProto, helper, numpy_helper

from quantry.equalize import equalize, group_channels
from quantry.graph.load import model_source
from quantry.graph.save import serialize
from quantry.prepare import prepare
from quantry.recipe import ChannelGroups, CrossLayer, EqualizeOptions, PrepareOptions, TensorSpec


@dataclass
class Net:
    """Nodes and weights as they are drawn; ``value`` is the latest result and ``channels`` its width."""

    random: np.random.Generator
    value: str = "x"
    channels: int = 3

    def __post_init__(self) -> None:
        self.nodes: list[object] = []
        self.weights: dict[str, np.ndarray] = {}

    def node(self, operator: str, *inputs: str, **attributes: object) -> str:
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], f"n{len(self.nodes)}", **attributes))
        return output

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        spread = 10 ** self.random.uniform(-1.5, 1.5, (shape[0], *[1] * (len(shape) - 1)))
        array = self.random.standard_normal(shape) * spread / np.sqrt(np.prod(shape[1:]))
        array[self.random.random(shape[0]) < 0.1] = 0
        self.weights[name] = array.astype(np.float32)
        return name

    def add(self, kind: str) -> None:
        getattr(self, kind)()

    def conv(self) -> None:
        outputs = int(self.random.integers(1, 4)) * 2
        self.value = self.node("Conv", self.value, self.weight(outputs, self.channels, 1, 1), self.weight(outputs))
        self.channels = outputs

    def depthwise(self) -> None:
        kernel = self.weight(self.channels, 1, 3, 3)
        bias = self.weight(self.channels)
        self.value = self.node("Conv", self.value, kernel, bias, group=self.channels, pads=[1] * 4)

    def multiplied(self) -> None:
        self.value = self.node("Conv", self.value, self.weight(self.channels * 2, 1, 1, 1), group=self.channels)
        self.channels *= 2

    def grouped(self) -> None:
        if self.channels % 2 == 0:
            self.value = self.node("Conv", self.value, self.weight(4, self.channels // 2, 1, 1), group=2)
            self.channels = 4

    def transposed(self) -> None:
        self.value = self.node("ConvTranspose", self.value, self.weight(self.channels, 3, 1, 1), self.weight(3))
        self.channels = 3

    def residual(self) -> None:
        inner = self.node("Conv", self.value, self.weight(self.channels, self.channels, 1, 1))
        self.value = self.node("Add", self.value, self.node("Relu", inner))

    def silu(self) -> None:
        self.value = self.node("Mul", self.value, self.node("Sigmoid", self.value))

    def relu(self) -> None:
        self.value = self.node("Relu", self.value)

    def leaky(self) -> None:
        self.value = self.node("LeakyRelu", self.value, alpha=0.2)

    def prelu(self) -> None:
        self.value = self.node("PRelu", self.value, self.weight(self.channels, 1, 1))

    def pool(self) -> None:
        self.value = self.node("MaxPool", self.value, kernel_shape=[3, 3], pads=[1] * 4)

    def mean(self) -> None:
        self.value = self.node("AveragePool", self.value, kernel_shape=[3, 3], pads=[1] * 4)

    def model(self) -> bytes:
        flat = self.node("Flatten", self.value)
        width = self.channels * 25
        self.node("Gemm", flat, self.weight(4, width), self.weight(4), transB=1)
        self.nodes[-1].output[0] = "y"  # type: ignore[attr-defined]
        graph = helper.make_graph(
            self.nodes,
            "random",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 5, 5])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
            [numpy_helper.from_array(array, name) for name, array in self.weights.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return bytes(model.SerializeToString())


KINDS = [
    *("conv", "depthwise", "multiplied", "grouped", "transposed", "residual"),
    *("silu", "relu", "leaky", "prelu", "pool", "mean"),
]
options = st.builds(
    CrossLayer,
    st.sampled_from([1, 2, -1]),
    include_bias=st.booleans(),
    use_threshold=st.booleans(),
    weight_threshold=st.floats(0, 2),
)


def outputs(content: bytes, x: np.ndarray) -> np.ndarray:
    settings_ = ort.SessionOptions()
    settings_.log_severity_level = 3
    settings_.intra_op_num_threads = 1
    session = ort.InferenceSession(content, settings_, providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, {"x": x})[0]
    return result


@given(st.lists(st.sampled_from(KINDS), min_size=2, max_size=9), st.integers(0, 2**32 - 1), options)
@settings(max_examples=60, deadline=None)
def test_outputs_stay(kinds: list[str], seed: int, chosen: CrossLayer) -> None:
    net = Net(np.random.default_rng(seed))
    for kind in kinds:
        if net.channels <= 8 or kind != "multiplied":
            net.add(kind)
    before = prepare(model_source(net.model()), PrepareOptions())
    after = equalize(before, EqualizeOptions(chosen))
    x = np.random.default_rng(seed + 1).standard_normal((2, 3, 5, 5)).astype(np.float32)
    expected = outputs(serialize(before.model), x)
    # A sum of terms of both signs can be much smaller than they are, so the scale of all outputs is the measure.
    np.testing.assert_allclose(
        outputs(serialize(after.model), x), expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max()
    )


@given(st.lists(st.sampled_from(KINDS), min_size=2, max_size=9), st.integers(0, 2**32 - 1), st.integers(2, 4))
@settings(max_examples=40, deadline=None)
def test_outputs_stay_when_channels_are_grouped(kinds: list[str], seed: int, groups: int) -> None:
    net = Net(np.random.default_rng(seed))
    for kind in kinds:
        if net.channels <= 8 or kind != "multiplied":
            net.add(kind)
    before = prepare(model_source(net.model()), PrepareOptions())
    after = group_channels(before, ChannelGroups(groups, gain=1.0, tolerance=0.0), TensorSpec())
    x = np.random.default_rng(seed + 1).standard_normal((2, 3, 5, 5)).astype(np.float32)
    expected = outputs(serialize(before.model), x)
    np.testing.assert_allclose(
        outputs(serialize(after.model), x), expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max()
    )
