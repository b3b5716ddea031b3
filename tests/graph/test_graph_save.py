import stat

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from onnx_oracle import from_text, graph_from_text, run
from quantry.errors import ModelError
from quantry.graph.float_model import model_fingerprint
from quantry.graph.load import read_model
from quantry.graph.save import serialize, write_model
from quantry.graph.weights import all_weights

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[2, 300] x) => (float[2, 300] y, float[2, 300] z) {
  h = Add(x, w)
  s = Mul(h, scale)
  y = Reshape(s, shape)
  c = Constant<value = bool {1}>()
  z = If(c)<then_branch = t () => (float[2, 300] a) { a = Add(x, w) },
            else_branch = e () => (float[2, 300] b) { b = Sub(x, w) }>
}"""


@pytest.fixture
def model() -> ir.Model:
    random = np.random.default_rng(0)
    return graph_from_text(
        TEXT,
        w=random.standard_normal(300).astype(np.float32),
        scale=np.float32(0.5),
        shape=np.array([2, 300]),
    )


FEEDS = {"x": np.linspace(-1, 1, 600, dtype=np.float32).reshape(2, 300)}


def _assert_same(one, other):
    for name, array in run(one, FEEDS).items():
        np.testing.assert_array_equal(run(other, FEEDS)[name], array)


def test_bytes_are_a_model_that_onnx_and_onnxruntime_accept(model):
    content = serialize(model)
    proto = onnx.load_from_string(content)
    onnx.checker.check_model(proto, full_check=True)
    _assert_same(ir.to_proto(model), content)


def test_bytes_hold_the_same_weights_as_onnx_ir_writes(model):
    ours = {t.name: numpy_helper.to_array(t) for t in onnx.load_from_string(serialize(model)).graph.initializer}
    theirs = {t.name: numpy_helper.to_array(t) for t in ir.to_proto(model).graph.initializer}
    assert list(ours) == list(theirs)
    for name, array in theirs.items():
        assert ours[name].dtype == array.dtype
        np.testing.assert_array_equal(ours[name], array)


def test_bytes_are_the_same_after_a_round_trip(model):
    content = serialize(model)
    assert serialize(read_model(content)) == content
    assert serialize(model) == content


def test_bytes_do_not_depend_on_how_a_weight_was_stored():
    head = '<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y) '
    typed = from_text(head + "<float[4] w = {1.0, 2.0, 3.0, 4.0}> { y = Add(x, w) }")
    raw = from_text(head + "{ y = Add(x, w) }", w=np.array([1, 2, 3, 4], np.float32))
    assert typed.graph.initializer[0].float_data
    assert raw.graph.initializer[0].raw_data
    del typed.graph.value_info[:]
    assert serialize(ir.from_proto(typed)) == serialize(ir.from_proto(raw))


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(np.array(["ab", "c"], object), id="strings"),
        pytest.param(np.zeros((0, 3), np.float32), id="no elements"),
        pytest.param(np.array(7, np.int64), id="scalar"),
        pytest.param(np.array([True, False]), id="bool"),
        pytest.param(np.array([1, -8, 7], ml_dtypes.int4), id="int4"),
        pytest.param(np.array([1.5, -2], ml_dtypes.bfloat16), id="bfloat16"),
    ],
)
def test_every_type_of_weight_survives(array, tmp_path):
    proto = from_text('<ir_version: 10, opset_import: ["": 21]> g (float[1] x) => (float[1] y) { y = Relu(x) }')
    proto.graph.initializer.append(numpy_helper.from_array(array, "w"))
    paths = write_model(ir.from_proto(proto), tmp_path / "m.onnx", external_data_threshold=0)
    for back in (onnx.load_from_string(serialize(ir.from_proto(proto))), onnx.load(paths[0])):
        np.testing.assert_array_equal(numpy_helper.to_array(back.graph.initializer[0]), array)


def test_weights_of_a_subgraph_survive():
    branch = "t () => (float[2] a) <float[2] k = {1.0, 2.0}> { a = Add(x, k) }"
    other = "e () => (float[2] b) { b = Neg(x) }"
    model = graph_from_text(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x, bool c) => (float[2] y) '
        f"{{ y = If(c)<then_branch = {branch}, else_branch = {other}> }}"
    )
    content = serialize(model)
    assert serialize(read_model(content)) == content
    out = run(content, {"x": np.zeros(2, np.float32), "c": np.ones((), bool)})
    np.testing.assert_array_equal(out["y"], [1, 2])


def test_file_is_written_inline_by_default(model, tmp_path):
    paths = write_model(model, tmp_path / "deep" / "m.onnx")
    assert paths == (tmp_path / "deep" / "m.onnx",)
    assert paths[0].read_bytes() == serialize(model)
    assert [file.name for file in paths[0].parent.iterdir()] == ["m.onnx"]


def test_file_is_as_readable_as_the_umask_says(model, tmp_path):
    (path,) = write_model(model, tmp_path / "m.onnx")
    (tmp_path / "plain").write_bytes(b"")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_external_data_keeps_small_tensors_inline(model, tmp_path):
    paths = write_model(model, tmp_path / "m.onnx", external_data_threshold=100)
    assert [path.name for path in paths] == ["m.onnx", "m.onnx.data"]
    proto = onnx.load(paths[0], load_external_data=False)
    external = {t.name for t in proto.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL}
    assert external == {"w"}
    assert paths[1].stat().st_size == 1200
    _assert_same(model, str(paths[0]))


def test_model_with_external_data_is_left_as_it_was_and_reads_back_inline(model, tmp_path):
    expected = serialize(model)
    path, _ = write_model(model, tmp_path / "m.onnx", external_data_threshold=0)
    assert serialize(model) == expected
    back = read_model(path)
    assert isinstance(back.graph.initializers["w"].const_value, ir.ExternalTensor)
    assert serialize(back) == expected


def test_writing_a_model_over_its_own_external_data(model, tmp_path):
    path, _ = write_model(model, tmp_path / "m.onnx", external_data_threshold=0)
    write_model(read_model(path), path, external_data_threshold=0)
    assert serialize(read_model(path)) == serialize(model)


def test_two_writes_give_the_same_bytes(model, tmp_path):
    one = write_model(model, tmp_path / "a" / "m.onnx", external_data_threshold=0)
    two = write_model(model, tmp_path / "b" / "m.onnx", external_data_threshold=0)
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


def test_failure_leaves_nothing_after(model, tmp_path):
    def broken() -> ir.Tensor:
        raise OSError("disk on fire")

    model.graph.initializers["w"].const_value = ir.LazyTensor(broken, ir.DataType.FLOAT, ir.Shape([300]), name="w")
    (tmp_path / "m.onnx").write_bytes(b"old")
    for threshold in (0, 10**9):
        with pytest.raises(ModelError, match=r"writable folder with enough space.*disk on fire.*m.onnx"):
            write_model(model, tmp_path / "m.onnx", external_data_threshold=threshold)
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]
    assert (tmp_path / "m.onnx").read_bytes() == b"old"


def test_too_large_for_one_piece():
    model = graph_from_text('<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y) { y = Relu(x) }')
    huge = ir.LazyTensor(lambda: pytest.fail("read"), ir.DataType.FLOAT, ir.Shape([2**29]), name="w")
    model.graph.register_initializer(ir.Value(name="w", const_value=huge))
    with pytest.raises(ModelError, match=r"smaller than 2 GB.*2147483648 bytes"):
        serialize(model)


BRANCHES = """<ir_version: 10, opset_import: ["": 21]>
g (float[2] x, bool c) => (float[2] y) <float[2] w = {3.0, 4.0}> {
  h = Add(x, w)
  y = If(c)<then_branch = t () => (float[2] a) <float[2] k = {1.0, 2.0}> { a = Add(h, k) },
            else_branch = e () => (float[2] b) { b = Neg(h) }>
}"""


@pytest.mark.parametrize("write", [serialize, model_fingerprint])
def test_weights_stay_in_place_while_the_structure_is_written(write, monkeypatch):
    # Threads that share a store share models: another one may read them at this moment.
    model = graph_from_text(BRANCHES)
    before = {key: value.const_value for key, value in all_weights(model).items()}
    seen = []
    original = ir.serde.serialize_model

    def watched(given):
        seen.append({key: value.const_value for key, value in all_weights(model).items()})
        return original(given)

    monkeypatch.setattr(ir.serde, "serialize_model", watched)
    write(model)
    assert len(before) == 2
    assert seen == [before]
