"""quantize_array and dequantize_array equal onnxruntime's QuantizeLinear and DequantizeLinear bit for bit."""

import functools

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper

from quantry.errors import DataError
from quantry.numerics.rounding import dequantize_array, fake_quantize, quantize_array
from quantry.numerics.tensor_params import TensorParams
from quantry.recipe import DataType

ONNX_TYPES = {
    DataType.INT8: (TensorProto.INT8, np.int8),
    DataType.UINT8: (TensorProto.UINT8, np.uint8),
    DataType.INT16: (TensorProto.INT16, np.int16),
    DataType.UINT16: (TensorProto.UINT16, np.uint16),
    DataType.INT4: (TensorProto.INT4, ml_dtypes.int4),
    DataType.UINT4: (TensorProto.UINT4, ml_dtypes.uint4),
}
TINY = float(np.finfo(np.float32).tiny)
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


@functools.cache
def session(zero_points: tuple[int, ...], dtype: DataType, axis: int | None) -> onnxruntime.InferenceSession:
    """x, scale -> integers (as int32) and the reals they stand for."""
    onnx_type, container = ONNX_TYPES[dtype]
    rank = 0 if axis is None else 1
    zero = np.array(zero_points[0] if axis is None else zero_points).astype(container)
    attributes = {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **attributes),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **attributes),
        helper.make_node("Cast", ["q"], ["i"], to=TensorProto.INT32),
    ]
    shape = ["n"] if axis is None else [2, 3, 4]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, [len(zero_points)] if rank else []),
        ],
        [
            helper.make_tensor_value_info("i", TensorProto.INT32, shape),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, shape),
        ],
        [helper.make_tensor("z", onnx_type, zero.shape, zero.astype(np.int32).ravel())],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def check_equal(x: np.ndarray, params: TensorParams) -> None:
    zero_points = tuple(int(zero) for zero in np.atleast_1d(params.zero_point))
    integers, reals = session(zero_points, params.dtype, params.axis).run(None, {"x": x, "s": params.scale})
    np.testing.assert_array_equal(quantize_array(x, params), integers)
    np.testing.assert_array_equal(fake_quantize(x, params), reals)


def zero_point_of(dtype: DataType, which: str) -> int:
    return {"lowest": dtype.lowest, "centre": (dtype.lowest + dtype.highest + 1) // 2, "highest": dtype.highest}[which]


@pytest.mark.parametrize("zero", ["lowest", "centre", "highest"])
@pytest.mark.parametrize("dtype", ONNX_TYPES, ids=lambda dtype: dtype.value)
@settings(max_examples=25, deadline=None)
@given(
    x=hnp.arrays(np.float32, st.integers(1, 40), elements=FINITE),
    scale=st.floats(TINY, 2.0**100, width=32),
)
def test_any_float_is_quantized_as_onnxruntime_does(dtype, zero, x, scale):
    if dtype.bits == 4:
        # onnxruntime's 4-bit kernel casts to int32 before it saturates and wraps around beyond.
        x = np.clip(x, -min(scale, 1e29) * 1e9, min(scale, 1e29) * 1e9).astype(np.float32)
    check_equal(x, TensorParams(dtype, np.float32(scale), np.int64(zero_point_of(dtype, zero))))


@pytest.mark.parametrize("dtype", ONNX_TYPES, ids=lambda dtype: dtype.value)
@settings(max_examples=20, deadline=None)
@given(
    steps=hnp.arrays(np.float32, 30, elements=st.integers(-70000, 70000).map(lambda half: half / 2)),
    scale=st.floats(2.0**-20, 2.0**20, width=32),
)
def test_ties_and_ends_are_rounded_as_onnxruntime_does(dtype, steps, scale):
    x = (steps * np.float32(scale)).astype(np.float32)
    for zero in ("lowest", "centre", "highest"):
        check_equal(x, TensorParams(dtype, np.float32(scale), np.int64(zero_point_of(dtype, zero))))


@pytest.mark.parametrize("dtype", ONNX_TYPES, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("axis", [0, 1, 2])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_channels_are_quantized_as_onnxruntime_does(dtype, axis, data):
    channels = (2, 3, 4)[axis]
    x = data.draw(hnp.arrays(np.float32, (2, 3, 4), elements=st.floats(-1000, 1000, width=32)))
    scale = data.draw(hnp.arrays(np.float32, channels, elements=st.floats(2.0**-10, 2.0**10, width=32)))
    zero_points = [zero_point_of(dtype, which) for which in ("lowest", "highest", "centre", "lowest")][:channels]
    check_equal(x, TensorParams(dtype, scale, np.array(zero_points), axis))


def test_large_array_is_quantized_as_onnxruntime_does():
    x = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    for dtype in ONNX_TYPES:
        check_equal(x, TensorParams(dtype, np.float32(0.0123), np.int64(zero_point_of(dtype, "centre"))))


def test_half_is_rounded_to_even():
    params = TensorParams(DataType.INT8, np.float32(1), np.int64(0))
    assert quantize_array([0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, -128.5, -129], params).tolist() == [
        *(0, 2, 2, 0, -2, 126, 127, -128, -128)
    ]


def test_infinities_saturate():
    params = TensorParams(DataType.UINT8, np.float32(1), np.int64(7))
    assert quantize_array([-np.inf, np.inf], params).tolist() == [0, 255]


def test_nan_raises():
    params = TensorParams(DataType.INT8, np.float32(1), np.int64(0))
    with pytest.raises(DataError, match=r"must not be NaN, got 2 of 3"):
        quantize_array([1, np.nan, np.nan], params)


def test_limits_saturate_before_the_type_does():
    params = TensorParams(DataType.INT8, np.float32(1), np.int64(0), limits=(-64, 64))
    assert quantize_array([-100, 100, 64], params).tolist() == [-64, 64, 64]


@pytest.mark.parametrize(
    ("dtype", "container"),
    [
        (DataType.INT4, np.int8),
        (DataType.UINT4, np.uint8),
        (DataType.INT8, np.int8),
        (DataType.UINT16, np.uint16),
        (DataType.INT32, np.int32),
    ],
)
def test_container_is_the_smallest_numpy_has(dtype, container):
    assert quantize_array([0.0], TensorParams(dtype, np.float32(1), np.int64(0))).dtype == container


@given(st.integers(-(2**31) + 128, 2**31 - 128))
def test_int32_keeps_every_digit_that_float32_has(integer):
    params = TensorParams(DataType.INT32, np.float32(1), np.int64(0))
    value = np.float32(integer)
    assert int(quantize_array(value, params)) == int(value)
    assert dequantize_array(quantize_array(value, params), params) == value


@settings(max_examples=60, deadline=None)
@given(
    x=hnp.arrays(np.float32, 20, elements=st.floats(-100, 100, width=32)),
    dtype=st.sampled_from(list(ONNX_TYPES)),
    scale=st.floats(2.0**-8, 8, width=32),
)
def test_quantizing_is_monotone_and_exact_on_its_own_grid(x, dtype, scale):
    params = TensorParams(dtype, np.float32(scale), np.int64(zero_point_of(dtype, "centre")))
    x = np.sort(x)
    assert (np.diff(quantize_array(x, params).astype(np.int64)) >= 0).all()
    once = fake_quantize(x, params)
    np.testing.assert_array_equal(fake_quantize(once, params), once)
