"""Parameters of constants."""

import numpy as np
import onnx_ir as ir
import pytest
from onnxruntime.quantization.quant_utils import compute_scale_zp

from quantry.errors import InternalError
from quantry.numerics import kernels
from quantry.numerics.grid import Grid
from quantry.numerics.rounding import fake_quantize, quantize_array
from quantry.recipe import DataType, MinMax, MinMSE, NonOverflow, Percentile, PowerOfTwoScale, TensorSpec
from quantry.scale import constant_params
from quantry.scale.ranges.group_search import least_error_groups
from quantry.scale.weights import measure_constant

WEIGHT = np.random.default_rng(5).normal(size=(6, 4, 3, 3)).astype(np.float32) * np.arange(1, 7)[:, None, None, None]
WEIGHT = WEIGHT.astype(np.float32)
METHODS = [MinMax(), NonOverflow(), MinMSE(), Percentile(99.0)]


@pytest.mark.parametrize("axis", [0, 1, 3])
def test_min_max_scales_equal_onnxruntime_channel_by_channel(axis):
    params = constant_params(WEIGHT, TensorSpec(), axis, MinMax())
    assert params.scale.shape == params.zero_point.shape == (WEIGHT.shape[axis],)
    for channel, values in enumerate(np.moveaxis(WEIGHT, axis, 0)):
        scale = compute_scale_zp(values.min(), values.max(), np.array(-127), np.array(127), True)[1]  # noqa: FBT003
        assert params.scale[channel] == np.float32(scale)


@pytest.mark.parametrize("kind", [TensorSpec(), TensorSpec(DataType.UINT4, symmetric=False)], ids=str)
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_one_scale_for_each_channel_is_no_worse_than_one_in_all(method, kind):
    error = [
        float(((fake_quantize(WEIGHT, constant_params(WEIGHT, kind, axis, method)) - WEIGHT) ** 2).mean())
        for axis in (0, None)
    ]
    assert error[0] < error[1]


def test_channel_of_zeros_takes_the_largest_scale_of_the_others():
    weight = np.array([[1.27, 0], [0, 0], [2.54, 0]], np.float32)
    params = constant_params(weight, TensorSpec(), 0, MinMax())
    np.testing.assert_allclose(params.scale, [0.01, 0.02, 0.02], rtol=1e-6)


@pytest.mark.parametrize("scale", [TensorSpec().scale, PowerOfTwoScale()], ids=str)
@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_zeros_have_scale_one(method, axis, scale):
    params = constant_params(np.zeros((3, 4), np.float32), TensorSpec(scale=scale), axis, method)
    assert (params.scale == 1).all()


@pytest.mark.parametrize(("axis", "shape"), [(None, ()), (0, (0,)), (1, (3,))])
def test_constant_without_values_has_scale_one(axis, shape):
    params = constant_params(np.zeros((0, 3), np.float32), TensorSpec(), axis, MinMSE())
    assert params.scale.shape == shape
    assert (params.scale == 1).all()


@pytest.mark.parametrize("dtype", [DataType.INT8, DataType.UINT8, DataType.INT4], ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("method", [MinMax(), NonOverflow(), MinMSE()], ids=str)
def test_reduced_range_is_kept_also_where_values_are_clipped(method, symmetric, dtype):
    for axis in (None, 0):
        params = constant_params(WEIGHT**3, TensorSpec(dtype, symmetric), axis, method, reduced=True)
        integers = quantize_array(WEIGHT**3, params)
        lowest, highest = params.limits
        assert highest - lowest <= 2 ** (dtype.bits - 1)
        assert lowest <= integers.min() <= integers.max() <= highest


def test_external_files_are_let_go(tmp_path):
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    tensor = ir.ExternalTensor(
        "w.bin", 0, WEIGHT.nbytes, ir.DataType.FLOAT, shape=ir.Shape(WEIGHT.shape), name="w", base_dir=str(tmp_path)
    )
    value = ir.Value(name="w", const_value=tensor, type=ir.TensorType(ir.DataType.FLOAT), shape=tensor.shape)
    model = ir.Model(ir.Graph([], [], nodes=[], initializers=[value], opset_imports={"": 21}), ir_version=10)
    params = measure_constant(model, "w", lambda values: constant_params(values, TensorSpec(), 0, MinMSE()))
    np.testing.assert_array_equal(params.scale, constant_params(WEIGHT, TensorSpec(), 0, MinMSE()).scale)
    assert tensor.raw is None


def test_initializer_that_is_not_there_is_a_broken_promise():
    model = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 21}), ir_version=10)
    with pytest.raises(InternalError, match="must name initializers of the model, got 'v'"):
        measure_constant(model, "v", np.size)


def test_parameters_are_found_once_for_each_tensor_and_question(monkeypatch):
    from quantry.scale import parameter_cache

    counted = []

    def count(values, **options):
        counted.append(options)
        return constant_params(values, **options)

    monkeypatch.setattr(parameter_cache, "constant_params", count)
    graph = "g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> {y = Add(x, w)}"
    model = ir.from_onnx_text(f'<ir_version: 8, opset_import: ["" : 13]> {graph}')
    ask = parameter_cache.cached_constant_params
    first = ask(model, "w", TensorSpec(), None, MinMax())
    assert ask(model, "w", TensorSpec(), None, MinMax()) is first
    assert len(counted) == 1
    ask(model, "w", TensorSpec(), 0, MinMax())
    ask(model, "w", TensorSpec(), None, MinMSE())
    assert len(counted) == 3
    model.graph.initializers["w"].const_value = ir.tensor(np.array([3.0, 4.0], np.float32))
    assert ask(model, "w", TensorSpec(), None, MinMax()).scale > first.scale


@pytest.mark.parametrize("size", [3e38, 2e-38])
@pytest.mark.parametrize("symmetric", [True, False])
def test_groups_near_the_ends_of_float32_have_normal_scales(size, symmetric):
    rows = (np.random.default_rng(0).uniform(-1, 1, (4, 32)) * size).astype(np.float32)
    found, _ = least_error_groups(rows, 16, Grid(DataType.INT4, symmetric=symmetric), either_sign=symmetric)
    assert np.isfinite(found.scale).all()
    assert (np.abs(found.scale) >= np.finfo(np.float32).tiny).all()


@pytest.mark.parametrize("grid", [Grid(DataType.INT4, symmetric=True), Grid(DataType.UINT4, symmetric=False)])
@pytest.mark.parametrize("either_sign", [False, True])
@pytest.mark.parametrize("size", [2e-38, 1.0, 3e38])
def test_compiled_search_of_groups_has_the_bytes_of_numpy(grid, either_sign, size, monkeypatch):
    rows = (np.random.default_rng(1).standard_t(3, (37, 100)) / 40).clip(-1, 1).astype(np.float32) * np.float32(size)
    rows[5, :32], rows[6, 32:64] = 0, np.abs(rows[6, 32:64])
    found = []
    for compiled in (kernels.loaded(), None):
        monkeypatch.setattr(kernels, "loaded", lambda compiled=compiled: compiled)
        with np.errstate(all="ignore"):
            chosen, empty = least_error_groups(rows, 32, grid, either_sign=either_sign and grid.symmetric)
        found.append((chosen.scale.tobytes(), chosen.zero_point.tobytes(), empty.tobytes()))
    assert found[0] == found[1]
    assert np.flatnonzero(empty).tolist() == [5 * 4]


def test_scales_of_groups_have_nearly_the_least_error_of_an_exhaustive_search():
    rows = np.random.default_rng(2).standard_t(4, (64, 128)).astype(np.float32)
    grid = Grid(DataType.INT4, symmetric=True)
    chosen, _ = least_error_groups(rows, 32, grid)
    groups = rows.reshape(-1, 32)

    def errors(scale):
        return np.square(np.clip(np.rint(groups / scale), -8, 7) * scale - groups).sum(axis=1)

    whole = np.abs(groups).max(axis=1, keepdims=True) / 7
    least = np.min([errors(whole * part) for part in np.linspace(0.4, 1.1, 200)], axis=0)
    assert errors(chosen.scale.reshape(-1, 1)).sum() < 1.03 * least.sum()
