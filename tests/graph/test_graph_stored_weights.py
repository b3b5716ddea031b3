"""Large weights read straight from a file: what onnx reads, and errors that are the parser's."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantry.errors import ModelError
from quantry.graph import stored_weights
from quantry.graph.float_model import model_fingerprint
from quantry.graph.load import read_model
from quantry.graph.stored_weights import cut_bytes, cut_file, mentions_in_file

RANDOM = np.random.default_rng(0)
TYPES = [np.float32, np.float16, np.float64, np.int8, np.int64, np.uint8, ml_dtypes.bfloat16]


def model(*arrays: np.ndarray) -> onnx.ModelProto:
    weights = [numpy_helper.from_array(array, f"w{index}") for index, array in enumerate(arrays)]
    nodes = [helper.make_node("Shape", [weight.name], [f"y{weight.name}"]) for weight in weights]
    outputs = [helper.make_tensor_value_info(node.output[0], TensorProto.INT64, [2]) for node in nodes]
    graph = helper.make_graph(nodes, "g", [], outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def large(dtype: type = np.float32) -> np.ndarray:
    return (RANDOM.standard_normal((600, 512)) * 50).astype(dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_weights_are_those_that_onnx_reads(dtype: type, tmp_path: Path) -> None:
    proto = model(large(dtype), np.arange(5, dtype=np.float32), large(np.float32))
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    content, weights = cut_file(path)
    assert set(weights) == {"w0", "w2"}
    assert len(content) < 2000
    for loaded in (read_model(path), read_model(path.read_bytes())):
        for tensor in proto.graph.initializer:
            found = loaded.graph.initializers[tensor.name].const_value
            assert found is not None
            expected = numpy_helper.to_array(tensor)
            assert found.numpy().flags.aligned
            np.testing.assert_array_equal(found.numpy().view(np.uint8), expected.view(np.uint8))
            assert found.numpy().dtype == expected.dtype


def test_tensors_that_are_not_plain_are_left_to_the_parser() -> None:
    typed = model(large())
    values = large().reshape(-1)
    typed.graph.initializer.append(helper.make_tensor("typed", TensorProto.FLOAT, [len(values)], values.tolist()))
    packed = helper.make_tensor("packed", TensorProto.INT4, [1 << 16], bytes(1 << 15), raw=True)
    typed.graph.initializer.append(packed)
    content, weights = cut_bytes(typed.SerializeToString())
    assert set(weights) == {"w0"}
    rest = onnx.ModelProto.FromString(content).graph.initializer
    assert [tensor.SerializeToString() for tensor in rest[1:]] == [
        tensor.SerializeToString() for tensor in typed.graph.initializer[1:]
    ]


def test_files_change_after_loading_without_effect(tmp_path: Path) -> None:
    path, array = tmp_path / "m.onnx", large()
    onnx.save(model(array), path)
    loaded = read_model(path)
    path.write_bytes(b"")
    tensor = loaded.graph.initializers["w0"].const_value
    assert tensor is not None
    np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("change", ["short", "long", "twice", "unnamed"])
def test_wrong_weights_are_refused(change: str) -> None:
    proto = model(large(), large())
    tensor = proto.graph.initializer[0]
    if change == "twice":
        tensor.name = "w1"
    elif change == "unnamed":
        tensor.name = ""
    else:
        tensor.dims[0] += 1 if change == "short" else -1
    with pytest.raises(ModelError):
        read_model(proto.SerializeToString())


def test_damaged_bytes_are_read_as_the_parser_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = model(large(np.int8), large(np.int8)).SerializeToString()
    monkeypatch.setattr(stored_weights, "_WORTH", 0)
    outcomes = []
    for _ in range(60):
        damaged = bytearray(whole)
        # Most damage must hit the few bytes that are not weights.
        for place in RANDOM.integers(0, 120, 2):
            damaged[place if RANDOM.random() < 0.7 else len(damaged) - 1 - place] = RANDOM.integers(256)
        found = []
        for limit in (0, 1 << 40):
            monkeypatch.setattr(stored_weights, "_WORTH", limit)
            try:
                found.append(model_fingerprint(read_model(bytes(damaged))))
            except ModelError as error:
                found.append(type(error))
        assert found[0] == found[1]
        outcomes.append(isinstance(found[0], type))
    assert 5 < sum(outcomes) < 55


def test_text_is_found_outside_of_weights_only(tmp_path: Path) -> None:
    inside = np.frombuffer(b"location" * (1 << 17), np.uint8)
    path = tmp_path / "m.onnx"
    onnx.save(model(inside), path)
    assert not mentions_in_file(path, b"location")
    assert mentions_in_file(path, b"yw0")
    onnx.save(model(large()), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert mentions_in_file(path, b"location")
