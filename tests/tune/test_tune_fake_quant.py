"""Fake quantization in torch against onnxruntime, and its gradients against finite differences."""

import numpy as np
import onnx
import onnx.helper as oh
import onnxruntime
import pytest
import torch

from quantry.numerics.torch_quantizer import Gradient, fake_quantize, fake_quantize_log2


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
    result = fake_quantize_log2(values, log2_scale, torch.tensor(0), (-8, 7))
    expected = fake_quantize(values, torch.tensor(0.125), torch.tensor(0), (-8, 7))
    assert torch.equal(result, expected)
    (result - values).square().sum().backward()
    assert log2_scale.grad is not None
    assert log2_scale.grad.item() < 0  # most values saturate, so a larger scale is better


def test_one_scale_for_each_channel_sums_its_gradient_over_the_channel() -> None:
    values = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1))
    scale = torch.full((4,), 0.1, requires_grad=True)
    fake_quantize(values, scale, torch.zeros(4), (-8, 7), axis=1, gradient=Gradient.TQT).square().sum().backward()
    single = [torch.tensor(0.1, requires_grad=True) for _ in range(4)]
    for channel, own in enumerate(single):
        fake_quantize(
            values[:, channel], own, torch.tensor(0.0), (-8, 7), gradient=Gradient.TQT
        ).square().sum().backward()
    assert scale.grad is not None
    np.testing.assert_allclose(scale.grad.numpy(), [own.grad.item() for own in single], rtol=1e-5)
