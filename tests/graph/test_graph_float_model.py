import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnx_oracle import from_text, graph_from_text
from quantry.errors import ModelError
from quantry.graph import float_model as float_model_module
from quantry.graph.float_model import FloatModel, InputSignature
from quantry.graph.load import model_source
from quantry.graph.save import serialize
from quantry.memo import Memo, MemoryStore, fingerprint
from quantry.prepare import prepare
from quantry.recipe import PrepareOptions

TEXT = """<ir_version: 7, opset_import: ["": 11, "acme": 1, "unused": 1]>
g (float[n, 3, 8, 8] x, float[4, 3, 3, 3] w) => (float y, float z) <float[n, 4, 6, 6] c> {
  c = Conv(x, w, b)
  d = BatchNormalization(c, gamma, beta, mean, var)
  e = Clip(d, low, high)
  s = Shape(e)
  i = Constant<value = int64[1] {0}>()
  n0 = Gather<axis = 0>(s, i)
  m = Constant<value = int64[1] {-1}>()
  t = Concat<axis = 0>(n0, m)
  f = Reshape(e, t)
  o = acme.Double(f)
  y = Gemm(o, v, b2)
  k = Cast<to = 9>(n0)
  q = Squeeze<axes = [0]>(k)
  z = If(q)<then_branch = th () => (float p) { h = Conv(x, w, b) p = Relu(h) },
            else_branch = el () => (float r) { r = Softmax<axis = 1>(x) }>
}
<domain: "acme", opset_import: ["": 11]> Double (a) => (b) { b = Add(a, a) }"""


def _proto() -> onnx.ModelProto:
    random = np.random.default_rng(5)
    shapes = {"w": (4, 3, 3, 3), "b": 4, "gamma": 4, "beta": 4, "mean": 4, "v": (144, 5), "b2": 5}
    weights = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    weights |= {"var": np.ones(4, np.float32), "low": np.float32(0), "high": np.float32(6)}
    return from_text(TEXT, **weights)


@pytest.fixture
def prepared() -> FloatModel:
    return prepare(model_source(_proto()), PrepareOptions())


def _everything(model: ir.Model) -> list[object]:
    """Return names, order, types and shapes of all that a later stage could look at."""
    return [
        [
            [(value.name, str(value.type), str(value.shape)) for value in graph.inputs],
            [(value.name, str(value.type), str(value.shape)) for value in graph.outputs],
            [
                (name, value.const_value.dtype, value.const_value.numpy().tobytes())
                for name, value in graph.initializers.items()
            ],
            [
                (
                    node.name,
                    node.op_type,
                    node.domain,
                    [v and v.name for v in node.inputs],
                    sorted(node.attributes),
                    [(v.name, str(v.type), str(v.shape)) for v in node.outputs],
                )
                for node in graph
            ],
        ]
        for graph in model.graphs()
    ]


def test_model_read_back_from_its_blob_is_the_same(prepared):
    back = FloatModel.from_blob(prepared.to_blob())
    assert _everything(back.model) == _everything(prepared.model)
    assert list(back.model.functions) == list(prepared.model.functions)
    assert dict(back.model.opset_imports) == dict(prepared.model.opset_imports)
    assert back.notes == prepared.notes
    assert serialize(back.model) == serialize(prepared.model)
    assert fingerprint(back) == fingerprint(prepared)
    assert back.to_blob().digest() == prepared.to_blob().digest()


def test_same_model_twice_gives_the_same_bytes(prepared):
    again = prepare(model_source(_proto().SerializeToString()), PrepareOptions())
    assert serialize(again.model) == serialize(prepared.model)
    assert fingerprint(again) == fingerprint(prepared)


def test_another_process_gives_the_same_bytes(prepared, tmp_path):
    (tmp_path / "m.onnx").write_bytes(_proto().SerializeToString())
    code = """
import hashlib, sys
from quantry.memo import fingerprint
from quantry.graph.load import model_source
from quantry.graph.save import serialize
from quantry.prepare import prepare
from quantry.recipe import PrepareOptions
prepared = prepare(model_source(sys.argv[1]), PrepareOptions())
sys.stdout.write(fingerprint(prepared) + " " + hashlib.sha256(serialize(prepared.model)).hexdigest())
"""
    results = {
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "m.onnx")],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(results) == 1
    assert results.pop().startswith(fingerprint(prepared) + " ")


def test_memo_hands_out_the_same_model():
    memo = Memo(MemoryStore())
    source, options = model_source(_proto()), PrepareOptions()
    first = memo.run(prepare, source, options)
    bytes_of_first = serialize(first.value.model)
    second = Memo(memo.store).run(prepare, source, options)
    assert second.digest == first.digest == fingerprint(first.value)
    assert serialize(second.value.model) == bytes_of_first


def test_inputs_are_the_real_ones_with_their_axes(prepared):
    assert prepared.inputs == (InputSignature("x", np.dtype(np.float32), ("n", 3, 8, 8)),)


def test_input_axis_of_unknown_length_is_none():
    model = graph_from_text('<ir_version: 8, opset_import: ["": 17]> g (int64[2] x) => (int64 y) { y = Neg(x) }')
    model.graph.inputs[0].shape = ir.Shape([2, None])
    assert FloatModel(model).inputs == (InputSignature("x", np.dtype(np.int64), (2, None)),)


def test_input_without_a_rank_is_an_error():
    model = graph_from_text('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float y) { y = Neg(x) }')
    model.graph.inputs[0].shape = None
    with pytest.raises(ModelError, match=r"declared type and rank.*input 'x'"):
        _ = FloatModel(model).inputs


def test_opset(prepared):
    assert prepared.opset == 13


def test_fingerprint_depends_on_structure_and_weights_but_not_on_notes(prepared):
    other = prepared.model.clone()
    other.graph.initializers["v"].const_value = ir.tensor(np.zeros((144, 5), np.float32), name="v")
    renamed = prepared.model.clone()
    renamed.graph.node(0).name = "renamed"
    variants = [
        prepared,
        FloatModel(other, prepared.notes),
        FloatModel(renamed, prepared.notes),
    ]
    assert len({fingerprint(variant) for variant in variants}) == 3
    assert prepared.notes
    assert fingerprint(FloatModel(prepared.model)) == fingerprint(prepared)


def test_large_model_has_no_blob(prepared, monkeypatch):
    monkeypatch.setattr(float_model_module, "KEEP_BELOW_BYTES", 100)
    assert prepared.to_blob() is None
    assert fingerprint(prepared)


def test_importing_the_stage_loads_nothing_heavy():
    code = "import sys, quantry.prepare; sys.exit(any(m in sys.modules for m in ('torch', 'onnxruntime', 'optuna')))"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)
