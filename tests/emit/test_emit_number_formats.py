from collections.abc import Callable
from functools import cache

import block_reference
import emit_cases as cases
import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quantry.emit.blocks import BlockWriter
from quantry.emit.float_writer import FloatWriter
from quantry.emit.graph_editor import GraphEditor
from quantry.emit.local_functions import FunctionCollector, wide_function
from quantry.errors import RecipeError
from quantry.numerics.rounding import dequantize_array, quantize_array
from quantry.numerics.tensor_params import TensorParams
from quantry.recipe import (
    DataType,
    EmitOptions,
    FloatBias,
    OwnBias,
    PerBlock,
    PlanOptions,
    Qdq,
    Recipe,
    TensorSpec,
    VitisDialect,
    VitisQdq,
)

BLOCKS = [dtype for dtype in DataType if dtype.is_block]
TINY = float(np.finfo(np.float32).tiny)


def session(model: ir.Model) -> ort.InferenceSession:
    proto = ir.serde.serialize_model(model)
    onnx.checker.check_model(proto, full_check=True)
    return ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])


def identity(lengths: tuple[int | str, ...], opset: int) -> ir.Model:
    dims = ",".join(str(length) for length in lengths)
    text = (
        f'<ir_version: 10, opset_import: ["" : {opset}]> g (float[{dims}] x) => (float[{dims}] y) {{ y = Identity(x) }}'
    )
    return ir.serde.deserialize_model(onnx.parser.parse_model(text))


@cache
def block_session(
    dtype: DataType, axis: int, lengths: tuple[int | str, ...], size: int | None = None, opset: int = 17
) -> ort.InferenceSession:
    model = identity(lengths, opset)
    writer = BlockWriter(GraphEditor(model), TensorSpec(dtype, granularity=PerBlock(size, axis)))
    writer.write_pair("x")
    functions = FunctionCollector(model)
    writer.finish(functions)
    functions.finish()
    return session(model)


def assert_exact(dtype: DataType, x: np.ndarray, axis: int, size: int | None = None, opset: int = 17) -> None:
    unknown = tuple(f"d{index}" for index in range(x.ndim))
    actual = block_session(dtype, axis, unknown, size, opset).run(None, {"x": x})[0]
    expected = block_reference.reference(dtype.value, x, axis, size or dtype.block_size)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
@pytest.mark.parametrize("dtype", BLOCKS)
def test_block_format_is_exact_over_all_magnitudes(dtype: DataType, opset: int) -> None:
    rng = np.random.default_rng(2)
    x = (rng.normal(size=(3, 37, 2)) * np.exp2(rng.integers(-30, 30, size=(3, 37, 2)))).astype(np.float32)
    assert_exact(dtype, x, 1, opset=opset)


@pytest.mark.parametrize("dtype", BLOCKS)
@pytest.mark.parametrize(
    "values",
    [
        pytest.param([0.0] * 40, id="zeros"),
        pytest.param([1.5, 2.5, -0.5, 0.0078125, 1.0078125, 1.0234375, 3.0], id="ties"),
        pytest.param([2.0**e for e in range(-20, 20)], id="powers of two"),
        pytest.param(
            [np.nextafter(np.float32(2.0**e), np.float32(s)) for e in range(-9, 9) for s in (0, 9e9)], id="neighbours"
        ),
        pytest.param([1.999, -1.999, 1.9999999, 0.001], id="saturation"),
        pytest.param([3.4028235e38, -3.4028235e38, 1e38], id="largest"),
        pytest.param([TINY, TINY / 2, -TINY / 3, 1e-45, -1e-45, 0.0], id="denormals"),
        pytest.param([1.0, TINY / 2, 1e-45], id="denormals next to one"),
        pytest.param([np.nan, 1.3, -2.7], id="nan"),
        pytest.param([np.inf, 1.3, -np.inf], id="infinities"),
        pytest.param([1.3] * 40 + [np.nan], id="nan in the tail"),
    ],
)
def test_block_format_is_exact_at_the_edges(dtype: DataType, values: list[float]) -> None:
    assert_exact(dtype, np.array(values, np.float32).reshape(1, -1), 1)


@settings(max_examples=25, deadline=None)
@given(
    x=hnp.arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 40)), elements=st.floats(width=32)),
    dtype=st.sampled_from(BLOCKS),
)
def test_block_format_is_exact_for_any_floats(x: np.ndarray, dtype: DataType) -> None:
    assert_exact(dtype, x, 1)


@pytest.mark.parametrize(
    ("shape", "axis", "size"), [((5,), 0, 4), ((2, 3, 9), 2, 8), ((7, 2), 0, 2), ((2, 16, 1, 3), 1, None)]
)
@pytest.mark.parametrize("dtype", [DataType.BFP16, DataType.MX6, DataType.MXFP4E2M1])
def test_blocks_lie_along_any_axis_in_any_size(
    dtype: DataType, shape: tuple[int, ...], axis: int, size: int | None
) -> None:
    assert_exact(dtype, np.random.default_rng(4).normal(size=shape).astype(np.float32), axis, size)


@pytest.mark.parametrize(
    ("shape", "axis"), [((64,), 0), ((5,), 0), ((2, 64, 3), 1), ((2, 70, 2, 2), 1), ((2, 3, 40), 2)]
)
@pytest.mark.parametrize("dtype", BLOCKS)
def test_lengths_that_are_known_beforehand_give_the_same(dtype: DataType, shape: tuple[int, ...], axis: int) -> None:
    x = np.random.default_rng(5).normal(size=shape).astype(np.float32)
    actual = block_session(dtype, axis, shape).run(None, {"x": x})[0]
    np.testing.assert_array_equal(actual, block_reference.reference(dtype.value, x, axis, dtype.block_size))


@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize(
    ("dtype", "container"), [(DataType.FLOAT16, np.float16), (DataType.BFLOAT16, ml_dtypes.bfloat16)]
)
def test_sixteen_bit_float_is_exact(dtype: DataType, container: type, extended: bool) -> None:
    model = identity(("d0",), 17)
    writer = FloatWriter(GraphEditor(model), dtype, extended=extended)
    writer.write_pair("x")
    functions = FunctionCollector(model)
    writer.finish(functions)
    functions.finish()
    bits = np.random.default_rng(0).integers(0, 2**32, 4000, dtype=np.uint32).view(np.float32)
    edges = [0.0, -0.0, 65504, 65519.9, 65520, 1e-8, TINY / 2, 1.00048828125, 1.00390625, np.inf, -np.inf, np.nan]
    x = np.concatenate([bits, np.array(edges, np.float32)])
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(container).astype(np.float32)
    np.testing.assert_array_equal(session(model).run(None, {"x": x})[0], expected)


@pytest.mark.parametrize("zero_point", [0, 12345])
@pytest.mark.parametrize("dtype", [DataType.INT32, DataType.UINT32])
def test_thirty_two_bit_integers_are_exact(dtype: DataType, zero_point: int) -> None:
    container = np.dtype(dtype.value)
    text = f"""<ir_version: 10, opset_import: ["" : 17, "com.amd.quark" : 1]>
    g (float[n] x, float s, {dtype.value} z) => ({dtype.value}[n] q, float[n] y) {{
        q = com.amd.quark.ExtendedQuantizeLinear(x, s, z)
        y = com.amd.quark.ExtendedDequantizeLinear(q, s, z)
    }}"""
    model = ir.serde.deserialize_model(onnx.parser.parse_model(text))
    functions = FunctionCollector(model)
    quantize, restore = list(model.graph)
    functions.use(quantize, wide_function(quantize.op_type, dtype, quantizes=True), dtype.value)
    functions.use(restore, wide_function(restore.op_type, dtype, quantizes=False), dtype.value)
    functions.finish()
    scale = np.float32(2.0**-20)
    params = TensorParams(dtype, scale, np.int64(zero_point))
    rng = np.random.default_rng(1)
    ties = (np.arange(-50, 50) + 0.5).astype(np.float32) * scale
    x = np.concatenate([rng.normal(scale=900, size=500).astype(np.float32), ties, np.float32([1e9, -1e9, 0, np.inf])])
    q, y = session(model).run(None, {"x": x, "s": np.array(scale), "z": np.array(zero_point, container)})
    np.testing.assert_array_equal(q, quantize_array(x, params))
    np.testing.assert_array_equal(y, dequantize_array(q, params))


QUARK = VitisQdq(VitisDialect.QUARK)
# What a chain of roundings leaves, by bits of the mantissa; that each is exact is shown above.
MINIMUM_SQNR = {
    DataType.MX6: 15,
    DataType.MX4: 5,
    DataType.MXFP8E5M2: 15,
    DataType.MXFP6E3M2: 15,
    DataType.MXFP6E2M3: 20,
    DataType.MXFP8E4M3: 20,
    DataType.MXFP4E2M1: 5,
}


def spec(dtype: DataType) -> TensorSpec:
    return TensorSpec(dtype, granularity=PerBlock()) if dtype.is_block else TensorSpec(dtype)


@pytest.mark.parametrize("dtype", [*BLOCKS, DataType.FLOAT16, DataType.BFLOAT16, DataType.INT32])
def test_whole_network_runs_in_every_type_near_the_float_one(dtype: DataType) -> None:
    plan = PlanOptions(spec(dtype), spec(dtype), OwnBias(spec(dtype)))
    recipe = Recipe(plan=plan, emit=EmitOptions(QUARK))
    model = cases.emitted(recipe, QUARK)
    onnx.checker.check_model(cases.proto(model), full_check=True)
    expected, actual = cases.outputs(cases.float_bytes()), cases.outputs(model)
    for name, values in expected.items():
        assert cases.sqnr(values, actual[name]) > MINIMUM_SQNR.get(dtype, 30)


@pytest.mark.parametrize("dtype", [DataType.FLOAT16, DataType.BFLOAT16])
def test_casts_and_extended_pairs_give_the_same_outputs(dtype: DataType) -> None:
    recipe = Recipe(plan=PlanOptions(spec(dtype), spec(dtype), OwnBias(spec(dtype))))
    casts = cases.emitted(recipe, Qdq())
    assert {node.domain for node in cases.proto(casts).graph.node} == {""}
    for name, values in cases.outputs(casts).items():
        np.testing.assert_array_equal(cases.outputs(cases.emitted(recipe, QUARK))[name], values)


@pytest.mark.parametrize(
    ("activation", "weight"),
    [
        (DataType.BFLOAT16, DataType.BFP16),
        (DataType.BFLOAT16, DataType.MXINT8),
        (DataType.MX9, DataType.INT8),
        (DataType.FLOAT16, DataType.INT8),
        (DataType.INT32, DataType.BFLOAT16),
    ],
)
def test_types_may_be_mixed_in_one_model(activation: DataType, weight: DataType) -> None:
    """Operators of one name then have several bodies, told apart by their overload."""
    recipe = Recipe(plan=PlanOptions(spec(activation), spec(weight), FloatBias()), emit=EmitOptions(QUARK))
    model = cases.emitted(recipe, QUARK)
    onnx.checker.check_model(cases.proto(model), full_check=True)
    expected, actual = cases.outputs(cases.float_bytes()), cases.outputs(model)
    for name, values in expected.items():
        assert cases.sqnr(values, actual[name]) > 28


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (
            lambda: Recipe(plan=PlanOptions(spec(DataType.BFP16), spec(DataType.BFP16), FloatBias())),
            r"or emit\.format = VitisQdq\(dialect=quark\)",
        ),
        (lambda: Recipe(plan=PlanOptions(spec(DataType.FLOAT16))), r"plan\.bias must be OwnBias\(\) or FloatBias\(\)"),
        (lambda: TensorSpec(DataType.MX6), r"granularity must be PerBlock\(\)"),
        (lambda: TensorSpec(DataType.INT8, granularity=PerBlock()), r"granularity must be PerBlock\(\)"),
        (lambda: PerBlock(7), "even number"),
        (lambda: PerBlock(axis=-1), "not be negative"),
    ],
)
def test_impossible_types_raise_with_what_works(recipe: Callable[[], object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe()
