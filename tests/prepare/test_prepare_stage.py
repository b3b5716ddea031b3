import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnx_oracle import assert_same_outputs, from_text, op_types, random_feeds, run
from quantry.graph.load import model_source, read_model
from quantry.graph.save import serialize, write_model
from quantry.prepare import prepare
from quantry.recipe import PrepareOptions

HEAD = '<ir_version: 8, opset_import: ["": 17]> g '

DATA = Path(os.environ.get("QUANTRY_DATA", Path(__file__).parents[3] / "shared" / "data"))
REAL = [
    "yolox_nano/yolox_nano.onnx",
    "mobilenetv2_035/mobilenetv2_035.onnx",
    "cifar10/resnet20.onnx",
    "yolox_tiny_click/yolox_tiny_click.onnx",
]


def _weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_everything_together_keeps_the_outputs():
    text = """(float[n, 3, 8, 8] x) => (float y) {
      i = Identity(x) c = Conv<pads = [1, 1, 1, 1]>(i, w, b) d = BatchNormalization(c, g, b, b, v) e = Relu(d)
      f = Conv<pads = [1, 1, 1, 1]>(e, u, b) h = Dropout(f) s = Shape(h) k = Gather<axis = 0>(s, two)
      j = Unsqueeze(k, zero) l = Concat<axis = 0>(zero, minus, j) r = Reshape(h, l) y = ReduceMean<axes = [2]>(r) }"""
    weights = {
        "w": _weights(4, 3, 3, 3),
        "u": _weights(4, 4, 3, 3),
        "b": _weights(4),
        "g": _weights(4),
        "v": np.ones(4, np.float32),
        "two": np.array(2),
        "zero": np.array([0]),
        "minus": np.array([-1]),
    }
    proto = from_text(HEAD + text, **weights)
    prepared = prepare(model_source(proto), PrepareOptions())
    assert_same_outputs(proto, prepared.model, rtol=1e-5)
    assert op_types(prepared.model) == ["Conv", "Relu", "Conv", "Reshape", "ReduceMean"]
    assert tuple(map(str, prepared.notes)) == (
        "axes of the inputs without a fixed length: x[0]=n",
        "named 12 nodes",
        "folded 3 nodes with constant inputs",
        "removed 1 Dropout nodes that return their input",
        "removed 1 Identity nodes that return their input",
        "folded 1 BatchNormalization nodes",
        "removed 1 nodes that no output needs",
        "removed 7 weights that no output needs",
    )


def test_every_option_can_be_switched_off():
    text = (
        "(float[2, 3] x) => (float y) { i = Identity(x) a = Neg(k) c = Gemm(i, w) d = BatchNormalization(c, s, s, s, s)"
    )
    proto = from_text(HEAD + text + " y = Mul(d, a) }", k=_weights(3), w=_weights(3, 3), s=np.ones(3, np.float32))
    off = PrepareOptions(infer_shapes=False, fold_constants=False, fold_batch_norm=False, remove_identities=False)
    prepared = prepare(model_source(proto), off)
    assert op_types(prepared.model) == ["Identity", "Neg", "Gemm", "BatchNormalization", "Mul"]
    assert_same_outputs(proto, prepared.model)
    assert all(value.shape is None for node in list(prepared.model.graph)[:-1] for value in node.outputs)


@pytest.mark.parametrize("name", ["fold_constants", "fold_batch_norm", "remove_identities"])
def test_each_option_works_alone(name):
    text = (
        "(float[2, 3] x) => (float y) { i = Identity(x) a = Neg(k) c = Gemm(i, w) d = BatchNormalization(c, s, s, s, s)"
    )
    proto = from_text(HEAD + text + " y = Mul(d, a) }", k=_weights(3), w=_weights(3, 3), s=np.ones(3, np.float32))
    off = dict.fromkeys(["fold_constants", "fold_batch_norm", "remove_identities"], False)
    prepared = prepare(model_source(proto), PrepareOptions(**off | {name: True}))
    gone = {"fold_constants": "Neg", "fold_batch_norm": "BatchNormalization", "remove_identities": "Identity"}
    assert {"Identity", "Neg", "BatchNormalization"} - set(op_types(prepared.model)) == {gone[name]}
    assert_same_outputs(proto, prepared.model, rtol=1e-6)


def test_clip6_becomes_relu_only_on_request():
    proto = from_text(HEAD + "(float[9] x) => (float y) { y = Clip(x, a, b) }", a=np.float32(0), b=np.float32(6))
    assert op_types(prepare(model_source(proto), PrepareOptions()).model) == ["Clip"]
    assert op_types(prepare(model_source(proto), PrepareOptions(clip6_to_relu=True)).model) == ["Relu"]


@pytest.mark.parametrize(("current", "wanted", "got"), [(11, None, 13), (17, None, 17), (17, 13, 17), (12, 21, 21)])
def test_opset_is_raised_but_never_lowered(current, wanted, got):
    proto = from_text(f'<ir_version: 7, opset_import: ["": {current}]> g (float[2] x) => (float y) {{ y = Relu(x) }}')
    prepared = prepare(model_source(proto), PrepareOptions(opset=wanted))
    assert prepared.opset == got
    assert prepared.model.ir_version <= 10
    assert (f"raised opset {current} to {got}" in map(str, prepared.notes)) == (current != got)


def test_source_is_not_changed():
    text = """(float[2] x) => (float y) { i = Identity(x) k = Constant<value = float[2] {1.0, 2.0}>() c = Add(i, k)
        y = If(t)<then_branch = a () => (float p) <float[2] w = {1.0, 2.0}> { p = Add(c, w) },
                  else_branch = b () => (float q) { q = Neg(c) }> }"""
    proto = from_text(HEAD + text, t=np.ones((), bool))
    before = proto.SerializeToString()
    prepared = prepare(model_source(proto), PrepareOptions())
    assert op_types(prepared.model) == ["Add", "Add"]
    serialize(prepared.model)
    assert proto.SerializeToString() == before
    model = ir.from_proto(proto)
    serialize(prepare(model_source(model), PrepareOptions()).model)
    assert ir.to_proto(model).SerializeToString() == ir.to_proto(ir.from_proto(proto)).SerializeToString()


def test_counts_of_several_rounds_are_added_up():
    text = "(float[2] x) => (float y) { a = Identity(x) b = Relu(a) c = Cast<to = 1>(b) d = Identity(c) e = Neg(k) "
    proto = from_text(HEAD + text + "s = Reshape(d, r) y = Add(s, e) }", k=_weights(2), r=np.array([2]))
    notes = prepare(model_source(proto), PrepareOptions()).notes
    assert "removed 2 Identity nodes that return their input" in map(str, notes)


def test_ir_version_is_one_that_every_supported_onnxruntime_loads():
    text = HEAD.replace("ir_version: 8", "ir_version: 13") + "(float[2] x) => (float y) { y = Relu(x) }"
    assert prepare(model_source(from_text(text)), PrepareOptions()).model.ir_version == 10


def test_names_that_exist_are_kept():
    proto = from_text(HEAD + "(float[2] x) => (float out) { [conv_in] h = Relu(x) [last] out = Neg(h) }")
    graph = prepare(model_source(proto), PrepareOptions()).model.graph
    assert [(node.name, node.outputs[0].name) for node in graph] == [("conv_in", "h"), ("last", "out")]


def test_loop_body_that_reads_outer_values():
    text = """(float[2] x) => (float[2] y) { t = Identity(k) z = Identity(x) y = Loop(n, c, z)<
        body = b (int64 i, bool ci, float[2] s) => (bool co, float[2] so) {
          co = Identity(ci) w = Identity(t) p = Mul(s, w) so = Add(p, z) }> }"""
    proto = from_text(HEAD + text, k=_weights(2), n=np.array(3), c=np.ones((), bool))
    prepared = prepare(model_source(proto), PrepareOptions())
    assert_same_outputs(proto, prepared.model)
    assert op_types(prepared.model) == ["Loop"]


def test_scan_body():
    text = """(float[5, 2] x) => (float[2] y, float[5, 2] z) { y, z = Scan<num_scan_inputs = 1,
        body = b (float[2] s, float[2] e) => (float[2] so, float[2] o) {
          h = Constant<value = float {0.5}>() q = Mul(s, h) so = Add(q, e) o = Identity(so) }>(init, x) }"""
    proto = from_text(HEAD + text, init=np.zeros(2, np.float32))
    assert_same_outputs(proto, prepare(model_source(proto), PrepareOptions()).model)


def test_functions_are_kept_and_domains_no_one_uses_are_not():
    text = """<ir_version: 8, opset_import: ["": 17, "acme": 1, "idle": 3]>
        g (float[2] x) => (float y) { y = acme.Half(x) }
        <domain: "acme", opset_import: ["": 17]>
        Half (a) => (b) { h = Constant<value = float {0.5}>() b = Mul(a, h) }"""
    proto = from_text(text)
    prepared = prepare(model_source(proto), PrepareOptions())
    assert dict(prepared.model.opset_imports) == {"": 17, "acme": 1}
    assert len(prepared.model.functions) == 1
    assert_same_outputs(proto, prepared.model)


@pytest.mark.parametrize("name", REAL)
def test_real_model(name):
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    prepared = prepare(model_source(path), PrepareOptions())
    proto = onnx.load(path)
    feeds = random_feeds(proto, dynamic=1)
    expected, actual = run(proto, feeds), run(prepared.model, feeds)
    for output, array in expected.items():
        np.testing.assert_allclose(actual[output], array, rtol=1e-5, atol=1e-5 * np.abs(array).max())
    values = [value for node in prepared.model.graph for value in node.outputs]
    assert all(value.shape is not None and value.dtype is not None for value in values)
    assert serialize(read_model(serialize(prepared.model))) == serialize(prepared.model)


MEASURE = """
import resource, sys
from quantry.memo import fingerprint
from quantry.graph.load import model_source
from quantry.graph.save import write_model
from quantry.prepare import prepare
from quantry.recipe import PrepareOptions
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
source = model_source(sys.argv[1])
fingerprint(source)
prepared = prepare(source, PrepareOptions(opset=21))
fingerprint(prepared)
write_model(prepared.model, sys.argv[2], external_data_threshold=0)
sys.stdout.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


def test_large_weights_are_never_all_in_memory(tmp_path):
    side, layers = 1024, 16  # 16 weights of 4 MB
    body = "".join(f"h{index + 1} = MatMul(h{index}, w{index}) " for index in range(layers))
    text = '<ir_version: 8, opset_import: ["": 12]> g (float[1, 1024] h0) => (float[1, 1024] y) { ' + body
    weights = {f"w{index}": np.full((side, side), index / 1e4, np.float32) for index in range(layers)}
    model = ir.from_proto(from_text(text + f"y = Relu(h{layers}) }}", **weights))
    path, _ = write_model(model, tmp_path / "m.onnx", external_data_threshold=0)
    out = tmp_path / "out.onnx"
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path), str(out)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) * 1024 < 40_000_000 < layers * side * side * 4
    np.testing.assert_array_equal(
        run(str(out), {"h0": np.ones((1, 1024), np.float32)})["y"],
        run(str(path), {"h0": np.ones((1, 1024), np.float32)})["y"],
    )
