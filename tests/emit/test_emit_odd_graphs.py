"""Graphs that are legal and unusual: what is written must load and compute the same in deployment."""

import stat
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import quantry
from quantry.errors import ModelError, RecipeError
from quantry.recipe import DataType, OwnBias, PerChannel, PlanOptions, Recipe, TensorSpec


def model(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    parsed = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    parsed.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return parsed


def weight(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


def deployed(source: onnx.ModelProto, recipe: object = "CPU_INT8", shape: tuple[int, ...] = (4, 5)) -> list[np.ndarray]:
    sample = {"x": np.random.default_rng(1).normal(size=shape).astype(np.float32)}
    result = quantry.quantize(source, [sample], recipe, store=None)
    session = ort.InferenceSession(result.to_bytes())
    reference = ort.InferenceSession(source.SerializeToString()).run(None, sample)
    outputs = session.run(None, sample)
    for float_output, output in zip(reference, outputs, strict=True):
        np.testing.assert_allclose(output, float_output, atol=0.05 * np.abs(float_output).max())
    return outputs


def test_gemm_with_one_bias_for_all_channels() -> None:
    deployed(model("g (float[4,5] x) => (float[4,3] y) { y = Gemm(x, w, b) }", w=weight(5, 3), b=weight(1)))


@pytest.mark.parametrize("stack", [1, 2])
def test_product_with_a_stack_of_matrices(stack: int) -> None:
    source = model(f"g (float[{stack},4,5] x) => (float[{stack},4,6] y) {{ y = MatMul(x, w) }}", w=weight(stack, 5, 6))
    deployed(source, shape=(stack, 4, 5))


def test_input_that_is_an_output_too_keeps_its_name() -> None:
    source = model("g (float[4,5] x) => (float[4,5] y, float[4,5] x) { y = Relu(x) }")
    np.testing.assert_array_equal(deployed(source)[1], np.random.default_rng(1).normal(size=(4, 5)).astype(np.float32))


@pytest.mark.parametrize("output", ["w", "b"])
def test_constant_that_is_an_output_too_stays(output: str) -> None:
    source = model("g (float[4,5] x) => (float[4,3] y) { y = Gemm(x, w, b) }", w=weight(5, 3), b=weight(3))
    shape = {"w": [5, 3], "b": [3]}[output]
    source.graph.output.append(helper.make_tensor_value_info(output, 1, shape))
    deployed(source)


def test_new_names_avoid_those_inside_branches() -> None:
    text = """g (float[4,5] x, bool c) => (float[4,5] y, float[4,5] z) {
        y = Relu(x)
        z = If (c) <
            then_branch = t () => (float[4,5] x_scale) { x_scale = Neg(x) },
            else_branch = e () => (float[4,5] y_zero_point) { y_zero_point = Abs(x) }
        >
    }"""
    sample = {"x": weight(4, 5), "c": np.array(1, bool)}
    result = quantry.quantize(model(text), [sample], "CPU_INT8", store=None)
    ort.InferenceSession(result.to_bytes()).run(None, sample)


def test_constant_data_with_a_computed_weight_stays_float() -> None:
    source = model("g (float[5,4] x) => (float[3,4] y) { y = Gemm(a, x) }", a=weight(3, 5))
    result = quantry.quantize(source, [weight(5, 4)], "CPU_INT8", store=None)
    assert "constant" in result.declined[0].reason


def test_tensor_without_elements_needs_no_range() -> None:
    text = """g (float[4,5] x) => (float[4,5] y) { b = Constant<value_ints = [0]>() r = Sigmoid(x)
        e = Slice(r, b, b, b) t = Tanh(e) y = Concat<axis = 0>(r, t) }"""
    deployed(model(text), {"plan": {"float_final_joins": False}})


def test_wide_bias_with_its_own_scale_raises_next_to_eight_bits() -> None:
    with pytest.raises(RecipeError, match="integer kernels expect a 32-bit bias"):
        Recipe(plan=PlanOptions(bias=OwnBias(TensorSpec(DataType.INT32))))


@pytest.mark.parametrize("axis", [0, 7, -5])
def test_channel_axis_that_is_not_the_operators_raises(axis: int) -> None:
    source = model("g (float[4,5] x) => (float[4,3] y) { y = Gemm(x, w) }", w=weight(5, 3))
    recipe = Recipe(plan=PlanOptions(weight=TensorSpec(granularity=PerChannel(axis))))
    with pytest.raises(RecipeError, match="axis of output channels, which is 1"):
        quantry.quantize(source, [weight(4, 5)], recipe, store=None)


def test_saving_keeps_modes_and_refuses_what_is_no_file(tmp_path: Path) -> None:
    source = model("g (float[4,5] x) => (float[4,5] y) { y = Relu(x) }")
    result = quantry.quantize(source, [weight(4, 5)], "CPU_INT8", store=None)
    real, link = tmp_path / "real.onnx", tmp_path / "link.onnx"
    real.write_bytes(b"old")
    real.chmod(0o640)
    link.symlink_to(real)
    for path in (link, "/dev/null", tmp_path, ""):
        with pytest.raises(ModelError, match="regular file"):
            result.save(path)
    assert real.read_bytes() == b"old"
    assert result.save(real) == (real,)
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert real.read_bytes() == result.to_bytes()


def test_malformed_tensor_is_a_model_error() -> None:
    source = model("g (float[4,5] x) => (float[4,3] y) { y = Gemm(x, w) }", w=weight(5, 3))
    source.graph.initializer[0].raw_data = b"\\0" * 7
    with pytest.raises(ModelError, match="well formed"):
        quantry.quantize(source, [weight(4, 5)], "CPU_INT8", store=None)


def test_no_constant_is_left_after() -> None:
    text = """g (float[4,5] x) => (float[4,3] y) { lo = Constant<value_float = 0.0>() hi = Constant<value_float = 6.0>()
        h = Gemm(x, w) c = Clip(h, lo, hi) y = Gemm(c, v) }"""
    source = model(text, w=weight(5, 3), v=weight(3, 3))
    recipe = {"equalize": {"cross_layer": {"clip6_to_relu": True}}}
    result = quantry.quantize(source, [weight(4, 5)], recipe, store=None)
    assert all(value.uses() for value in result.model.graph.initializers.values())
