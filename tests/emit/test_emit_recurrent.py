"""Weights of LSTM, GRU and RNN as integers: smaller, close to float, the same in onnxruntime and in torch."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import quantry
from onnx_oracle import from_text, run
from quantry.recipe import PRESETS, DataType, PerChannel, Selection, TensorSpec

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
HIDDEN, INPUTS, STEPS = 24, 16, 7


def model(kind: str, directions: int, extra: str = "") -> onnx.ModelProto:
    random = np.random.default_rng(GATES[kind])
    direction = "bidirectional" if directions == 2 else "forward"
    attributes = f'hidden_size = {HIDDEN}, direction = "{direction}"' + extra
    text = f"""<ir_version: 8, opset_import: ["": 14]>
    g (float[{STEPS},2,{INPUTS}] x) => (float[{directions},2,{HIDDEN}] last) {{
        a = Tanh (x)
        all, last = {kind} <{attributes}> (a, w, r, b)
    }}"""
    rows = GATES[kind] * HIDDEN
    shapes = {"w": (directions, rows, INPUTS), "r": (directions, rows, HIDDEN), "b": (directions, 2 * rows)}
    weights = {name: (random.standard_normal(shape) / 5).astype(np.float32) for name, shape in shapes.items()}
    return from_text(text, **weights)


def samples() -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(8)
    return [{"x": random.standard_normal((STEPS, 2, INPUTS)).astype(np.float32)} for _ in range(4)]


def quantized(proto: onnx.ModelProto, recipe: object) -> quantry.QuantizationResult:
    return quantry.quantize(proto.SerializeToString(), samples(), recipe, store=None)


def decibels(proto: onnx.ModelProto, content: bytes) -> float:
    session = ort.InferenceSession(content)  # with all optimizations
    pairs = [(run(proto, sample)["last"], session.run(["last"], sample)[0]) for sample in samples()]
    noise = sum(np.square(a - b).sum() for a, b in pairs)
    return float(10 * np.log10(sum(np.square(a).sum() for a, _ in pairs) / noise))


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("kind", GATES)
def test_weights_are_integers_and_outputs_stay_close(kind: str, directions: int) -> None:
    proto = model(kind, directions)
    for name, least in (("A8W8", 28), ("XINT8", 24), ("CPU_INT8", 32)):
        content = quantized(proto, name).to_bytes()
        types = {entry.name: entry.data_type for entry in onnx.load_model_from_string(content).graph.initializer}
        assert types["w_quantized"] == types["r_quantized"] == onnx.TensorProto.INT8
        assert not {"w", "r"} & types.keys()
        assert decibels(proto, content) > least, name


def test_per_channel_weights_have_one_scale_per_row_of_a_gate() -> None:
    found = quantized(model("LSTM", 2), "CPU_INT8").params.tensors
    assert found["w"].scale.shape == found["r"].scale.shape == (4 * HIDDEN,)
    assert found["w"].axis == 1


def test_interpreter_computes_what_onnxruntime_computes() -> None:
    torch = pytest.importorskip("torch")
    from quantry.execute.graph_builder import GraphDefinition
    from quantry.execute.trainable_graph import TrainableGraph, Trained

    result = quantized(model("GRU", 2, ", linear_before_reset = 1"), "CPU_INT8")
    written = result.stages.written.value
    definition = GraphDefinition(model=written, plan=result.plan, params=result.params)
    trainable = TrainableGraph(definition, list(written.model.graph), ["last"], Trained())
    found = trainable.run({"x": torch.from_numpy(samples()[0]["x"])}, quantized=True)["last"]
    np.testing.assert_allclose(found.detach().numpy(), run(result.to_bytes(), samples()[0])["last"], atol=2e-6)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec(DataType.UINT8, symmetric=False),
        TensorSpec(DataType.INT8),
        TensorSpec(DataType.INT8, granularity=PerChannel()),
    ],
)
def test_dynamic_recipe_writes_an_lstm_for_8_bit_kernels(spec: TensorSpec, directions: int) -> None:
    base = PRESETS["UINT8_DYNAMIC_QUANT"].recipe
    plan = replace(base.plan, weight=spec, selection=Selection(operators=("LSTM", "GRU")))
    proto = model("LSTM", directions)
    content = quantized(proto, replace(base, plan=plan)).to_bytes()
    nodes = onnx.load_model_from_string(content).graph.node
    assert [node.op_type for node in nodes] == ["Tanh", "DynamicQuantizeLSTM"]
    assert decibels(proto, content) > 28


def test_dynamic_recipe_stores_other_recurrent_weights_as_integers() -> None:
    base = PRESETS["UINT8_DYNAMIC_QUANT"].recipe
    plan = replace(base.plan, selection=Selection(operators=("LSTM", "GRU")))
    proto = model("GRU", 1)
    content = quantized(proto, replace(base, plan=plan)).to_bytes()
    kinds = [node.op_type for node in onnx.load_model_from_string(content).graph.node]
    assert sorted(kinds) == ["DequantizeLinear", "DequantizeLinear", "GRU", "Tanh"]
    assert decibels(proto, content) > 28
