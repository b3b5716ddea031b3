"""The quantizer used in training computes what the exported operators compute."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantry.errors import RecipeError
from quantry.execute.interpreter.elementwise import sigmoid
from quantry.numerics import torch_quantizer
from quantry.numerics.affine import affine, scale_and_zero_point
from quantry.numerics.grid import Grid, Range
from quantry.numerics.rounding import fake_quantize
from quantry.numerics.tensor_params import TensorParams
from quantry.numerics.torch_quantizer import Gradient
from quantry.recipe import DataType, FloatScale, PerChannel, PowerOfTwoScale, TensorSpec
from quantry.torchfront import FakeQuantizer

TYPES = [DataType.INT4, DataType.INT8, DataType.UINT8, DataType.INT16]
VALUES = st.lists(st.floats(-300, 300, width=32), min_size=1, max_size=40)


def quantizer(dtype: DataType, scale: float, zero_point: int = 0, *, power_of_two: bool = True) -> FakeQuantizer:
    spec = TensorSpec(dtype, scale=PowerOfTwoScale() if power_of_two else FloatScale())
    return FakeQuantizer(TensorParams(dtype, np.float32(scale), np.int64(zero_point)), spec, constant=False)


@settings(max_examples=60, deadline=None)
@given(VALUES, st.sampled_from(TYPES), st.integers(-6, 2))
def test_forward_equals_the_exported_operators_for_powers_of_two(
    values: list[float], dtype: DataType, exponent: int
) -> None:
    zero_point = 128 if dtype is DataType.UINT8 else 0
    module = quantizer(dtype, 2.0**exponent, zero_point)
    array = np.array(values, np.float32)
    np.testing.assert_array_equal(module(torch.from_numpy(array)).numpy(), fake_quantize(array, module.params()))
    module.learn(Gradient.TQT)
    found = module(torch.from_numpy(array)).detach().numpy()
    np.testing.assert_array_equal(found, fake_quantize(array, module.params()))


@settings(max_examples=40, deadline=None)
@given(VALUES, st.floats(0.003, 3.0))
def test_forward_equals_the_exported_operators_for_other_scales(values: list[float], scale: float) -> None:
    module = quantizer(DataType.INT8, scale, power_of_two=False)
    array = np.array(values, np.float32)
    np.testing.assert_array_equal(module(torch.from_numpy(array)).numpy(), fake_quantize(array, module.params()))


def test_forward_per_channel_equals_the_exported_operators() -> None:
    params = TensorParams(DataType.INT8, np.array([0.5, 0.125, 0.25], np.float32), np.zeros(3, np.int64), axis=0)
    spec = TensorSpec(granularity=PerChannel(), scale=PowerOfTwoScale())
    module = FakeQuantizer(params, spec, constant=True)
    array = np.random.default_rng(0).normal(0, 20, (3, 2, 4)).astype(np.float32)
    np.testing.assert_array_equal(module(torch.from_numpy(array)).numpy(), fake_quantize(array, params))


def test_learned_scale_has_the_gradients_of_the_tune_stage() -> None:
    module = quantizer(DataType.INT8, 2.0**-5)
    module.learn(Gradient.TQT)
    values = (torch.randn(2000) * 3).requires_grad_()
    weights = torch.randn(2000)
    (module(values) * weights).sum().backward()
    log2_scale = module.log2_scale.detach().clone().requires_grad_()
    again = values.detach().clone().requires_grad_()
    arguments = (again, log2_scale, module.zero_point, module.limits, None, Gradient.TQT)
    (torch_quantizer.fake_quantize(*arguments) * weights).sum().backward()
    assert torch.equal(values.grad, again.grad)
    torch.testing.assert_close(module.log2_scale.grad, log2_scale.grad, rtol=1e-3, atol=1e-3)


def test_learned_scale_of_narrow_floats_has_the_gradient_of_wide_ones() -> None:
    module = quantizer(DataType.INT8, 2.0**-5)
    module.learn(Gradient.TQT)
    values = torch.randn(4000).bfloat16()
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        given = values.to(dtype, copy=True).requires_grad_()
        module.log2_scale.grad = None
        result = module(given)
        assert result.dtype == dtype
        result.sum().backward()
        found.append((given.grad.float(), module.log2_scale.grad.clone()))
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1], rtol=2e-2, atol=1e-2)


def test_sigmoid_of_training_is_that_of_torch() -> None:
    values = torch.randn(50, dtype=torch.float64, requires_grad=True)
    assert torch.equal(sigmoid(values), torch.sigmoid(values))
    assert torch.autograd.gradcheck(sigmoid, values)


def test_straight_through_gradient_stops_where_values_saturate() -> None:
    module = quantizer(DataType.INT8, 1.0)
    values = torch.tensor([3.3, 127.4, 200.0, -500.0], requires_grad=True)
    module(values).sum().backward()
    assert values.grad.tolist() == [1.0, 1.0, 0.0, 0.0]


@settings(max_examples=60, deadline=None)
@given(st.floats(-50, 50), st.floats(0, 60), st.booleans(), st.booleans())
def test_observer_scales_are_those_of_calibration(low: float, span: float, symmetric: bool, power: bool) -> None:
    spec = TensorSpec(DataType.INT8, symmetric=symmetric, scale=PowerOfTwoScale() if power else FloatScale())
    wanted = affine(Range(np.array([low]), np.array([low + span])), Grid.of(spec))
    ends = torch.tensor([low, low + span], dtype=torch.float64)
    scale, zero_point = scale_and_zero_point(ends[0], ends[1], Grid.of(spec), torch)
    np.testing.assert_allclose(scale.numpy(), wanted.scale[0], rtol=1e-6)
    assert int(zero_point) == int(wanted.zero_point[0])


def test_observer_runs_in_training_only_when_started() -> None:
    module = quantizer(DataType.INT8, 1.0, power_of_two=False)
    module.train()
    module(torch.tensor([-10.0, 10.0]))
    assert float(module.scale) == 1.0
    module.observing = True
    module.eval()
    module(torch.tensor([-10.0, 10.0]))
    assert float(module.scale) == 1.0
    module.train()
    module(torch.tensor([-12.7, 10.0]))
    assert float(module.scale) == pytest.approx(0.1)


def test_state_dict_restores_learned_scales_and_switches() -> None:
    module = quantizer(DataType.INT8, 0.5)
    module.learn(Gradient.TQT)
    with torch.no_grad():
        module.log2_scale.fill_(-4.2)
    module.enabled = False
    other = quantizer(DataType.INT8, 0.5)
    other.load_state_dict(copy.deepcopy(module.state_dict()))
    assert other.gradient is Gradient.TQT
    assert not other.enabled
    assert float(other.current_scale().detach()) == 2.0**-4


def test_lsq_on_a_power_of_two_scale_is_refused() -> None:
    with pytest.raises(RecipeError, match="TQT"):
        quantizer(DataType.INT8, 0.5).learn(Gradient.LSQ)


def test_lsq_learns_a_float_scale() -> None:
    module = quantizer(DataType.INT8, 0.3, power_of_two=False)
    (scale,) = module.learn(Gradient.LSQ)
    module(torch.randn(100)).square().sum().backward()
    assert scale.grad is not None
    assert module.learn(Gradient.STRAIGHT_THROUGH) == []
    assert not module.scale.requires_grad


def test_half_precision_values_stay_in_their_type_and_on_the_grid() -> None:
    module = quantizer(DataType.INT8, 0.125)
    values = (torch.randn(50) * 10).bfloat16()
    found = module(values)
    assert found.dtype == torch.bfloat16
    np.testing.assert_array_equal(found.float().numpy(), fake_quantize(values.float().numpy(), module.params()))
