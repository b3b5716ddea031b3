"""HardSwish and HardSigmoid that exporters took apart are written as x * HardSigmoid(x) and HardSigmoid."""

from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import pytest
from tests.onnx_oracle import from_text, run

import quantry
from quantry.graph.load import model_source
from quantry.prepare import prepare
from quantry.recipe import PRESETS, NpuConversions, PrepareOptions

HARD_SWISH = {
    "PaddlePaddle": "b = Add(a, three) c = Clip(b, zero, six) d = Mul(a, c) e = Div(d, six)",
    "torch": "b = Add(three, a) c = Clip(b, zero, six) d = Div(c, six) e = Mul(d, a)",
    "TensorFlow": "b = Add(a, three) f = Relu(b) c = Min(f, six) d = Mul(c, sixth) e = Mul(a, d)",
    "factor first": "f = Mul(a, sixth) b = Add(a, three) c = Clip(b, zero, six) e = Mul(c, f)",
    "bounds 0 and 1": "f = Mul(a, sixth) b = Add(f, half) c = Clip(b, zero, one) e = Mul(c, a)",
    "Keras": "b = HardSigmoid <alpha = 0.16666667> (a) c = Mul(b, six) d = Div(c, six) e = Mul(a, d)",
}
HARD_SIGMOID = {
    "PaddlePaddle": "b = Add(a, three) c = Clip(b, zero, six) e = Div(c, six)",
    "TensorFlow": "b = Add(a, three) f = Relu(b) c = Min(f, six) e = Mul(c, sixth)",
}
OTHERS = {
    "bound 5": "b = Add(a, three) c = Clip(b, zero, five) d = Mul(a, c) e = Div(d, six)",
    "divided by 5": "b = Add(a, three) c = Clip(b, zero, six) d = Mul(a, c) e = Div(d, five)",
    "product of another tensor": "g = Relu(a) b = Add(a, three) c = Clip(b, zero, six) d = Mul(g, c) e = Div(d, six)",
    "already written": "b = HardSigmoid <alpha = 0.16666667> (a) e = Mul(a, b)",
    "Clip alone": "e = Clip(a, zero, six)",
    "HardSwish": "e = HardSwish(a)",
}


def network(body: str, more: str = "") -> onnx.ModelProto:
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[1,3,8,8] x) => (float y{", float z" if more else ""})
        <float zero = {{0}}, float half = {{0.5}}, float one = {{1}}, float three = {{3}}, float[1] five = {{5}},
         float[1] six = {{6}}, float sixth = {{0.16666667}}>
        {{ a = Conv(x, w) {body} y = Conv(e, v) {more} }}"""
    random = np.random.default_rng(1)
    text = text.replace("[1] six", " six").replace("[1] five", " five")
    return from_text(text, w=4 * random.standard_normal((8, 3, 1, 1), np.float32), v=_filters(random))


def _filters(random: np.random.Generator) -> np.ndarray:
    return random.standard_normal((4, 8, 1, 1), np.float32)


def samples() -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(2)
    return [{"x": random.standard_normal((1, 3, 8, 8), np.float32)} for _ in range(4)]


def prepared(proto: onnx.ModelProto, options: PrepareOptions | None = None) -> tuple[Counter[str], list[str]]:
    """Return the operators of the prepared model, which computes the same, and the notes."""
    model = prepare(model_source(proto), options or PrepareOptions())
    for sample in samples():
        expected, got = run(proto, sample), run(model.model, sample)
        for name in expected:
            np.testing.assert_allclose(got[name], expected[name], rtol=1e-4, atol=1e-4)
    return Counter(node.op_type for node in model.model.graph), list(map(str, model.notes))


@pytest.mark.parametrize("body", HARD_SWISH.values(), ids=HARD_SWISH)
def test_hard_swish_of_any_exporter_becomes_a_product_with_hard_sigmoid(body: str) -> None:
    operators, notes = prepared(network(body))
    assert operators == {"Conv": 2, "HardSigmoid": 1, "Mul": 1}
    assert "wrote 1 HardSwish functions that consisted of several nodes as x * HardSigmoid(x)" in notes


@pytest.mark.parametrize("body", HARD_SIGMOID.values(), ids=HARD_SIGMOID)
def test_hard_sigmoid_of_any_exporter_becomes_one_node(body: str) -> None:
    operators, _ = prepared(network(body))
    assert operators == {"Conv": 2, "HardSigmoid": 1}


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_other_functions_stay(body: str) -> None:
    operators, notes = prepared(network(body))
    assert operators == Counter(
        ["Conv", "Conv", *(word.split("=")[1].split("(")[0].split("<")[0].strip() for word in _lines(body))]
    )
    assert not any("HardSwish" in str(note) for note in notes)


def _lines(body: str) -> list[str]:
    return [part + ")" for part in body.replace("<alpha = 0.16666667>", "").split(")") if part.strip()]


def test_steps_that_something_else_reads_stay() -> None:
    operators, _ = prepared(network(HARD_SWISH["PaddlePaddle"], "z = Relu(c)"))
    assert operators == {"Conv": 2, "HardSigmoid": 1, "Mul": 1, "Add": 1, "Clip": 1, "Relu": 1}


def test_it_can_be_switched_off() -> None:
    operators, _ = prepared(network(HARD_SWISH["PaddlePaddle"]), PrepareOptions(restore_hard_swish=False))
    assert operators == {"Conv": 2, "Add": 1, "Clip": 1, "Mul": 1, "Div": 1}


def test_npus_get_a_product_for_hard_swish() -> None:
    operators, notes = prepared(network(OTHERS["HardSwish"]), PrepareOptions(npu=NpuConversions(hard_sigmoid=False)))
    assert operators == {"Conv": 2, "HardSigmoid": 1, "Mul": 1}
    assert any("replaced 1 HardSwish nodes by x * HardSigmoid(x)" in str(note) for note in notes)


@pytest.mark.parametrize("name", ["Clip", "Div"])
def test_an_excluded_step_excludes_what_it_became(name: str) -> None:
    proto = network(HARD_SWISH["PaddlePaddle"])
    for node in proto.graph.node:
        node.name = node.op_type if node.op_type != "Conv" else f"Conv_{node.output[0]}"
    recipe = PRESETS["CPU_INT8"].recipe
    selection = replace(recipe.plan.selection, exclude=(name,))
    result = quantry.quantize(
        proto, samples(), replace(recipe, plan=replace(recipe.plan, selection=selection)), store=None
    )
    # The product has the name of the last step.
    assert "Div" not in result.plan.quantized_nodes
    assert "Conv_a" in result.plan.quantized_nodes
