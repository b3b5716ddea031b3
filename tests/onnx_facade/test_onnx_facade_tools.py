"""The tools of quark.onnx.tools, as functions and as commands."""

import argparse
import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from facade_models import Reader, cnn, operators, run, samples, saved_cnn
from onnx import helper, numpy_helper

from quantry.compat import run_module
from quantry.errors import DataError, ModelError, RecipeError
from quantry.onnx import (
    CalibrationMethod,
    ModelQuantizer,
    QuantFormat,
    QuantizationConfig,
    QuantType,
    get_default_config,
)
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
    with pytest.raises(RecipeError, match=r"--format must be with_cast, .*, got 'bf17'"):
        tool("convert_fp32_to_bf16")(cnn(), format="bf17")
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


def module(name: str) -> Any:
    """Return the module of a tool."""
    return importlib.import_module(f"quantry.onnx.tools.{name}")


def test_functions_take_the_forms_that_scripts_use(tmp_path: Path) -> None:
    source, made = saved_cnn(tmp_path), tmp_path / "made.onnx"
    module("convert_fp32_to_bfp16").convert_fp32_to_bfp16(str(source), str(made))
    assert run(onnx.load(made), samples()[0])
    pairs = tmp_path / "pairs.onnx"
    onnx.save(quantized(), pairs)
    module("convert_quant_to_float").convert_quant_to_float(pairs, float_model=tmp_path / "without.onnx")
    assert ("", "QuantizeLinear") not in operators(onnx.load(tmp_path / "without.onnx"))
    replaced = module("replace_inf_weights").replace_inf_in_onnx_weights(
        input_model=str(source), output_model=str(made), replace_inf_value=5.0
    )
    assert onnx.load(made).graph.node == replaced.graph.node
    given = argparse.Namespace(input=str(source), output=str(made), save_as_external_data=False)
    assert run(module("convert_fp16_to_fp32").convert(given), samples()[0])
    assert module("convert_customqdq_to_qdq").custom_ops_infer_shapes(quantized()).graph.value_info
    text, again = tmp_path / "model.txt", tmp_path / "again.onnx"
    module("convert_onnx_to_onnxtxt").convert_onnx_to_onnxtxt(str(source), str(text))
    module("convert_onnxtxt_to_onnx").convert(argparse.Namespace(input=str(text), output=str(again)))
    np.testing.assert_array_equal(run(onnx.load(again), samples()[0])[0], run(cnn(), samples()[0])[0])
    with pytest.raises(RecipeError, match="got none in remove_qdq"):
        module("remove_qdq").remove_qdq()


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


def wide(activation: str = "uint16") -> onnx.ModelProto:
    kinds = {"uint16": QuantType.QUInt16, "int8": QuantType.QInt8}
    config = QuantizationConfig(
        quant_format=QuantFormat.QDQ,
        calibrate_method=CalibrationMethod.MinMax,
        activation_type=kinds[activation],
        weight_type=QuantType.QUInt8 if activation == "uint16" else QuantType.QInt8,
    )
    model = ModelQuantizer(config).quantize_model(cnn(), None, Reader())
    assert model is not None
    return model


def types_of_pairs(model: onnx.ModelProto) -> set[int]:
    stored = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    return {stored[node.input[2]] for node in model.graph.node if node.op_type == "QuantizeLinear"}


@pytest.mark.parametrize(
    ("name", "source", "kind", "exact"),
    [
        ("convert_s8s8_to_u8s8", "int8", onnx.TensorProto.UINT8, True),
        ("convert_u16s8_to_s16s8", "uint16", onnx.TensorProto.INT16, True),
        ("convert_u16u8_to_u8u8", "uint16", onnx.TensorProto.UINT8, False),
    ],
)
def test_types_of_activations_are_changed(name: str, source: str, kind: int, exact: bool) -> None:
    before = wide(source)
    after = tool(name)(before)
    assert types_of_pairs(after) == {kind}
    old, new = run(before, samples(1)[0])[0], run(after, samples(1)[0])[0]
    np.testing.assert_allclose(new, old, atol=(1e-5 if exact else 0.06) * float(np.abs(old).max()))
    with pytest.raises(ModelError, match="must have activations of"):
        tool(name)(cnn())


def test_single_precision_becomes_half_and_keeps_its_ends_on_request() -> None:
    half = tool("convert_fp32_to_fp16")(cnn())
    assert half.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    kept = tool("convert_fp32_to_fp16")(cnn(), keep_io_types=True)
    assert kept.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert closeness(kept) < 0.01
    named = importlib.import_module("quantry.onnx.tools.float16").convert_float_to_float16(cnn(), keep_io_types=True)
    assert named == kept


def test_bfloat16_weights_alone_and_whole_models() -> None:
    assert 0 < closeness(tool("convert_fp32_to_bf16")(cnn(), format="simulate_bf16")) < 0.05
    whole = tool("convert_fp32_to_bf16")(cnn(), format="bf16")
    assert {tensor.data_type for tensor in whole.graph.initializer} <= {
        onnx.TensorProto.BFLOAT16,
        onnx.TensorProto.INT64,
    }
    onnx.checker.check_model(whole)
    assert ("com.amd.quark", "ExtendedQuantizeLinear") in operators(
        tool("convert_fp32_to_bf16")(cnn(), format="customqdq")
    )


def test_pairs_and_casts_of_bfloat16_are_exchanged_limited_and_removed() -> None:
    pairs = tool("convert_fp32_to_bf16")(cnn(), format="customqdq")
    casts = tool("replace_bfloat16_qdq_cast")(pairs)
    assert ("com.amd.quark", "ExtendedQuantizeLinear") not in operators(casts)
    np.testing.assert_allclose(run(casts, samples(1)[0])[0], run(pairs, samples(1)[0])[0], rtol=1e-5, atol=1e-5)
    limited = tool("insert_clip_bfloat16_qdq")(pairs)
    assert ("", "Clip") in operators(limited)
    np.testing.assert_allclose(run(limited, samples(1)[0])[0], run(pairs, samples(1)[0])[0], rtol=1e-5, atol=1e-5)
    assert ("", "Cast") not in operators(tool("remove_bf16_cast")(casts))


def test_biases_become_16_bits_and_models_for_npus_become_models_for_cpus() -> None:
    narrow = tool("convert_bias_int32_to_int16")(wide("int8"))
    assert onnx.TensorProto.INT16 in {tensor.data_type for tensor in narrow.graph.initializer}
    assert closeness(narrow) < 0.1
    npu = quantized("XINT8")
    cpu = tool("convert_a8w8_npu_to_a8w8_cpu")(npu)
    assert {domain for domain, kind in operators(cpu) if "Quantize" in kind} == {""}
    assert onnx.TensorProto.INT32 in {tensor.data_type for tensor in cpu.graph.initializer}
    np.testing.assert_allclose(run(cpu, samples(1)[0])[0], run(npu, samples(1)[0])[0], rtol=0.05, atol=0.05)
    assert {domain for domain, _ in operators(tool("convert_customqdq_to_qdq")(quantized("A16W8")))} == {""}


def test_pairs_between_operators_are_removed() -> None:
    model = wide("int8")
    after = tool("remove_qdq_between_ops")(model, "Sigmoid,Mul;Clip,Conv;Mul,GlobalAveragePool")
    before, found = (Counter(node.op_type for node in each.graph.node) for each in (model, after))
    assert found["QuantizeLinear"] < before["QuantizeLinear"]
    assert found["Conv"] == before["Conv"]
    assert closeness(after) < 0.2
    with pytest.raises(RecipeError, match="between_ops must be pairs"):
        tool("remove_qdq_between_ops")(model, "Conv")
    assert len(tool("remove_qdq_mul_add")(model).graph.node) == len(model.graph.node) - 2


def test_texts_and_pictures_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    saved = saved_cnn(tmp_path)
    importlib.import_module("quantry.onnx.tools.convert_onnx_to_onnxtxt").main(
        ["--input", str(saved), "--output", "model.onnxtxt"]
    )
    importlib.import_module("quantry.onnx.tools.convert_onnxtxt_to_onnx").main(
        ["--input", "model.onnxtxt", "--output", "again.onnx"]
    )
    np.testing.assert_array_equal(run(onnx.load("again.onnx"), samples(1)[0])[0], run(cnn(), samples(1)[0])[0])
    for name in ("save_weights_hist", "save_tensor_hist"):
        importlib.import_module(f"quantry.onnx.tools.{name}").main(["--input_model", str(saved), "--output_path", name])
        assert len(list(Path(name).glob("*.png"))) > 2
    onnx.save(wide("int8"), "int8.onnx")
    importlib.import_module("quantry.onnx.tools.print_a16w8_a8w8_nodes").main(["--input", "int8.onnx"])
    assert "A16W8: 0 nodes\nA8W8: " in capsys.readouterr().out
    Path("broken.onnxtxt").write_text("no model", encoding="utf-8")
    with pytest.raises(ModelError, match="text form"):
        tool("convert_onnxtxt_to_onnx")("broken.onnxtxt")


def test_scales_around_resizes_become_powers_of_two() -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Sigmoid", ["x"], ["s"], name="s"),
            helper.make_node("Resize", ["s", "", "scales"], ["y"], name="resize", mode="nearest"),
        ],
        "resize",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2, 4, 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 2, 8, 8])],
        [numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")],
    )
    float_model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    config = QuantizationConfig(quant_format=QuantFormat.QDQ, calibrate_method=CalibrationMethod.MinMax)
    sample = {"x": np.random.default_rng(0).normal(size=(1, 2, 4, 4)).astype(np.float32)}
    model = ModelQuantizer(config).quantize_model(float_model, None, iter([sample]))
    assert model is not None
    after = tool("convert_resize_fs_to_pof2s")(model)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in after.graph.initializer}
    resize = next(node for node in after.graph.node if node.op_type == "Resize")
    scales = [
        stored[n.input[1]] for n in after.graph.node if resize.output[0] in n.input or n.output[0] == resize.input[0]
    ]
    assert all(float(np.log2(scale)).is_integer() for scale in scales)
    np.testing.assert_allclose(run(after, sample)[0], run(float_model, sample)[0], atol=0.02)
