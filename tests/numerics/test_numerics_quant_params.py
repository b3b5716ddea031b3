"""The stage's value: what it promises, and that it survives the store."""

import numpy as np
import pytest

from quantry.errors import InternalError
from quantry.notes import Note
from quantry.numerics.tensor_params import QuantParams, TensorParams
from quantry.recipe import DataType


def example() -> QuantParams:
    return QuantParams(
        {
            "x": TensorParams(DataType.UINT8, np.float32(0.5), np.int64(7)),
            "w": TensorParams(DataType.INT4, np.array([0.1, 0.2, 0.3]), np.zeros(3), axis=1, limits=(-4, 4)),
            "empty": TensorParams(DataType.INT8, np.zeros(0), np.zeros(0), axis=0),
            "b": TensorParams(DataType.INT32, np.array([0.1]), np.zeros(1), axis=0),
        },
        notes=(Note.of("something"), Note.of("more")),
    )


@pytest.mark.parametrize("params", [example(), QuantParams()], ids=["several", "none"])
def test_blob_brings_everything_back(params):
    back = QuantParams.from_blob(params.to_blob())
    assert list(back.tensors) == list(params.tensors)
    assert back.notes == params.notes
    for name, tensor in params.tensors.items():
        other = back.tensors[name]
        assert (other.dtype, other.axis, other.limits) == (tensor.dtype, tensor.axis, tensor.limits)
        for ours, theirs in ((tensor.scale, other.scale), (tensor.zero_point, other.zero_point)):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            np.testing.assert_array_equal(ours, theirs)
    assert back.to_blob().digest() == params.to_blob().digest()


def test_blob_has_two_arrays_however_many_tensors():
    assert set(example().to_blob().arrays) == {"scales", "zero_points"}


def test_parameters_cannot_be_changed():
    params = example()
    with pytest.raises(TypeError):
        params.tensors["y"] = params.tensors["x"]
    with pytest.raises(ValueError, match="read-only"):
        params.tensors["w"].scale[0] = 1


def test_given_arrays_stay_the_callers():
    scale = np.array([1.0, 2.0], np.float32)
    params = TensorParams(DataType.INT8, scale, np.zeros(2), axis=0)
    scale[0] = 9
    assert params.scale[0] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((DataType.FLOAT16, 1.0, 0), "must be an integer type or an 8-bit float, got float16"),
        ((DataType.INT8, 0.0, 0), "must be positive, normal and finite"),
        ((DataType.INT8, np.nan, 0), "must be positive, normal and finite"),
        ((DataType.INT8, 1e-40, 0), "must be positive, normal and finite"),
        ((DataType.INT8, 1.0, 128), r"must be in \[-128, 127\], got 128"),
        ((DataType.INT8, [1.0], [0]), "with axis None needs scale and zero point with 0 dimensions"),
        ((DataType.INT8, 1.0, 0, 1), "with axis 1 needs scale and zero point with 1 dimensions"),
        ((DataType.INT8, [1.0, 1.0], [0], 0), r"got shapes \(2,\) and \(1,\)"),
        ((DataType.INT8, 1.0, 100, None, (-64, 64)), r"must be in \[-64, 64\], got 100"),
    ],
)
def test_impossible_parameters_raise(arguments, message):
    with pytest.raises(InternalError, match=message):
        TensorParams(*arguments)


@pytest.mark.parametrize(("position", "nearest"), [(5, 5), (-400, -119), (400, 126)])
def test_positions_beyond_float32_become_the_nearest_normal_one(position, nearest):
    assert TensorParams(DataType.INT8, 1.0, 0).at_position(position).position == nearest
