"""Which quantizer each reader of each tensor reads through."""

import numpy as np
import onnx_ir as ir
import pytest

from quantry.execute.quantized_view import QuantizedView, Role
from quantry.graph.quant_plan import Conversion, DerivedBiasPlan, OwnRange, QuantPlan, SharedRange, WeightPlan
from quantry.numerics.tensor_params import QuantParams, TensorParams
from quantry.recipe import DataType, TensorSpec

INT8, INT16, FLOAT16 = (TensorSpec(dtype=dtype) for dtype in (DataType.INT8, DataType.INT16, DataType.FLOAT16))


def params(scale: float, dtype: DataType = DataType.INT8) -> TensorParams:
    return TensorParams(dtype, np.float32(scale), np.int64(0))


@pytest.fixture
def view() -> QuantizedView:
    """Return ``x -> conv (w, b) -> y -> reshape -> z``, with a 16-bit conversion of x for the node ``other``."""
    plan = QuantPlan(
        activations={"x": OwnRange(INT8), "y": OwnRange(INT8), "z": SharedRange("y"), "h": OwnRange(FLOAT16)},
        weights={"w": WeightPlan(INT8, users=("conv",))},
        biases={"b": DerivedBiasPlan("x", "w")},
        conversions={"x_int16": Conversion("x", INT16, ("other",))},
    )
    tensors = {
        "x": params(0.5),
        "y": params(0.25),
        "z": params(0.25),
        "w": params(0.5),
        "b": params(0.25, DataType.INT32),
        "x_int16": params(0.001, DataType.INT16),
    }
    return QuantizedView(plan, QuantParams(tensors))


def test_readers_of_one_tensor_have_their_own_paths(view: QuantizedView) -> None:
    assert [entry.name for entry in view.path("x", "conv")] == ["x"]
    assert [entry.name for entry in view.path("x", "other")] == ["x", "x_int16"]


def test_weight_is_quantized_for_the_nodes_of_the_plan_alone(view: QuantizedView) -> None:
    assert [entry.role for entry in view.path("w", "conv")] == [Role.WEIGHT]
    assert view.path("w", "other") == ()


def test_tensor_outside_the_plan_has_no_quantizer(view: QuantizedView) -> None:
    assert view.path("unknown", "conv") == ()
    assert view.get("unknown") is None


def test_shared_scale_has_one_source(view: QuantizedView) -> None:
    assert (view.source("z"), view.source("y"), view.source("x_int16")) == ("y", "y", "x_int16")


def test_type_without_a_scale_has_no_params(view: QuantizedView) -> None:
    quantizer = view.get("h")
    assert quantizer is not None
    assert (quantizer.dtype, quantizer.params) == (DataType.FLOAT16, None)


def test_bias_is_rounded_at_the_scale_of_input_times_weight(view: QuantizedView) -> None:
    np.testing.assert_array_equal(view.round("b", np.array([0.3, -0.37], np.float32)), [0.25, -0.25])


def test_bias_that_does_not_fit_int32_is_clipped(view: QuantizedView) -> None:
    largest = (2**31 - 1) * np.float32(0.25)
    np.testing.assert_array_equal(view.round("b", np.array([1e12], np.float32)), [np.float32(largest)])


def test_new_scale_reaches_all_that_share_it_and_derived_biases(view: QuantizedView) -> None:
    changed = view.with_scales({"x": params(2.0), "y": params(1.0)}).params.tensors
    assert {name: float(entry.scale) for name, entry in changed.items() if name in "xyzwb"} == {
        "x": 2.0,
        "y": 1.0,
        "z": 1.0,
        "w": 0.5,
        "b": 1.0,
    }


def test_bias_keeps_its_params_while_its_factors_stay(view: QuantizedView) -> None:
    assert view.with_scales({"y": params(1.0)}).params.tensors["b"] is view.params.tensors["b"]


def test_value_that_only_moves_quantized_data_keeps_its_grid(view: QuantizedView) -> None:
    y = ir.Value(name="y")
    reshape = ir.node("Flatten", [y])
    reshape.outputs[0].name = "z"
    relu = ir.node("Relu", [ir.Value(name="x")])
    relu.outputs[0].name = "y"
    assert view.keeps_grid(reshape.outputs[0])
    assert not view.keeps_grid(relu.outputs[0])


def test_quantizers_are_listed_in_writing_order(view: QuantizedView) -> None:
    assert [entry.name for entry in view] == ["x", "y", "z", "h", "x_int16", "w", "b"]
