"""dump_model."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from facade_models import Reader, cnn, run, samples

from quantry.errors import DataError, ModelError
from quantry.onnx import ModelQuantizer, PowerOfTwoMethod, VitisQuantFormat, dump_model, get_default_config


def quantized(**settings: object) -> onnx.ModelProto:
    config = get_default_config("XINT8")
    for name, value in settings.items():
        setattr(config, name, value)
    model = ModelQuantizer(config).quantize_model(cnn(), None, Reader())
    assert model is not None
    return model


def test_integers_of_every_pair_and_weight_are_written(tmp_path: Path) -> None:
    model = quantized()
    dump_model(model, Reader(), tmp_path)
    pairs = [node.output[0] for node in model.graph.node if node.op_type == "QuantizeLinear"]
    assert {f"{name}.bin" for name in pairs} <= {path.name for path in tmp_path.iterdir()}
    assert (tmp_path / "w1_quantized.bin").is_file()
    shown = onnx.ModelProto.FromString(model.SerializeToString())
    shown.graph.output.append(onnx.helper.make_empty_tensor_value_info(pairs[0]))
    reference = run(shown, samples(1)[0])[-1]
    np.testing.assert_array_equal(np.fromfile(tmp_path / f"{pairs[0]}.bin", reference.dtype), reference.reshape(-1))
    np.testing.assert_array_equal(np.loadtxt(tmp_path / f"{pairs[0]}.txt", dtype=int), reference.reshape(-1))


def test_fix_neurons_are_written(tmp_path: Path) -> None:
    model = quantized(quant_format=VitisQuantFormat.FixNeuron, calibrate_method=PowerOfTwoMethod.MinMSE)
    dump_model(model, None, tmp_path / "results")
    count = sum(node.op_type == "FixNeuron" for node in model.graph.node)
    assert len(list((tmp_path / "results").glob("*.bin"))) == count


def test_float_tensors_are_written_on_request(tmp_path: Path) -> None:
    dump_model(quantized(), Reader(), tmp_path / "some")
    dump_model(quantized(), Reader(), tmp_path / "all", dump_float=True)
    some, everything = ({path.name for path in (tmp_path / name).iterdir()} for name in ("some", "all"))
    assert some < everything


def test_float_model_and_empty_reader_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="quantized"):
        dump_model(cnn(), Reader(), tmp_path)
    with pytest.raises(DataError, match="sample left"):
        dump_model(quantized(), Reader([]), tmp_path)


def test_tensors_with_similar_names_have_separate_files(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[1,4] x) => (float[1,4] y)
        <float s = {0.5}, float t = {0.25}, int8 z = {0}> {
            a = QuantizeLinear(x, s, z)
            b = QuantizeLinear(x, t, z)
            c = DequantizeLinear(a, s, z)
            d = DequantizeLinear(b, t, z)
            y = Add(c, d)
        }"""
    )
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [{"a": "n/q", "b": "n_q"}.get(name, name) for name in names]
    dump_model(model, None, tmp_path)
    assert {path.name for path in tmp_path.glob("*.bin")} == {"n_q.bin", "n_q_2.bin"}
    assert (tmp_path / "n_q.bin").read_bytes() != (tmp_path / "n_q_2.bin").read_bytes()
