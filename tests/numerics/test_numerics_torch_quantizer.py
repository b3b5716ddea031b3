"""Fake quantization in torch agrees with NumPy and onnxruntime; its gradients are the published ones."""

import numpy as np
import onnx
import onnx.helper as oh
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_implementations import reference

from quantry.numerics import rounding
from quantry.numerics.bias import derived_bias_params
from quantry.numerics.tensor_params import TensorParams
from quantry.numerics.torch_quantizer import (
    Gradient,
    derived_bias_scale,
    fake_quantize,
    fake_quantize_bias,
    round_to_float,
)
from quantry.recipe import DataType


def runtime(values: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, axis: int) -> np.ndarray:
    kind = oh.np_dtype_to_tensor_dtype(zero_point.dtype)
    graph = oh.make_graph(
        [
            oh.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=axis),
            oh.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], axis=axis),
        ],
        "pair",
        [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, values.shape)],
        [oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, values.shape)],
        [
            oh.make_tensor("s", onnx.TensorProto.FLOAT, scale.shape, scale.ravel()),
            oh.make_tensor("z", kind, zero_point.shape, zero_point.ravel()),
        ],
    )
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": values})[0]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
@pytest.mark.parametrize("axis", [None, 1])
def test_forward_is_bit_equal_to_onnxruntime(dtype: type, axis: int | None) -> None:
    random = np.random.default_rng(0)
    info = np.iinfo(dtype)
    values = (random.standard_normal((4, 6, 5)) * 300).astype(np.float32)
    values[0, 0] = [0.5, 1.5, 2.5, -0.5, -1.5]  # halves round to even
    shape = () if axis is None else (6,)
    scale = random.uniform(0.01, 2.0, shape).astype(np.float32)
    zero_point = random.integers(info.min, info.max, shape, endpoint=True).astype(dtype)
    limits = (int(info.min), int(info.max))
    ours = fake_quantize(
        torch.from_numpy(values), torch.tensor(scale), torch.tensor(zero_point.astype(np.int64)), limits, axis
    )
    theirs = runtime(values, np.asarray(scale), np.asarray(zero_point), 1)
    np.testing.assert_array_equal(ours.numpy(), theirs)


def test_gradient_passes_inside_the_range_and_stops_outside() -> None:
    values = torch.tensor([-100.0, 0.3, 100.0], requires_grad=True)
    fake_quantize(values, torch.tensor(0.5), torch.tensor(0), (-8, 7)).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [0.0, 1.0, 0.0]


def test_lsq_gives_the_scale_its_published_gradient() -> None:
    values = torch.tensor([-100.0, 0.3, 100.0])
    scale = torch.tensor(0.5, requires_grad=True)
    fake_quantize(values, scale, torch.tensor(0), (-8, 7), gradient=Gradient.LSQ).sum().backward()
    expected = (-8 + (1 - 0.6) + 7) / np.sqrt(3 * 7)
    assert scale.grad is not None
    assert scale.grad.item() == pytest.approx(expected, rel=1e-5)


def test_log2_scale_is_rounded_to_a_power_of_two_and_gets_a_gradient() -> None:
    values = torch.randn(64, generator=torch.Generator().manual_seed(0))
    log2_scale = torch.tensor(-3.3, requires_grad=True)
    result = fake_quantize(values, log2_scale, torch.tensor(0), (-8, 7), gradient=Gradient.TQT)
    expected = fake_quantize(values, torch.tensor(0.125), torch.tensor(0), (-8, 7))
    assert torch.equal(result, expected)
    (result - values).square().sum().backward()
    assert log2_scale.grad is not None
    assert log2_scale.grad.item() < 0  # most values saturate, so a larger scale is better


def test_one_scale_per_channel_sums_its_gradient_over_the_channel() -> None:
    values = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1))
    log2_scale = torch.full((4,), -3.3, requires_grad=True)
    fake_quantize(values, log2_scale, torch.zeros(4), (-8, 7), 1, Gradient.LOG2).square().sum().backward()
    single = [torch.tensor(-3.3, requires_grad=True) for _ in range(4)]
    for channel, own in enumerate(single):
        fake_quantize(
            values[:, channel], own, torch.tensor(0.0), (-8, 7), gradient=Gradient.LOG2
        ).square().sum().backward()
    assert log2_scale.grad is not None
    np.testing.assert_allclose(log2_scale.grad.numpy(), [own.grad.item() for own in single], rtol=1e-5)


TYPES = [DataType.INT4, DataType.UINT4, DataType.INT8, DataType.UINT8, DataType.INT16, DataType.UINT16]


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(TYPES), st.integers(1, 3), st.booleans())
def test_forward_equals_numpy(data: st.DataObject, dtype: DataType, channels: int, per_channel: bool) -> None:
    """Both the reference and the compiled kernels, for any scale, zero point and value, infinities included."""
    count = channels if per_channel else 1
    scale = np.array(data.draw(st.lists(st.floats(2.0**-100, 2.0**100, width=32), min_size=count, max_size=count)))
    zeros = np.array(data.draw(st.lists(st.integers(dtype.lowest, dtype.highest), min_size=count, max_size=count)))
    numbers = st.floats(width=32, allow_nan=False) | st.integers(-300, 300).map(lambda k: k / 2 * float(scale[0]))
    values = np.array(data.draw(st.lists(numbers, min_size=channels, max_size=channels * 8)))
    values = np.resize(values, (channels, len(values))).astype(np.float32)
    axis = 0 if per_channel else None
    shape = (channels,) if per_channel else ()
    params = TensorParams(dtype, scale.astype(np.float32).reshape(shape), zeros.reshape(shape), axis)
    given = torch.from_numpy(values), torch.tensor(params.scale), torch.tensor(params.zero_point)
    for function in (fake_quantize, reference):
        found = function(*given, (dtype.lowest, dtype.highest), axis)
        np.testing.assert_array_equal(found.numpy(), rounding.fake_quantize(values, params))


@settings(max_examples=100, deadline=None)
@given(st.data(), st.booleans())
def test_derived_bias_equals_numpy(data: st.DataObject, per_channel: bool) -> None:
    scales = st.floats(2.0**-30, 2.0**10, width=32)
    source = TensorParams(DataType.INT8, np.float32(data.draw(scales)), np.int64(3))
    own = [data.draw(scales) for _ in range(3)]
    weight = TensorParams(
        DataType.INT8,
        np.array(own if per_channel else own[0], np.float32),
        np.zeros((3,) if per_channel else (), np.int64),
        0 if per_channel else None,
    )
    bias = np.array([data.draw(st.floats(-1e6, 1e6, width=32)) for _ in range(3)], np.float32)
    expected = rounding.fake_quantize(bias, derived_bias_params(source, weight))
    scale = derived_bias_scale(torch.tensor(source.scale), torch.tensor(weight.scale))
    found = fake_quantize_bias(torch.from_numpy(bias), scale, (DataType.INT32.lowest, DataType.INT32.highest))
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("dtype", [DataType.FLOAT16, DataType.BFLOAT16])
def test_narrow_floats_are_rounded_and_their_gradient_is_not(dtype: DataType) -> None:
    values = torch.tensor([1.001, -3.14159, float("inf"), 1e-30], requires_grad=True)
    narrow = torch.float16 if dtype is DataType.FLOAT16 else torch.bfloat16
    result = round_to_float(values, dtype)
    assert torch.equal(result, values.detach().to(narrow).float())
    gradient = torch.tensor([1.001, 2.0, 3.0, 4.0])
    result.backward(gradient)
    assert torch.equal(values.grad, gradient)
