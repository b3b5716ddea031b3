"""8-bit floats: the values of onnxruntime's QuantizeLinear, in NumPy and in torch, and the least error by search."""

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from quantry.errors import RecipeError
from quantry.numerics.error import Moments, mean_error
from quantry.numerics.float8 import float8_levels
from quantry.numerics.grid import Grid
from quantry.numerics.rounding import fake_quantize, quantize_array
from quantry.numerics.tensor_params import TensorParams
from quantry.recipe import DataType, MinMax, MinMSE, PerChannel, TensorSpec
from quantry.scale.weights import constant_params

TYPES = [DataType.FLOAT8E4M3FN, DataType.FLOAT8E5M2]
RANDOM = np.random.default_rng(3)
VALUES = np.concatenate(
    [
        RANDOM.standard_normal(20_000) * RANDOM.choice([1e-6, 1e-3, 1.0, 40.0, 1e5], 20_000),
        np.arange(-500, 500),
        [np.inf, -np.inf, 0.0, 464.0, 465.0, 61440.0, 61441.0],
    ]
).astype(np.float32)


def pair(dtype: DataType, scale: float) -> bytes:
    kind = getattr(onnx.TensorProto, dtype.name)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n"]) for name in "xy"]
    constants = [numpy_helper.from_array(np.float32(scale), "scale"), helper.make_tensor("zero", kind, [], [0])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9).SerializeToString()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("scale", [0.013, 1.0, 3.7])
def test_values_are_those_of_onnxruntime(dtype: DataType, scale: float) -> None:
    expected = ort.InferenceSession(pair(dtype, scale)).run(None, {"x": VALUES})[0]
    np.testing.assert_array_equal(fake_quantize(VALUES, TensorParams(dtype, np.float32(scale), 0)), expected)


@pytest.mark.parametrize("dtype", TYPES)
def test_torch_gives_the_same_bits_and_trains_the_scale(dtype: DataType) -> None:
    torch = pytest.importorskip("torch")
    from quantry.numerics.torch_quantizer import fake_quantize_as, fake_quantize_float8

    params = TensorParams(dtype, np.array([0.5, 0.02], np.float32), np.zeros(2, np.int64), axis=0)
    values = np.stack([VALUES, VALUES])
    np.testing.assert_array_equal(
        fake_quantize_as(torch.from_numpy(values), params).numpy(), fake_quantize(values, params)
    )
    x = torch.tensor([0.3, 1e9], requires_grad=True)
    logarithm = torch.tensor(0.0, requires_grad=True)
    fake_quantize_float8(x, logarithm, dtype, log2=True).sum().backward()
    rounded = float(np.float32(0.3).astype(quantize_array([0.3], TensorParams(dtype, 1.0, 0)).dtype))
    assert x.grad.tolist() == [1.0, 0.0]
    assert logarithm.grad.item() == pytest.approx(np.log(2) * (rounded - 0.3 + dtype.highest), rel=1e-6)


def test_levels_are_all_finite_values_of_the_type() -> None:
    assert len(float8_levels(DataType.FLOAT8E4M3FN)) == 253  # 256 codes, two of NaN, two of zero
    assert len(float8_levels(DataType.FLOAT8E5M2)) == 247
    assert float8_levels(DataType.FLOAT8E5M2)[-1] == float(ml_dtypes.finfo(ml_dtypes.float8_e5m2).max)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("power", [1, 2])
def test_error_of_a_histogram_is_that_of_its_values(dtype: DataType, power: int) -> None:
    points = np.sort(RANDOM.standard_normal(3000)) * 20
    scales = np.array([0.05, 0.4])
    found = mean_error(
        Moments(points, points, np.ones(3000, np.int64)), scales, np.zeros(2), Grid(dtype, symmetric=True), power
    )
    errors = [np.abs(fake_quantize(points, TensorParams(dtype, np.float32(s), 0)) - points) ** power for s in scales]
    np.testing.assert_allclose(found, [error.mean() for error in errors], rtol=2e-3)


@pytest.mark.parametrize("dtype", TYPES)
def test_least_error_search_is_not_worse_than_the_largest_value(dtype: DataType) -> None:
    weight = (RANDOM.standard_normal((4, 500)) * [[1], [0.01], [30], [1]]).astype(np.float32)
    spec = TensorSpec(dtype, granularity=PerChannel())
    errors = [
        np.square(fake_quantize(weight, constant_params(weight, spec, 0, method)) - weight).sum(axis=1)
        for method in (MinMSE(), MinMax())
    ]
    assert (errors[0] <= errors[1] * (1 + 1e-6)).all()


def test_8_bit_floats_have_no_zero_point_and_no_spare_bit() -> None:
    with pytest.raises(RecipeError, match="has no zero point"):
        TensorSpec(DataType.FLOAT8E4M3FN, symmetric=False)
    with pytest.raises(RecipeError, match="reduce_range needs integer weights, got float8e5m2"):
        Grid.of(TensorSpec(DataType.FLOAT8E5M2), reduced=True)
