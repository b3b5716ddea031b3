"""Biases on the accumulator's grid."""

import numpy as np

from quantry.recipe import DataType
from quantry.scale import TensorParams, derived_bias_params, quantize_array
from quantry.scale.bias import overflow_note

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
    assert note.startswith("bias 'b': 1 of 2 values are too large for int32")
    assert note.endswith("by up to 0.285252")
    assert quantize_array(values, params).tolist() == [2**31 - 1, 5]
    assert overflow_note(values * 0, "b", params) == ()
