"""The stage as a whole, on a small model."""

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from quantry.errors import DataError, InternalError, RecipeError
from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import (
    DerivedBiasPlan,
    FixedRange,
    OwnBiasPlan,
    OwnRange,
    QuantPlan,
    SharedRange,
    WeightPlan,
)
from quantry.memo import Memo, MemoryStore
from quantry.numerics.rounding import quantize_array
from quantry.observe import Statistics
from quantry.recipe import (
    DataType,
    MinMax,
    MinMSE,
    NonOverflow,
    Percentile,
    PowerOfTwoScale,
    ScaleOptions,
    TensorSpec,
)
from quantry.scale import scale
from quantry.testing.range_suite import stats_of

UINT8 = TensorSpec(DataType.UINT8, symmetric=False)
POWER = TensorSpec(scale=PowerOfTwoScale())

MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[1, 2] x) => (float[1, 2] y)
<float[2, 2] w = {1.27, -0.5, 0.0, 2.54}, float[2] b = {0.5, -0.25}>
{
    h = Gemm(x, w, b)
    r = Reshape <allowzero = 0> (h, shape)
    y = Softmax(r)
}
"""


def model() -> FloatModel:
    text = MODEL.replace("float[2] b = {0.5, -0.25}>", "float[2] b = {0.5, -0.25}, int64[2] shape = {1, 2}>")
    return FloatModel(ir.from_proto(onnx.parser.parse_model(text)))


def statistics() -> Statistics:
    return Statistics({"x": stats_of([[0.0, 1.0], [0.5, 5.1]]), "h": stats_of([[-1.0, 2.0]])}, samples=2)


def plan(**changes: object) -> QuantPlan:
    parts = {
        "activations": {
            "x": OwnRange(UINT8),
            "h": OwnRange(UINT8),
            "r": SharedRange("h"),
            "y": FixedRange(UINT8, 0, 1),
        },
        "weights": {"w": WeightPlan(TensorSpec(), axis=1)},
        "biases": {"b": DerivedBiasPlan("x", "w")},
    }
    return QuantPlan(**{**parts, **changes})


def test_every_tensor_of_the_plan_gets_parameters():
    params = scale(model(), statistics(), plan(), ScaleOptions())
    assert list(params.tensors) == ["x", "h", "r", "y", "w", "b"]
    assert params.notes == ()
    x, w, b = (params.tensors[name] for name in "xwb")
    assert (x.scale, x.zero_point) == (np.float32(5.1 / 255), 0)
    np.testing.assert_allclose(w.scale, [0.01, 0.02], rtol=1e-6)
    np.testing.assert_array_equal(b.scale, x.scale * w.scale)
    assert quantize_array([0.5, -0.25], b).tolist() == [2500, -625]
    assert params.tensors["r"] is params.tensors["h"]
    assert params.tensors["y"].scale == np.float32(1 / 255)


def test_shared_range_may_come_before_its_source():
    activations = {"r": SharedRange("h"), "h": OwnRange(UINT8), "x": OwnRange(UINT8)}
    params = scale(model(), statistics(), plan(activations=activations), ScaleOptions())
    assert params.tensors["r"] is params.tensors["h"]


def test_methods_of_activations_and_weights_are_apart():
    params = scale(model(), statistics(), plan(), ScaleOptions(activation=Percentile(50.0), weight=MinMSE()))
    assert params.tensors["x"].scale < 1 / 255


@pytest.mark.parametrize(("method", "expected"), [(MinMax(), 2.0**-7), (MinMSE(), 2.0**-7), (NonOverflow(), 2.0**-6)])
def test_fixed_range_overflows_only_where_that_is_allowed(method, expected):
    activations = {"x": OwnRange(POWER), "y": FixedRange(POWER, 0, 1)}
    params = scale(model(), statistics(), plan(activations=activations), ScaleOptions(activation=method))
    assert params.tensors["y"].scale == expected


def test_bias_may_have_a_scale_of_its_own():
    params = scale(model(), statistics(), plan(biases={"b": OwnBiasPlan(POWER)}), ScaleOptions(weight=NonOverflow()))
    assert (params.tensors["b"].dtype, params.tensors["b"].scale) == (DataType.INT8, 2.0**-7)


def test_reduced_range_is_for_weights_only():
    biases = {"b": OwnBiasPlan(TensorSpec())}
    params = scale(model(), statistics(), plan(biases=biases), ScaleOptions(reduce_range=True))
    assert params.tensors["w"].limits == (-64, 64)
    assert params.tensors["b"].limits is None
    assert params.tensors["x"].limits is None


def test_weight_scale_makes_room_for_a_bias_that_would_not_fit():
    narrow = Statistics({"x": stats_of([[1e-8]]), "h": stats_of([[1.0]])}, samples=1)
    params, usual = (scale(model(), observed, plan(), ScaleOptions()) for observed in (narrow, statistics()))
    assert params.notes == ()
    assert (params.tensors["w"].scale > usual.tensors["w"].scale).all()


def test_nan_and_infinite_values_are_noted_and_skipped():
    stats = Statistics({**statistics().tensors, "x": stats_of([[0, np.nan, np.inf, 5.1]])}, samples=1)
    params = scale(model(), stats, plan(), ScaleOptions())
    assert params.tensors["x"].scale == np.float32(5.1 / 255)
    assert tuple(map(str, params.notes)) == (
        "activation 'x': 1 NaN and 1 infinite of 4 values are not included in its range",
    )


@pytest.mark.parametrize("method", [MinMax(), MinMSE(), MinMax(moving_average=0.1)], ids=str)
def test_tensor_without_a_finite_value_is_an_error_that_names_it(method):
    stats = Statistics({**statistics().tensors, "x": stats_of([[np.nan, -np.inf]])}, samples=1)
    with pytest.raises(DataError, match=r"finite values, got 1 NaN and 1 infinite of 2 values for 'x'; in the scale"):
        scale(model(), stats, plan(), ScaleOptions(activation=method))


def test_tensor_without_statistics_is_an_error_that_names_it():
    with pytest.raises(DataError, match="needs statistics, got none for 'x' among 0 observed tensors"):
        scale(model(), Statistics({}, samples=1), plan(), ScaleOptions())


def test_float_type_is_an_error_of_the_recipe():
    activations = {"x": OwnRange(TensorSpec(DataType.FLOAT16))}
    with pytest.raises(RecipeError, match="integer types with scales, got float16"):
        scale(model(), statistics(), plan(activations=activations), ScaleOptions())


def test_bias_of_an_unquantized_weight_is_a_broken_promise():
    with pytest.raises(InternalError, match=r"none for \['v'\] of bias 'b'"):
        scale(model(), statistics(), plan(biases={"b": DerivedBiasPlan("x", "v")}), ScaleOptions())


def test_result_is_reused_and_its_inputs_stay_unchanged():
    memo = Memo(MemoryStore(), verify_inputs=True)
    arguments = (model(), statistics(), plan())
    first = memo.run(scale, *arguments, ScaleOptions())
    again = memo.run(scale, *arguments, ScaleOptions())
    other = memo.run(scale, *arguments, ScaleOptions(weight=MinMSE(), reduce_range=True))
    assert first.digest == again.digest != other.digest
    np.testing.assert_array_equal(again.value.tensors["w"].scale, first.value.tensors["w"].scale)
