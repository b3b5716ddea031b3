"""The tools of quark.onnx.tools, as functions and as commands."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from facade_models import Reader, cnn, operators, run, samples, saved_cnn
from onnx import helper, numpy_helper

from quantry.compat import run_module
from quantry.errors import DataError, RecipeError
from quantry.onnx import ModelQuantizer, get_default_config
from quantry.onnx.model_tools import TOOLS


def tool(name: str) -> Any:
    return getattr(importlib.import_module(f"quantry.onnx.tools.{name}"), name)


def quantized(preset: str = "S8S8_AAWS") -> onnx.ModelProto:
    model = ModelQuantizer(get_default_config(preset)).quantize_model(cnn(), None, Reader())
    assert model is not None
    return model


def halves() -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "halves",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT16, [1, 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT16, [1, 3])],
        [numpy_helper.from_array(np.eye(4, 3, dtype=np.float16), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def closeness(model: onnx.ModelProto) -> float:
    reference = run(cnn(), samples(1)[0])[0]
    return float(np.abs(run(model, samples(1)[0])[0] - reference).max() / np.abs(reference).max())


def test_half_precision_becomes_single_and_others() -> None:
    single = tool("convert_fp16_to_fp32")(halves())
    assert run(single, {"x": np.ones((1, 4), np.float32)})[0].tolist() == [[1.0, 1.0, 1.0]]
    assert "MatMul" in {kind for _, kind in operators(tool("convert_fp16_to_bf16")(halves()))}


def test_bfloat16_is_written_with_casts_or_pairs() -> None:
    casts = tool("convert_fp32_to_bf16")(cnn())
    assert ("", "Cast") in operators(casts)
    assert closeness(casts) < 0.05
    pairs = tool("convert_fp32_to_bf16")(cnn(), format="vitisqdq")
    assert ("com.amd.quark", "ExtendedQuantizeLinear") in operators(pairs)
    with pytest.raises(RecipeError, match="--format must be with_cast or vitisqdq, got 'bf16'"):
        tool("convert_fp32_to_bf16")(cnn(), format="bf16")
    assert closeness(tool("convert_fp32_to_bfp16")(cnn())) < 0.1


def test_pairs_are_removed_and_weights_are_floats_again() -> None:
    for name, preset in (("remove_qdq", "S8S8_AAWS"), ("convert_quant_to_float", "A8W8")):
        plain = tool(name)(quantized(preset))
        assert not {kind for _, kind in operators(plain)} & {"QuantizeLinear", "DequantizeLinear"}
        assert closeness(plain) < 0.05


def test_pairs_become_integer_operators() -> None:
    model = tool("convert_qdq_to_qop")(quantized())
    assert ("", "QLinearConv") in operators(model)
    assert closeness(model) < 0.2


def test_inputs_shapes_opsets_and_weights() -> None:
    last = tool("convert_nchw_to_nhwc")(cnn())
    assert [size.dim_value for size in last.graph.input[0].type.tensor_type.shape.dim][1:] == [8, 8, 3]
    fixed = tool("convert_dynamic_to_fixed")(cnn(), fix_shapes="image:[2,3,8,8]")
    assert fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2
    assert {value.name for value in tool("fix_shapes")(fixed).graph.value_info} >= {"c1", "a1"}
    assert tool("convert_opset_version")(cnn(), target_opset=19).opset_import[0].version == 19
    model = halves()
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array([[np.inf]], np.float16), "w"))
    weight = numpy_helper.to_array(tool("replace_inf_weights")(model, replace_inf_value=5.0).graph.initializer[0])
    assert weight.tolist() == [[5.0]]


def test_command_takes_every_name_of_its_files(tmp_path: Path) -> None:
    source, target = saved_cnn(tmp_path), tmp_path / "q.onnx"
    run_module("quark.onnx.tools.random_quantize", ["--input_model", source, "--quant_model", str(target)])
    assert ("", "QuantizeLinear") in operators(onnx.load(target))
    plain = tmp_path / "plain.onnx"
    run_module("vai_q_onnx.tools.remove_qdq", ["--input_model_path", str(target), "--output", str(plain)])
    assert ("", "QuantizeLinear") not in operators(onnx.load(plain))
    with pytest.raises(RecipeError, match=r"must be a tool that quantry has, got quark\.onnx\.tools\.nothing"):
        run_module("quark.onnx.tools.nothing")


def test_evaluate_compares_two_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, shift in (("a", 0.0), ("b", 0.5)):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "x.npy", np.arange(12, dtype=np.float32).reshape(3, 4) + shift)
    folders = [str(tmp_path / folder) for folder in "ab"]
    run_module(
        "quark.onnx.tools.evaluate",
        ["--baseline_results_folder", folders[0], "--quantized_results_folder", folders[1]],
    )
    assert "1 files: cosine 0.99" in capsys.readouterr().out
    (tmp_path / "b" / "x.npy").unlink()
    with pytest.raises(DataError, match=r"got no x\.npy"):
        tool("evaluate")(*folders)


def test_every_tool_has_a_module() -> None:
    for name in TOOLS:
        assert callable(tool(name))
