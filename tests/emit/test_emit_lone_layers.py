"""Float layers between quantized tensors: a note says where onnxruntime rounds their weights, and only there."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from tests.onnx_oracle import from_text

import quantry
from quantry.recipe import PRESETS, EvaluateOptions, Format, Qdq, QOperator

CASES = {
    "a layer": (("second",), "Relu"),
    "a layer and its Relu": (("second", "function"), "Relu"),
    "a layer and its Clip": (("second", "function"), "Clip"),
    "a layer and its LeakyRelu": (("second", "function"), "LeakyRelu"),
    "the last layers": (("second", "function", "third"), "Relu"),
    "nothing": ((), "Relu"),
}


def network(function: str) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    weights = {name: random.standard_normal((8, 8, 3, 3)).astype(np.float32) for name in ("u", "v", "w")}
    weights["v"][0, 0] *= 50  # one scale for the whole weight is too coarse
    bounds = ", zero, six" if function == "Clip" else ""
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[1,8,8,8] x) => (float[1,8,8,8] y)
        <float zero = {{0}}, float six = {{6}}> {{
            a = Conv <pads = [1,1,1,1]> (x, u) b = Relu(a) c = Conv <pads = [1,1,1,1]> (b, v)
            d = {function}(c{bounds}) y = Conv <pads = [1,1,1,1]> (d, w) }}"""
    proto = from_text(text, **weights)
    for node, name in zip(proto.graph.node, ("first", "relu", "second", "function", "third"), strict=True):
        node.name = name
    return proto


def quantized(function: str, exclude: tuple[str, ...], written: Format) -> quantry.QuantizationResult:
    recipe = PRESETS["CPU_INT8"].recipe
    plan = replace(recipe.plan, selection=replace(recipe.plan.selection, exclude=exclude))
    recipe = replace(recipe, plan=plan, emit=replace(recipe.emit, format=written), evaluate=EvaluateOptions(guard=0))
    return quantry.quantize(network(function), samples(), recipe, store=None)


def samples() -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    return [{"x": random.standard_normal((1, 8, 8, 8)).astype(np.float32)} for _ in range(4)]


def output(model: bytes, *disabled: str) -> np.ndarray:
    session = onnxruntime.InferenceSession(model, disabled_optimizers=list(disabled))
    return np.asarray(session.run(None, samples()[0])[0])


@pytest.mark.parametrize("written", [Qdq(), QOperator()], ids=["Qdq", "QOperator"])
@pytest.mark.parametrize(("exclude", "function"), CASES.values(), ids=CASES)
def test_note_says_where_onnxruntime_rounds_float_weights(
    exclude: tuple[str, ...], function: str, written: Format
) -> None:
    result = quantized(function, exclude, written)
    model = result.to_bytes()
    is_rounded = not np.array_equal(output(model), output(model, "WeightBiasQuantization"))
    notes = [note for note in result.notes if "WeightBiasQuantization" in str(note)]
    assert bool(notes) == is_rounded
    assert all("'second'" in str(note) for note in notes)
