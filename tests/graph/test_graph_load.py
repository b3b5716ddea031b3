import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnx_oracle import from_text, op_types
from quantry.errors import ModelError, ModelNotFoundError
from quantry.graph.load import ModelSource, model_source, read_model
from quantry.memo import fingerprint

TEXT = """<ir_version: 8, opset_import: ["": 17]> g (float[1, 4] x) => (float[1, 4] y) { h = Add(x, w) y = Relu(h) }"""


@pytest.fixture
def proto() -> onnx.ModelProto:
    return from_text(TEXT, w=np.arange(4, dtype=np.float32))


@pytest.fixture
def path(proto, tmp_path):
    target = tmp_path / "model.onnx"
    onnx.save(proto, target)
    return target


def test_every_form_loads_the_same_graph(proto, path):
    for form in (path, str(path), path.read_bytes(), proto, ir.from_proto(proto)):
        model = model_source(form).load()
        assert op_types(model) == ["Add", "Relu"]
        np.testing.assert_array_equal(model.graph.initializers["w"].const_value.numpy(), np.arange(4))


def test_load_gives_a_fresh_graph_each_time(proto, path):
    for form in (path, path.read_bytes(), proto, ir.from_proto(proto)):
        source = model_source(form)
        first = source.load()
        first.graph.remove(list(first.graph)[-1])
        assert op_types(source.load()) == ["Add", "Relu"]


def test_label_is_the_path_or_says_in_memory(proto, path):
    assert model_source(path).label == str(path)
    assert model_source(proto).label == "in-memory model"


def test_source_of_a_source_is_itself(path):
    source = model_source(path)
    assert isinstance(source, ModelSource)
    assert model_source(source) is source


def test_fingerprint_ignores_the_path(path, tmp_path):
    other = tmp_path / "elsewhere.onnx"
    other.write_bytes(path.read_bytes())
    assert fingerprint(model_source(path)) == fingerprint(model_source(other))


def test_fingerprint_changes_with_one_weight(proto):
    changed = from_text(TEXT, w=np.array([0, 1, 2, 4], np.float32))
    for form in (lambda p: p, ir.from_proto, lambda p: p.SerializeToString()):
        assert fingerprint(model_source(form(proto))) != fingerprint(model_source(form(changed)))


def test_fingerprint_is_hashed_once(path):
    source = model_source(path)
    before = fingerprint(source)
    path.unlink()
    assert fingerprint(source) == before


def _save_external(proto, folder):
    folder.mkdir()
    onnx.save(proto, folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    return folder / "m.onnx"


def test_fingerprint_covers_external_data(tmp_path):
    paths = [
        _save_external(from_text(TEXT, w=np.full(4, value, np.float32)), tmp_path / str(index))
        for index, value in enumerate((1, 1, 2))
    ]
    same, equal, other = (fingerprint(model_source(path)) for path in paths)
    assert same == equal != other


def test_external_weights_stay_on_disk_until_read(proto, tmp_path):
    model = read_model(_save_external(proto, tmp_path / "a"))
    tensor = model.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    np.testing.assert_array_equal(tensor.numpy(), np.arange(4))


def test_external_data_given_relative_to_the_working_folder(proto, tmp_path, monkeypatch):
    _save_external(proto, tmp_path / "a")
    monkeypatch.chdir(tmp_path / "a")
    assert model_source("m.onnx").load().graph.initializers["w"].const_value.numpy().sum() == 6
    assert model_source(ir.load("m.onnx")).load().graph.initializers["w"].const_value.numpy().sum() == 6


def test_proto_with_external_data_raises(proto, tmp_path):
    reference = onnx.load(_save_external(proto, tmp_path / "a"), load_external_data=False)
    with pytest.raises(ModelError, match=r"must contain its weights.*'m.data'.*pass the path"):
        model_source(reference).load()


def test_external_file_missing(proto, tmp_path):
    path = _save_external(proto, tmp_path / "a")
    (tmp_path / "a" / "m.data").unlink()
    with pytest.raises(ModelError, match=r"must exist next to the model.*m.data.*tensor 'w'"):
        read_model(path)


def test_external_file_too_short(proto, tmp_path):
    path = _save_external(proto, tmp_path / "a")
    (tmp_path / "a" / "m.data").write_bytes(b"\0" * 15)
    with pytest.raises(ModelError, match=r"must have at least 16 bytes, got a file of 15 bytes; tensor 'w'"):
        read_model(path)


def test_external_length_that_contradicts_the_shape(proto, tmp_path):
    path = _save_external(proto, tmp_path / "a")
    reference = onnx.load(path, load_external_data=False)
    next(entry for entry in reference.graph.initializer[0].external_data if entry.key == "length").value = "12"
    path.write_bytes(reference.SerializeToString())
    with pytest.raises(ModelError, match=r"must have the 16 bytes of its shape, got length 12"):
        read_model(path)


@pytest.mark.parametrize("location", ["../outside.data", "/outside.data"])
def test_external_file_outside_the_folder(proto, tmp_path, location):
    path = _save_external(proto, tmp_path / "a")
    reference = onnx.load(path, load_external_data=False)
    reference.graph.initializer[0].external_data[0].value = location
    path.write_bytes(reference.SerializeToString())
    with pytest.raises(ModelError, match=r"inside the model's folder.*outside.data"):
        read_model(path)


def test_external_file_with_hard_links(proto, tmp_path):
    path = _save_external(proto, tmp_path / "a")
    (tmp_path / "a" / "copy").hardlink_to(tmp_path / "a" / "m.data")
    with pytest.raises(ModelError, match=r"must not have hard links, got 2"):
        read_model(path)


def test_missing_file(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"must exist.*nothing.onnx"):
        model_source(tmp_path / "nothing.onnx").load()
    with pytest.raises(FileNotFoundError):
        read_model(tmp_path / "nothing.onnx")


def test_folder_instead_of_file(tmp_path):
    with pytest.raises(ModelError, match="got a folder"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "must not be empty, got 0 bytes", id="empty"),
        pytest.param(b"this is no model, it is a text\n" * 20, "do not decode", id="text"),
        pytest.param(b"PK\x03\x04" + bytes(range(256)), "do not decode", id="zip"),
        pytest.param(b"\x08\x08", "must contain a graph, got 2 bytes", id="no graph"),
    ],
)
def test_bytes_that_are_no_model(content, message, tmp_path):
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message) as caught:
        read_model(path)
    assert str(path) in str(caught.value)
    with pytest.raises(ModelError, match="in-memory model"):
        model_source(content).load()


def test_truncated_file(path):
    content = path.read_bytes()
    for length in (10, len(content) // 2, len(content) - 3):
        with pytest.raises(ModelError):
            read_model(content[:length])


def test_unusable_type():
    with pytest.raises(ModelError, match="got int"):
        model_source(3)


def test_sparse_weight_raises(proto):
    proto.graph.sparse_initializer.add().values.name = "thin"
    with pytest.raises(ModelError, match="must be dense, got the sparse initializer 'thin'"):
        model_source(proto).load()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param("{ y = Relu(x) y = Abs(x) }", "every tensor .* 'y' 2 times", id="outputs"),
        pytest.param("{ w = Relu(x) y = Abs(w) }", "every tensor .* 'w' 2 times", id="weight and output"),
        pytest.param("{ x = Relu(x) y = Abs(x) }", "every tensor .* 'x' 2 times", id="input and output"),
    ],
)
def test_duplicate_names(body, message):
    head = '<ir_version: 8, opset_import: ["": 17]> g (float[1, 4] x) => (float[1, 4] y) '
    with pytest.raises(ModelError, match=message):
        model_source(from_text(head + body, w=np.zeros(4, np.float32))).load()


def test_duplicate_initializer(proto):
    proto.graph.initializer.append(proto.graph.initializer[0])
    with pytest.raises(ModelError, match=r"every initializer .* 'w' 2 times"):
        model_source(proto).load()
