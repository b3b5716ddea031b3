"""Dynamic quantization against a numpy reference and against onnxruntime's own quantize_dynamic."""

from collections import Counter
from pathlib import Path

import emit_cases as cases
import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import quantry
from quantry.errors import RecipeError
from quantry.recipe import (
    DataType,
    Dynamic,
    EmitOptions,
    FloatBias,
    OwnBias,
    PerChannel,
    PerTensor,
    PlanOptions,
    Recipe,
    TensorSpec,
)

INTEGERS = ("ConvInteger", "MatMulInteger", "DynamicQuantizeLinear")


def recipe(dtype: DataType, *, per_channel: bool = False, symmetric: bool = True) -> Recipe:
    spec = TensorSpec(dtype, symmetric, PerChannel() if per_channel else PerTensor())
    return Recipe(plan=PlanOptions(weight=spec, weights_only=True), emit=EmitOptions(Dynamic()))


def model(text: str, constants: dict[str, np.ndarray]) -> bytes:
    parsed = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    parsed.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    return parsed.SerializeToString()


def run(data: bytes, feeds: dict[str, np.ndarray], *, optimized: bool = False) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    return ort.InferenceSession(data, options, ["CPUExecutionProvider"]).run(None, feeds)


def dynamic_uint8(x: np.ndarray) -> tuple[np.ndarray, np.float32, np.uint8]:
    """What DynamicQuantizeLinear is defined to give."""
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    scale = np.float32((high - low) / np.float32(255))
    zero_point = np.uint8(np.clip(np.rint(-low / scale), 0, 255))
    return np.clip(np.rint(x / scale) + zero_point, 0, 255).astype(np.uint8), scale, zero_point


def levels(weight: np.ndarray, axis: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric int8 by the largest magnitude."""
    others = None if axis is None else tuple(index for index in range(weight.ndim) if index != axis)
    scale = (np.abs(weight).max(axis=others, keepdims=axis is not None).astype(np.float64) / 127).astype(np.float32)
    return np.clip(np.rint(weight / scale), -128, 127).astype(np.int32), scale


@pytest.mark.parametrize("per_channel", [False, True])
def test_matmul_is_what_numpy_computes(per_channel: bool) -> None:
    rng = np.random.default_rng(3)
    weight = rng.normal(size=(6, 5)).astype(np.float32)
    x = rng.normal(size=(2, 4, 6)).astype(np.float32)
    source = model("g (float[2,4,6] x) => (float[2,4,5] y) { y = MatMul (x, w) }", {"w": weight})
    written = quantry.quantize(source, recipe=recipe(DataType.INT8, per_channel=per_channel), store=None)
    integers, scale = levels(weight, 1 if per_channel else None)
    data, step, offset = dynamic_uint8(x)
    expected = ((data.astype(np.int32) - offset) @ integers).astype(np.float32) * (step * scale.reshape(-1))
    np.testing.assert_array_equal(run(written.to_bytes(), {"x": x})[0], expected)


@pytest.mark.parametrize("per_channel", [False, True])
def test_convolution_with_bias_is_what_numpy_computes(per_channel: bool) -> None:
    rng = np.random.default_rng(4)
    weight, bias = rng.normal(size=(5, 3, 1, 1)).astype(np.float32), rng.normal(size=5).astype(np.float32)
    x = rng.normal(size=(2, 3, 4, 4)).astype(np.float32)
    source = model("g (float[2,3,4,4] x) => (float[2,5,4,4] y) { y = Conv (x, w, b) }", {"w": weight, "b": bias})
    written = quantry.quantize(source, recipe=recipe(DataType.INT8, per_channel=per_channel), store=None)
    integers, scale = levels(weight, 0 if per_channel else None)
    data, step, offset = dynamic_uint8(x)
    sums = np.einsum("nchw,oc->nohw", data.astype(np.int32) - offset, integers[:, :, 0, 0])
    expected = sums.astype(np.float32) * (step * scale.reshape(-1, 1, 1)) + bias.reshape(-1, 1, 1)
    np.testing.assert_array_equal(run(written.to_bytes(), {"x": x})[0], expected)


def test_gemm_keeps_its_factors_and_transpositions() -> None:
    rng = np.random.default_rng(5)
    weight, bias = rng.normal(size=(5, 6)).astype(np.float32), rng.normal(size=5).astype(np.float32)
    x = rng.normal(size=(6, 4)).astype(np.float32)
    gemm = "Gemm <transA = 1, transB = 1, alpha = 0.5, beta = 2.0>"
    source = model(f"g (float[6,4] x) => (float[4,5] y) {{ y = {gemm} (x, w, b) }}", {"w": weight, "b": bias})
    written = quantry.quantize(source, recipe=recipe(DataType.INT8, per_channel=True), store=None)
    exact = 0.5 * x.T @ weight.T + 2 * bias
    assert cases.sqnr(exact, run(written.to_bytes(), {"x": x})[0]) > 35


def test_zero_point_of_an_asymmetric_weight_counts() -> None:
    rng = np.random.default_rng(6)
    weight = rng.uniform(0.5, 2.0, size=(4, 3, 3, 3)).astype(np.float32)
    x = rng.normal(size=(1, 3, 6, 6)).astype(np.float32)
    source = model("g (float[1,3,6,6] x) => (float[1,4,4,4] y) { y = Conv (x, w) }", {"w": weight})
    written = quantry.quantize(source, recipe=recipe(DataType.UINT8, symmetric=False), store=None)
    assert cases.sqnr(run(source, {"x": x})[0], run(written.to_bytes(), {"x": x})[0]) > 35


@pytest.mark.parametrize("weight", [QuantType.QUInt8, QuantType.QInt8])
def test_nodes_and_results_are_those_of_onnxruntime(tmp_path: Path, weight: QuantType) -> None:
    (tmp_path / "float.onnx").write_bytes(cases.float_bytes())
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "theirs.onnx", weight_type=weight)
    theirs = (tmp_path / "theirs.onnx").read_bytes()
    unsigned = weight == QuantType.QUInt8
    asked = recipe(DataType.UINT8 if unsigned else DataType.INT8, symmetric=not unsigned)
    ours = quantry.quantize(cases.float_bytes(), recipe=asked, store=None).to_bytes()
    counts = [Counter(node.op_type for node in onnx.load_from_string(data).graph.node) for data in (ours, theirs)]
    assert [counts[0][name] for name in INTEGERS] == [counts[1][name] for name in INTEGERS] == [3, 1, 4]
    for sample in cases.samples():
        for our, their in zip(run(ours, sample), run(theirs, sample), strict=True):
            np.testing.assert_allclose(our, their, atol=1e-5)


def test_optimized_session_computes_the_same() -> None:
    ours = quantry.quantize(cases.float_bytes(), recipe=recipe(DataType.INT8, per_channel=True), store=None).to_bytes()
    for sample in cases.samples():
        for plain, fused in zip(run(ours, sample), run(ours, sample, optimized=True), strict=True):
            np.testing.assert_allclose(plain, fused, atol=1e-5)


def test_weight_of_an_operator_without_integer_kernel_is_restored_before_it() -> None:
    weight = np.random.default_rng(8).normal(size=(3, 4, 2, 2)).astype(np.float32)
    source = model("g (float[1,3,4,4] x) => (float[1,4,5,5] y) { y = ConvTranspose (x, w) }", {"w": weight})
    written = onnx.load_from_string(quantry.quantize(source, recipe=recipe(DataType.INT8), store=None).to_bytes())
    assert [node.op_type for node in written.graph.node] == ["DequantizeLinear", "ConvTranspose"]


def test_no_data_are_read_and_no_float_pass_runs() -> None:
    result = quantry.quantize(cases.float_bytes(), recipe=recipe(DataType.INT8), store=None)
    assert result.stages.statistics is None
    assert "observe" not in {entry.stage for entry in result.trace.entries}


@pytest.mark.parametrize(
    ("plan", "match"),
    [
        (PlanOptions(), "plan.weights_only must be True"),
        (PlanOptions(weights_only=True, weight=TensorSpec(DataType.INT4)), "must be int8 or uint8"),
        (PlanOptions(weights_only=True, bias=OwnBias()), "must be FloatBias"),
        (
            PlanOptions(
                weights_only=True,
                weight=TensorSpec(DataType.UINT8, symmetric=False, granularity=PerChannel()),
                bias=FloatBias(),
            ),
            "one zero point",
        ),
    ],
)
def test_plan_that_it_cannot_write_raises(plan: PlanOptions, match: str) -> None:
    with pytest.raises(RecipeError, match=match):
        Recipe(plan=plan, emit=EmitOptions(Dynamic()))
