"""Biases on the accumulator's grid."""

import numpy as np
import pytest

from quantry.numerics.bias import derived_bias_params, overflow_note, with_room_for_bias
from quantry.numerics.rounding import dequantize_array, quantize_array
from quantry.numerics.tensor_params import TensorParams
from quantry.recipe import DataType

INPUT = TensorParams(DataType.UINT8, np.float32(0.1), np.int64(3))


def test_scale_is_the_product_and_zero_point_is_zero():
    weight = TensorParams(DataType.INT8, np.array([0.3, 0.7], np.float32), np.zeros(2, np.int64), axis=1)
    bias = derived_bias_params(INPUT, weight)
    assert (bias.dtype, bias.axis, bias.zero_point.tolist()) == (DataType.INT32, 0, [0, 0])
    np.testing.assert_array_equal(bias.scale, np.float32(0.1) * np.array([0.3, 0.7], np.float32))


def test_weight_with_one_scale_gives_one_scale():
    bias = derived_bias_params(INPUT, TensorParams(DataType.INT8, np.float32(0.5), np.int64(0)))
    assert bias.axis is None
    assert bias.scale.shape == ()


def test_product_of_tiny_or_huge_scales_stays_a_normal_float():
    for scale in (1e-30, 1e30):
        one = TensorParams(DataType.INT8, np.float32(scale), np.int64(0))
        product = derived_bias_params(one, one).scale
        assert np.finfo(np.float32).tiny <= product < np.inf


def test_note_says_how_much_is_clipped():
    params = derived_bias_params(INPUT, TensorParams(DataType.INT8, np.array([1e-9, 1.0], np.float32), [0, 0], axis=0))
    values = np.array([0.5, 0.5], np.float32)
    (note,) = overflow_note(values, "b", params)
    assert str(note).startswith("bias 'b': 1 of 2 values are too large for int32")
    assert str(note).endswith("by up to 0.285252")
    assert quantize_array(values, params).tolist() == [2**31 - 1, 5]
    assert overflow_note(values * 0, "b", params) == ()


def test_channel_that_is_all_but_switched_off_keeps_its_bias():
    source = TensorParams(DataType.UINT8, np.float32(0.02), np.int64(0))
    weight = TensorParams(DataType.INT8, np.float32([1e-2, 1e-12]), np.zeros(2, np.int64), 0)
    values = np.float32([1.5, -3.0])
    widened = with_room_for_bias(values, source, weight, power_of_two=False)
    assert widened.scale[0] == weight.scale[0]
    bias = derived_bias_params(source, widened)
    np.testing.assert_allclose(dequantize_array(quantize_array(values, bias), bias), values, rtol=1e-6)
    assert (np.abs(quantize_array(values, bias)) <= 2**30).all()


@pytest.mark.parametrize("axis", [None, 0])
def test_widened_scale_of_a_power_of_two_stays_one(axis):
    source = TensorParams(DataType.INT8, np.float32(2.0**-6), np.int64(0))
    scale = np.float32(2.0**-40) if axis is None else np.float32([2.0**-40])
    weight = TensorParams(DataType.INT8, scale, np.zeros(scale.shape, np.int64), axis)
    widened = with_room_for_bias(np.float32([5.0]), source, weight, power_of_two=True)
    assert (np.frexp(widened.scale)[0] == 0.5).all()
    assert (widened.scale > weight.scale).all()


def test_scale_with_room_enough_is_left_alone():
    source = TensorParams(DataType.INT8, np.float32(0.1), np.int64(0))
    weight = TensorParams(DataType.INT8, np.float32(0.01), np.int64(0))
    assert with_room_for_bias(np.float32([1.0, -2.0]), source, weight, power_of_two=False) is weight
