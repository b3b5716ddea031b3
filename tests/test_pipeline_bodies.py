"""Bodies of If, Loop and Scan are quantized like the main graph: same accuracy as the network without control flow."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

import quantry
from onnx_oracle import from_text
from quantry.cli.app import app
from quantry.convert import QdqDialect, translate
from quantry.graph.save import serialize
from quantry.recipe import (
    PRESETS,
    DataType,
    EmitOptions,
    GivenRange,
    Selection,
    TensorSpec,
    TensorTypes,
    VitisDialect,
    VitisQdq,
)

RANDOM = np.random.default_rng(7)


def values(*shape: int) -> np.ndarray:
    return (RANDOM.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)


WEIGHTS = {"w0": values(8, 3, 3, 3), "w1": values(16, 8, 3, 3), "w2": values(16, 16, 3, 3), "w3": values(10, 16)}
SAMPLES = [{"x": RANDOM.standard_normal((1, 3, 12, 12)).astype(np.float32)} for _ in range(10)]
HEAD = '<ir_version: 8, opset_import: ["": 16]> g (float[1,3,12,12] x) => (float[1,10] y) { '
STEM = "s0 = Conv <pads = [1,1,1,1]> (x, w0)  s = Relu (s0) "


def network(start: str, end: str, prefix: str = "") -> str:
    """Return a small residual network as text."""
    text = f"""
        c1 = Conv <pads = [1,1,1,1]> ({start}, w1)  r1 = Relu (c1)
        c2 = Conv <pads = [1,1,1,1]> (r1, w2)  a = Add (c2, r1)  r2 = Relu (a)
        p = GlobalAveragePool (r2)  f = Flatten (p)  {end} = Gemm <transB = 1> (f, w3) """
    for name in ("c1", "r1", "c2", "a ", "(a)", "r2", "p ", "(p)", "f ", "(f"):
        text = text.replace(name, name.replace(name.strip("( )"), prefix + name.strip("( )")))
    return text


PLAIN = HEAD + STEM + network("s", "y") + "}"


def condition(limit: float, name: str = "c") -> str:
    return f"""m_{name} = ReduceMean <keepdims = 0> (x)  l_{name} = Constant <value_float = {limit}> ()
        {name} = Greater (m_{name}, l_{name}) """


def branch(limit: float) -> str:
    """Return a model with a network in one branch; the other one is taken where the mean is below the limit."""
    return (
        HEAD
        + STEM
        + condition(limit)
        + f"""y = If (c) <
            then_branch = t () => (float[1,10] yt) {{ {network("s", "yt", "t_")} }},
            else_branch = e () => (float[1,10] ye) {{ {network("s", "ye", "e_")} }}> }}"""
    )


def quantized(proto: onnx.ModelProto, recipe: object, samples: object = None) -> quantry.QuantizationResult:
    return quantry.quantize(proto.SerializeToString(), samples or SAMPLES, recipe, store=None)


def decibels(proto: onnx.ModelProto, content: bytes, samples: list[dict[str, np.ndarray]] = SAMPLES) -> float:
    before, after = ort.InferenceSession(proto.SerializeToString()), ort.InferenceSession(content)
    pairs = [(before.run(None, sample)[0], after.run(None, sample)[0]) for sample in samples]
    noise = sum(np.square(a - b).sum() for a, b in pairs)
    return float(10 * np.log10(sum(np.square(a).sum() for a, _ in pairs) / noise))


def bodies(content: bytes) -> list[onnx.GraphProto]:
    found, graphs = [], [onnx.load_model_from_string(content).graph]
    while graphs:
        graph = graphs.pop()
        inner = [entry.g for node in graph.node for entry in node.attribute if entry.type == entry.GRAPH]
        found += inner
        graphs += inner
    return found


def pairs(graph: onnx.GraphProto) -> int:
    """Return how many activations a graph quantizes."""
    return sum("Quantize" in node.op_type and "Dequantize" not in node.op_type for node in graph.node)


@pytest.mark.parametrize("preset", ["CPU_INT8", "XINT8", "A16W8", "S8S8_AAWS"])
def test_a_network_in_a_branch_is_as_accurate_as_without_control_flow(preset: str) -> None:
    plain, proto = from_text(PLAIN, **WEIGHTS), from_text(branch(-9.0), **WEIGHTS)
    result = quantized(proto, preset)
    content = result.to_bytes()
    then, other = bodies(content)
    assert pairs(then) >= 4
    assert not pairs(other)
    assert decibels(proto, content) > decibels(plain, quantized(plain, preset).to_bytes()) - 1.0
    assert any(re.search(r"then_branch of 'If_5': (\d+) of \1 nodes quantized", str(note)) for note in result.notes)
    assert any("else_branch" in str(note) and "no calibration sample runs it" in str(note) for note in result.notes)
    assert result.guard is not None
    assert result.guard.sqnr > 20


NESTED = (
    HEAD
    + STEM
    + condition(0.0)
    + condition(0.05, "d")
    + f"""y = If (c) <
        then_branch = t () => (float[1,10] yt) {{
            t1 = Conv <pads = [1,1,1,1]> (s, w4)  t2 = Relu (t1)
            yt = If (d) <
                then_branch = tt () => (float[1,10] ytt) {{ {network("t2", "ytt", "tt_")} }},
                else_branch = te () => (float[1,10] yte) {{ {network("s", "yte", "te_")} }}> }},
        else_branch = e () => (float[1,10] ye) {{ {network("s", "ye", "e_")} }}> }}"""
)

LOOP = (
    HEAD
    + STEM
    + """
    m = ReduceSum <keepdims = 0> (x)  k = Abs (m)  k0 = Cast <to = 7> (k)  two = Constant <value_int = 2> ()
    k1 = Mod (k0, two)  n = Add (k1, two)  yes = Constant <value = bool {1}> ()
    z = Loop (n, yes, s) <body = l (int64 i, bool before, float[1,8,12,12] state)
        => (bool after, float[1,8,12,12] next) {
        after = Identity (before)
        a = Conv <pads = [1,1,1,1]> (state, w5)  b = Relu (a)  d = Conv <pads = [1,1,1,1]> (b, w6)
        e = Add (d, s)  next = Relu (e) }>"""
    + network("z", "y")
    + "}"
)

GROWING = """<ir_version: 8, opset_import: ["": 16]> g (float[1,8] x) => (float[rows,8] y) {
    n = Constant <value_int = 4> ()  yes = Constant <value = bool {1}> ()
    y = Loop (n, yes, x) <body = l (int64 i, bool before, float[rows_in,8] state)
        => (bool after, float[rows_out,8] next) {
        after = Identity (before)  a = MatMul (state, v)  b = Tanh (a)  next = Concat <axis = 0> (state, b) }> }"""

SCAN = """<ir_version: 8, opset_import: ["": 16]> g (float[steps,4,16] x) => (float[4,steps,16] y) {
    h = MatMul (x, v)
    last, y = Scan <num_scan_inputs = 1, scan_output_axes = [1], scan_input_directions = [1],
        body = l (float[4,16] state, float[4,16] row) => (float[4,16] next, float[4,16] out) {
        a = MatMul (state, u)  b = Add (a, row)  next = Tanh (b)  out = MatMul (next, u) }> (start, h) }"""

MORE = {"w4": values(8, 8, 3, 3), "w5": values(8, 8, 3, 3), "w6": values(8, 8, 3, 3) / 2}
RECURRENT = {"v": values(16, 16), "u": values(16, 16), "start": np.zeros((4, 16), np.float32)}
STEPS = [{"x": RANDOM.standard_normal((2 + index % 3, 4, 16)).astype(np.float32)} for index in range(8)]
ROWS = [{"x": RANDOM.standard_normal((1, 8)).astype(np.float32)} for index in range(8)]


def case(name: str) -> tuple[onnx.ModelProto, list[dict[str, np.ndarray]]]:
    if name == "nested":
        return from_text(NESTED, **WEIGHTS, w4=MORE["w4"]), SAMPLES
    if name == "loop":
        return from_text(LOOP, **WEIGHTS, w5=MORE["w5"], w6=MORE["w6"]), SAMPLES
    if name == "growing":
        return from_text(GROWING, v=RECURRENT["v"][:8, :8]), ROWS
    return from_text(SCAN, **RECURRENT), STEPS


@pytest.mark.parametrize("preset", ["CPU_INT8", "XINT8", "A16W8"])
@pytest.mark.parametrize("name", ["nested", "loop", "growing", "scan"])
def test_activations_in_every_kind_of_body_are_integers(name: str, preset: str) -> None:
    proto, samples = case(name)
    content = quantized(proto, preset, samples).to_bytes()
    for body in bodies(content):
        assert pairs(body) >= 2, body.name
    least = {"CPU_INT8": 26, "XINT8": 20, "A16W8": 34}[preset]
    assert decibels(proto, content, samples) > least


def test_names_and_types_of_a_recipe_apply_inside_bodies() -> None:
    proto, recipe = from_text(branch(-9.0), **WEIGHTS), PRESETS["A8W8"].recipe
    before = quantized(proto, recipe)
    wide = TensorTypes(match=("t_r1",), spec=TensorSpec(DataType.INT16))
    given = GivenRange("t_r2", lowest=(0.0,), highest=(64.0,))
    changed = replace(
        recipe,
        plan=replace(recipe.plan, selection=Selection(exclude=("t_c2",)), tensors=(wide,)),
        scale=replace(recipe.scale, given=(given,)),
    )
    after = quantized(proto, changed)
    assert len(after.plan.all_quantized) == len(before.plan.all_quantized) - 1
    then = next(body for body in bodies(after.to_bytes()) if body.name == "t")
    inputs = {node.name: list(node.input) for node in then.node}
    (excluded,) = [node for node in then.node if "t_c2" in node.output]
    assert "t_r1" in excluded.input[0]
    assert excluded.input[1] == "w2"
    constants = {entry.name: numpy_helper.to_array(entry) for entry in then.initializer}
    zero_points = {
        name: constants[entry[2]].dtype for name, entry in inputs.items() if name.endswith("_QuantizeLinear")
    }
    assert zero_points["If_5.then_branch/t_r1_QuantizeLinear"] == np.int16
    scale = constants[inputs["If_5.then_branch/t_r2_QuantizeLinear"][1]]
    assert scale == pytest.approx(64 / 127, rel=0.02)


@pytest.mark.parametrize("recipe", ["option", "exclude"])
def test_bodies_can_stay_float(recipe: str) -> None:
    proto, start = from_text(branch(-9.0), **WEIGHTS), PRESETS["A8W8"].recipe
    changes = {"option": {"body_activations": False}, "exclude": {"selection": Selection(exclude=("If_5",))}}
    content = quantized(proto, replace(start, plan=replace(start.plan, **changes[recipe]))).to_bytes()
    assert not any(map(pairs, bodies(content)))


def test_with_and_without_a_store_the_bytes_are_the_same(tmp_path: Path) -> None:
    proto, samples = case("loop")
    first = quantry.quantize(proto.SerializeToString(), samples, "XINT8", store=tmp_path).to_bytes()
    stored = quantry.quantize(proto.SerializeToString(), samples, "XINT8", store=tmp_path)
    assert stored.to_bytes() == first == quantized(proto, "XINT8", samples).to_bytes()
    assert not [entry.stage for entry in stored.trace.entries if entry.outcome == "computed" and entry.stage != "emit"]


def test_what_cannot_be_observed_keeps_quantized_weights_and_says_why() -> None:
    text = """<ir_version: 8, opset_import: ["": 16]> g (float[4,16] x) => (float[4,16] y) {
        q = SequenceConstruct (x, x)  m = ReduceMean <keepdims = 0> (x)  o = Constant <value_float = -9.0> ()
        c = Greater (m, o)
        y = If (c) <
            then_branch = t () => (float[4,16] a) {
                i = Constant <value_int = 1> ()  b = SequenceAt (q, i)  a = MatMul (b, v) },
            else_branch = e () => (float[4,16] d) { d = Tanh (x) }> }"""
    proto = from_text(text, v=RECURRENT["v"])
    samples = [{"x": RANDOM.standard_normal((4, 16)).astype(np.float32)} for _ in range(4)]
    result = quantized(proto, "CPU_INT8", samples)
    assert any("it reads 'q', which is not a tensor of ordinary numbers" in str(note) for note in result.notes)
    content = result.to_bytes()
    assert not any(map(pairs, bodies(content)))
    assert all(
        entry.data_type != onnx.TensorProto.FLOAT or len(entry.dims) < 2
        for entry in onnx.load_model_from_string(content).graph.initializer
    )


def test_diagnosis_names_rounding_in_bodies_and_the_list_of_nodes_shows_them(tmp_path: Path) -> None:
    proto = from_text(branch(-9.0), **WEIGHTS)
    recipe = PRESETS["A8W8"].recipe
    coarse = replace(recipe, plan=replace(recipe.plan, weight=TensorSpec(DataType.INT4)))
    titles = [finding.title for finding in quantry.diagnose(quantized(proto, coarse)).findings]
    assert any("rounding inside the bodies of control flow" in title for title in titles)
    onnx.save(proto, tmp_path / "model.onnx")
    listed = CliRunner().invoke(app, ["nodes", str(tmp_path / "model.onnx")], env={"COLUMNS": "200"})
    rows = {line.split()[0]: line for line in listed.stdout.splitlines() if line.strip()}
    assert "int8" in rows["Conv_6"]
    assert "like the main graph" in rows["If_5"]


@pytest.mark.parametrize("name", ["loop", "nested"])
def test_bodies_are_translated_with_the_model(name: str) -> None:
    proto, samples = case(name)
    recipe = replace(PRESETS["XINT8"].recipe, emit=EmitOptions(VitisQdq(VitisDialect.VAI)))
    vendor = quantized(proto, recipe, samples).to_bytes()
    assert all(any(node.domain for node in body.node) for body in bodies(vendor))
    for target in QdqDialect:
        content = serialize(translate(ir.from_proto(onnx.load_model_from_string(vendor)), target))
        if target in (QdqDialect.QDQ, QdqDialect.STANDARD, QdqDialect.ORT_CPU):
            assert not any(node.domain == "com.vai.quantize" for body in bodies(content) for node in body.node)
        first, second = ort.InferenceSession(vendor), ort.InferenceSession(content)
        for sample in samples[:3]:
            np.testing.assert_array_equal(first.run(None, sample)[0], second.run(None, sample)[0], str(target))


def test_mixed_precision_says_that_bodies_keep_their_types() -> None:
    result = quantized(from_text(branch(-9.0), **WEIGHTS), "S16S16_MIXED_S8S8")
    assert any("inside bodies of control flow keep the types" in str(note) for note in result.notes)
    assert any("then_branch of 'If_5': 8 of 8 nodes quantized" in str(note) for note in result.notes)
    assert len(result.plan.inside) == 8


ONLY_A_BODY = """<ir_version: 8, opset_import: ["": 16]> g (float[4,16] x) => (float[4,16] y) {
    n = Constant <value_int = 2> ()  yes = Constant <value = bool {1}> ()
    y = Loop (n, yes, x) <body = l (int64 i, bool before, float[4,16] state) => (bool after, float[4,16] next) {
        after = Identity (before)  a = MatMul (state, v)  next = Tanh (a) }> }"""


@pytest.mark.parametrize("preset", ["RECOMMENDED-CPU-W4A8-MIXED", "S16S16_MIXED_S8S8", "UINT8_DYNAMIC_QUANT"])
def test_a_model_may_have_all_its_layers_in_a_body(preset: str) -> None:
    proto = from_text(ONLY_A_BODY, v=RECURRENT["v"])
    samples = [{"x": RANDOM.standard_normal((4, 16)).astype(np.float32)} for _ in range(4)]
    result = quantized(proto, preset, samples)
    assert decibels(proto, result.to_bytes(), samples) > 12
    assert not any("nothing was quantized" in str(note) for note in result.notes)
    mixed = [note for note in result.notes if "inside bodies of control flow keep the types" in str(note)]
    assert len(mixed) == ("MIXED" in preset)
