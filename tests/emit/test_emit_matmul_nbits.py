"""Weights alone, as MatMulNBits and as DequantizeLinear, against a numpy reference."""

from collections import Counter
from dataclasses import replace

import emit_cases as cases
import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from test_emit_dynamic import model, run

import quantry
from quantry.emit.matmul_nbits import pack
from quantry.errors import RecipeError
from quantry.recipe import (
    DataType,
    EmitOptions,
    MatMulNBits,
    OwnBias,
    PerChannel,
    PerGroup,
    PlanOptions,
    Qdq,
    QOperator,
    Recipe,
    TensorSpec,
    resolve_recipe,
)

TYPES = (DataType.INT4, DataType.UINT4, DataType.INT8, DataType.UINT8)


def recipe(spec: TensorSpec, level: int = 1) -> Recipe:
    return Recipe(plan=PlanOptions(weight=spec, weights_only=True), emit=EmitOptions(MatMulNBits(level)))


def reference(weight: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """What is left of a matrix [K, N] whose columns are cut into groups; written without our own code."""
    assert isinstance(spec.granularity, PerGroup)
    size, low, high = spec.granularity.size, spec.dtype.lowest, spec.dtype.highest
    result = np.empty_like(weight)
    for start in range(0, len(weight), size):
        group = weight[start : start + size].astype(np.float64)
        if spec.symmetric:
            scale = np.abs(group).max(axis=0) / (2 ** (spec.dtype.bits - 1) - 1)
            centre = np.full(scale.shape, 0 if low else (high + 1) // 2)
        else:
            ends = np.minimum(group.min(axis=0), 0), np.maximum(group.max(axis=0), 0)
            scale = (ends[1] - ends[0]) / (high - low)
            centre = np.clip(np.rint(low - ends[0] / scale), low, high)
        step = scale.astype(np.float32)
        integers = np.clip(np.rint(weight[start : start + size] / step) + centre, low, high)
        result[start : start + size] = (integers - centre).astype(np.float32) * step
    return result


def restored(written: onnx.ModelProto) -> np.ndarray:
    """Unpack the weight of the only MatMulNBits to [K, N], as its specification says."""
    (node,) = (node for node in written.graph.node if node.op_type == "MatMulNBits")
    attributes = {entry.name: entry.i for entry in node.attribute}
    constants = {entry.name: numpy_helper.to_array(entry) for entry in written.graph.initializer}
    packed, scales = constants[node.input[1]], constants[node.input[2]]
    bits, groups = attributes["bits"], packed.shape[1]

    def unpacked(data: np.ndarray, count: int) -> np.ndarray:
        parts = [(data >> (bits * index)) & (2**bits - 1) for index in range(8 // bits)]
        return np.stack(parts, axis=-1).reshape(*data.shape[:-1], -1)[..., :count].astype(np.int64)

    integers = unpacked(packed, attributes["block_size"])
    offsets = np.full((attributes["N"], groups), 2 ** (bits - 1))
    if len(node.input) > 3:
        offsets = unpacked(constants[node.input[3]], groups)
    floats = (integers - offsets[..., None]).astype(np.float32) * scales[..., None]
    return floats.reshape(attributes["N"], -1)[:, : attributes["K"]].T


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("size", [16, 32, 64, 128, 256])
def test_packed_weight_and_product_are_those_of_numpy(dtype: DataType, symmetric: bool, size: int) -> None:
    rng = np.random.default_rng(size)
    weight = rng.normal(size=(70, 6)).astype(np.float32) + np.float32(0.3)
    x = rng.normal(size=(2, 3, 70)).astype(np.float32)
    spec = TensorSpec(dtype, symmetric, PerGroup(size))
    source = model("g (float[2,3,70] x) => (float[2,3,6] y) { y = MatMul (x, w) }", {"w": weight})
    written = quantry.quantize(source, recipe=recipe(spec), store=None).to_bytes()
    np.testing.assert_array_equal(restored(onnx.load_from_string(written)), reference(weight, spec))
    np.testing.assert_allclose(run(written, {"x": x})[0], x @ reference(weight, spec), atol=1e-4)


@given(
    st.integers(1, 40).flatmap(lambda count: st.lists(st.integers(0, 15), min_size=count, max_size=count)),
    st.sampled_from([4, 8]),
)
def test_packed_integers_come_back(levels: list[int], bits: int) -> None:
    packed = pack(np.array([levels]), bits)
    parts = [(packed >> (bits * index)) & (2**bits - 1) for index in range(8 // bits)]
    assert np.stack(parts, axis=-1).reshape(-1)[: len(levels)].tolist() == levels


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(TYPES), st.booleans(), st.integers(1, 40), st.integers(1, 5))
def test_standard_pairs_hold_the_same_weights(dtype: DataType, symmetric: bool, rows: int, columns: int) -> None:
    weight = np.random.default_rng(rows).normal(size=(rows, columns)).astype(np.float32)
    spec = TensorSpec(dtype, symmetric, PerGroup(16))
    source = model(f"g (float[1,{rows}] x) => (float[1,{columns}] y) {{ y = MatMul (x, w) }}", {"w": weight})
    asked = replace(recipe(spec), emit=EmitOptions(Qdq()))
    written = quantry.quantize(source, recipe=asked, store=None).to_bytes()
    eye = np.eye(rows, dtype=np.float32)
    got = np.concatenate([run(written, {"x": row[None]})[0] for row in eye])
    np.testing.assert_array_equal(got, reference(weight, spec))


def test_gemm_becomes_a_product_and_an_addition() -> None:
    rng = np.random.default_rng(5)
    weight, bias = rng.normal(size=(5, 40)).astype(np.float32), rng.normal(size=5).astype(np.float32)
    x = rng.normal(size=(40, 4)).astype(np.float32)
    gemm = "Gemm <transA = 1, transB = 1, alpha = 0.5, beta = 2.0>"
    source = model(f"g (float[40,4] x) => (float[4,5] y) {{ y = {gemm} (x, w, b) }}", {"w": weight, "b": bias})
    spec = TensorSpec(DataType.INT4, granularity=PerGroup(32))
    written = quantry.quantize(source, recipe=recipe(spec), store=None).to_bytes()
    operators = [node.op_type for node in onnx.load_from_string(written).graph.node]
    assert operators == ["Transpose", "MatMulNBits", "Add"]
    expected = 0.5 * x.T @ reference(weight.T, spec) + 2 * bias
    np.testing.assert_allclose(run(written, {"x": x})[0], expected, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 5), (), (1,)], ids=str)
def test_gemm_has_groups_whatever_the_shape_of_its_bias(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(6)
    weight, bias = rng.normal(size=(40, 5)).astype(np.float32), rng.normal(size=shape).astype(np.float32)
    x = rng.normal(size=(4, 40)).astype(np.float32)
    source = model("g (float[4,40] x) => (float[4,5] y) { y = Gemm (x, w, b) }", {"w": weight, "b": bias})
    spec = TensorSpec(DataType.INT4, granularity=PerGroup(32))
    written = quantry.quantize(source, recipe=recipe(spec), store=None).to_bytes()
    assert [node.op_type for node in onnx.load_from_string(written).graph.node] == ["MatMulNBits", "Add"]
    np.testing.assert_allclose(run(written, {"x": x})[0], x @ reference(weight, spec) + bias, atol=1e-5)


@pytest.mark.parametrize("level", [0, 1, 4])
def test_accuracy_level_is_written(level: int) -> None:
    spec = TensorSpec(DataType.INT4, granularity=PerGroup(16))
    written = onnx.load_from_string(
        quantry.quantize(cases.float_bytes(), recipe=recipe(spec, level), store=None).to_bytes()
    )
    (node,) = (node for node in written.graph.node if node.op_type == "MatMulNBits")
    assert {entry.name: entry.i for entry in node.attribute}["accuracy_level"] == level


def test_both_forms_of_a_network_agree() -> None:
    spec = TensorSpec(DataType.INT4, granularity=PerGroup(16))
    packed = quantry.quantize(cases.float_bytes(), recipe=recipe(spec), store=None)
    pairs = quantry.quantize(cases.float_bytes(), recipe=replace(recipe(spec), emit=EmitOptions(Qdq())), store=None)
    operators = Counter(node.op_type for node in pairs.model.graph)
    assert operators["DequantizeLinear"] == 4
    assert operators["QuantizeLinear"] == 0
    for sample in cases.samples():
        for one, other in zip(run(packed.to_bytes(), sample), run(pairs.to_bytes(), sample), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(
    ("plan", "emitted", "match"),
    [
        (PlanOptions(), MatMulNBits(), "plan.weights_only must be True"),
        (PlanOptions(weights_only=True), MatMulNBits(), "must be PerGroup"),
        (PlanOptions(weights_only=True), QOperator(), "operators read integer activations"),
        (
            PlanOptions(weight=TensorSpec(DataType.INT4, granularity=PerGroup())),
            Qdq(),
            "one scale for all values it adds up",
        ),
        (
            PlanOptions(weight=TensorSpec(granularity=PerGroup()), weights_only=True, bias=OwnBias()),
            MatMulNBits(),
            "must be FloatBias",
        ),
    ],
)
def test_plan_that_does_not_go_with_the_format_raises(plan: PlanOptions, emitted: object, match: str) -> None:
    with pytest.raises(RecipeError, match=match):
        Recipe(plan=plan, emit=EmitOptions(emitted))


def test_size_of_a_group_and_accuracy_level_have_few_values() -> None:
    with pytest.raises(RecipeError, match=r"PerGroup.size must be one of \(16, 32"):
        PerGroup(24)
    with pytest.raises(RecipeError, match="accuracy_level must be one of"):
        MatMulNBits(5)
    with pytest.raises(RecipeError, match="PerGroup"):
        TensorSpec(DataType.INT16, granularity=PerGroup())
    with pytest.raises(RecipeError, match="PerTensor"):
        PlanOptions(activation=TensorSpec(DataType.INT8, granularity=PerGroup()))


def test_weights_alone_go_with_every_pair_format() -> None:
    spec = TensorSpec(DataType.INT8, granularity=PerChannel())
    asked = Recipe(plan=PlanOptions(weight=spec, weights_only=True, bias=OwnBias(TensorSpec(DataType.INT32))))
    result = quantry.quantize(cases.float_bytes(), recipe=asked, store=None)
    assert Counter(node.op_type for node in result.model.graph)["DequantizeLinear"] == 8
    sample = cases.samples()[0]
    for one, other in zip(run(cases.float_bytes(), sample), run(result.to_bytes(), sample), strict=True):
        assert cases.sqnr(one, other) > 40


@pytest.mark.parametrize("heavy_tails", [False, True])
@pytest.mark.parametrize("symmetric", [True, False])
def test_error_is_at_most_that_of_onnxruntime_at_equal_settings(heavy_tails: bool, symmetric: bool) -> None:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    generator = np.random.default_rng(3)
    draw = generator.standard_t(4, (300, 64)) if heavy_tails else generator.normal(size=(300, 64))
    matrix = (draw * 0.05).astype(np.float32)
    value = onnx.helper.make_tensor_value_info
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")],
            "g",
            [value("x", 1, [None, 300])],
            [value("y", 1, [None, 64])],
            [onnx.numpy_helper.from_array(matrix, "w")],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=8,
    )
    recipe, _ = resolve_recipe("MATMUL_NBITS")
    if not symmetric:
        spec = replace(recipe.plan.weight, dtype=DataType.UINT4, symmetric=False)
        recipe = replace(recipe, plan=replace(recipe.plan, weight=spec))
    ours = quantry.quantize(model, None, recipe, store=None).to_bytes()
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    peer = MatMulNBitsQuantizer(copy, block_size=128, is_symmetric=symmetric)
    peer.process()
    x = generator.normal(size=(64, 300)).astype(np.float32)

    def error(content: bytes) -> float:
        (y,) = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, {"x": x})
        return float(((y - x @ matrix) ** 2).mean())

    assert error(ours) < error(peer.model.model.SerializeToString())
