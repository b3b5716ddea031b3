"""Weights inside the bodies of If, Loop and Scan: stored as integers in every format, close to float, selectable."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import quantry
from onnx_oracle import from_text, run
from quantry.recipe import PRESETS, EmitOptions, FixNeuron, QOperator, Selection, VitisDialect, VitisQdq

RANDOM = np.random.default_rng(2)
HEAD = '<ir_version: 8, opset_import: ["": 16]> g (float[4,16] x) => (float[4,8] y) { h = MatMul (x, w0) '
TAIL = " y = MatMul (z, w2) }"
IF = """
    s = ReduceMean <keepdims = 0> (x)
    zero = Constant <value_float = 0.0> ()
    c = Greater (s, zero)
    z = If (c) <
        then_branch = t () => (float[4,32] a) { a1 = MatMul (h, w)  a = Relu (a1) },
        else_branch = e () => (float[4,32] b) { b1 = Gemm (h, w)  b = Tanh (b1) }>"""
LOOP = """
    n = Constant <value_int = 4> ()
    c = Constant <value = bool {1}> ()
    z = Loop (n, c, h) <body = l (int64 i, bool before, float[4,32] state) => (bool after, float[4,32] next) {
        after = Identity (before)  a = MatMul (state, w)  next = Tanh (a) }>"""
SCAN = """
    last, z = Scan <num_scan_inputs = 1, body = l (float[32] state, float[32] row) => (float[32] next, float[32] out) {
        a = MatMul (state, w)  b = Add (a, row)  next = Tanh (b)  out = Identity (next) }> (start, h)"""
TEXTS = {"If": IF, "Loop": LOOP, "Scan": SCAN}


def values(*shape: int) -> np.ndarray:
    return (RANDOM.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def model(kind: str, *, inside: bool = True) -> onnx.ModelProto:
    """Return a model whose body has its weight inside, or reads it from the main graph."""
    outer = {"w0": values(16, 32), "w2": values(32, 8), "start": np.zeros(32, np.float32)}
    used = {name: array for name, array in outer.items() if name != "start" or kind == "Scan"}
    proto = from_text(HEAD + TEXTS[kind] + TAIL, **used)
    if not inside:
        proto.graph.initializer.append(numpy_helper.from_array(values(32, 32), "w"))
        return proto
    for attribute in (entry for node in proto.graph.node for entry in node.attribute):
        if attribute.type == onnx.AttributeProto.GRAPH:
            attribute.g.initializer.append(numpy_helper.from_array(values(32, 32), "w"))
    return proto


SAMPLES = [{"x": RANDOM.standard_normal((4, 16)).astype(np.float32)} for _ in range(6)]


def quantized(proto: onnx.ModelProto, recipe: object) -> bytes:
    return quantry.quantize(proto.SerializeToString(), SAMPLES, recipe, store=None).to_bytes()


def decibels(proto: onnx.ModelProto, content: bytes) -> float:
    session = ort.InferenceSession(content)  # with all optimizations
    pairs = [(run(proto, sample)["y"], session.run(["y"], sample)[0]) for sample in SAMPLES]
    noise = sum(np.square(a - b).sum() for a, b in pairs)
    return float(10 * np.log10(sum(np.square(a).sum() for a, _ in pairs) / noise))


def float_elements(content: bytes) -> int:
    """Return the number of elements of the largest float weight, in any graph."""
    graphs = [onnx.load_model_from_string(content).graph]
    largest = 0
    while graphs:
        graph = graphs.pop()
        graphs += [entry.g for node in graph.node for entry in node.attribute if entry.type == entry.GRAPH]
        sizes = [np.prod(weight.dims) for weight in graph.initializer if weight.data_type == onnx.TensorProto.FLOAT]
        largest = max([largest, *map(int, sizes)])
    return largest


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("kind", TEXTS)
def test_weights_of_bodies_are_integers_and_outputs_stay_close(kind: str, inside: bool) -> None:
    proto = model(kind, inside=inside)
    for name, least in (
        ("A8W8", 24),
        ("XINT8", 20),
        ("CPU_INT8", 26),
        ("UINT8_DYNAMIC_QUANT", 26),
        ("MATMUL_NBITS", 8),
    ):
        content = quantized(proto, name)
        assert float_elements(content) <= 64, name
        assert decibels(proto, content) > least, name


@pytest.mark.parametrize(
    "format_", [QOperator(), VitisQdq(VitisDialect.QUARK), VitisQdq(VitisDialect.CONTRIB), FixNeuron()]
)
def test_every_format_writes_weights_of_bodies(format_: object) -> None:
    recipe = PRESETS["XINT8" if isinstance(format_, FixNeuron) else "U8S8_AAWS"].recipe
    proto = model("If")
    content = quantized(proto, replace(recipe, emit=EmitOptions(format_)))
    assert isinstance(format_, FixNeuron) or float_elements(content) <= 32
    assert decibels(proto, content) > 20


def test_bodies_can_be_left_float_by_option_by_node_and_by_operator() -> None:
    proto, recipe = model("Loop"), PRESETS["A8W8"].recipe
    proto.graph.node[3].name = "loop"
    for plan in (
        replace(recipe.plan, body_weights=False),
        replace(recipe.plan, selection=Selection(exclude=("loop",))),
        replace(recipe.plan, selection=Selection(exclude_operators=("MatMul",))),
    ):
        assert float_elements(quantized(proto, replace(recipe, plan=plan))) == 32 * 32


def test_a_layer_inside_a_body_can_be_excluded_by_name() -> None:
    proto, recipe = model("If"), PRESETS["A8W8"].recipe
    branches = [entry.g for entry in proto.graph.node[-2].attribute]
    branches[0].node[0].name = "inner"
    plan = replace(recipe.plan, selection=Selection(exclude=("inner",)))
    content = quantized(proto, replace(recipe, plan=plan))
    floats = [
        w for w in onnx.load_model_from_string(content).graph.initializer if w.data_type == onnx.TensorProto.FLOAT
    ]
    assert sorted(int(np.prod(weight.dims)) for weight in floats)[-2:] == [1, 32 * 32]
