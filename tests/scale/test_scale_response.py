"""Ranges selected by the error after the elementwise functions that read the tensor."""

import hypothesis.strategies as st
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings

import quantry
from quantry.errors import RecipeError
from quantry.numerics.affine import affine
from quantry.numerics.grid import Grid
from quantry.numerics.histogram import TensorStats
from quantry.numerics.rounding import fake_quantize
from quantry.numerics.scalar_function import IDENTITY, ScalarFunction
from quantry.numerics.tensor_params import TensorParams
from quantry.recipe import (
    DataType,
    MinMSE,
    PlanOptions,
    PowerOfTwoScale,
    Recipe,
    ScaleOptions,
    TensorSpec,
)
from quantry.scale.activations import responses
from quantry.scale.ranges import find_range
from quantry.scale.values import BinnedValues, ResponseValues

SIGMOID = ScalarFunction("Sigmoid", (), (IDENTITY,))
SILU = ScalarFunction("Mul", (), (IDENTITY, SIGMOID))


def graph(body: str) -> ir.Graph:
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[1,4] x) => (float[1,4] y) <float h = {{3}}> {{ {body} }}'
    return ir.from_proto(onnx.parser.parse_model(text)).graph


def statistics(values: np.ndarray) -> TensorStats:
    values = values.astype(np.float32)
    codes, counts = np.unique((values.view(np.uint32) >> 16).astype(np.uint16), return_counts=True)
    ends = np.array([values.min()]), np.array([values.max()])
    return TensorStats(float(ends[0][0]), float(ends[1][0]), values.size, 0, 0, *ends, codes, counts)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = Neg(x) s = Sigmoid(a) y = Mul(a, s)", (SILU,)),
        ("a = Neg(x) y = Sigmoid(a)", (SIGMOID,)),
        ("a = Neg(x) b = Add(a, h) y = Relu(b)", None),
        ("a = Neg(x) s = Sigmoid(a) y = Mul(x, s)", (SIGMOID,)),
        ("a = Neg(x) s = Sigmoid(a) b = Softmax(a) y = Add(b, s)", ()),
        ("a = Neg(x) b = Sigmoid(a) c = Softmax(b) d = Tanh(a) y = Add(c, d)", None),
    ],
)
def test_response_is_what_lies_between_a_tensor_and_its_first_other_reader(
    body: str, expected: tuple[ScalarFunction, ...] | None
) -> None:
    found = responses(graph(body), ["a", "x"]).get("a", ())
    assert expected is None or found == expected
    if expected is None:
        assert found
        assert IDENTITY not in found


def test_several_functions_after_one_tensor_all_count() -> None:
    found = responses(graph("a = Neg(x) b = Sigmoid(a) c = Softmax(b) d = Tanh(a) y = Add(c, d)"), ["a"])["a"]
    assert {function.operator for function in found} == {"Sigmoid", "Tanh"}
    values_after = ResponseValues(statistics(np.linspace(-9, 9, 5000)), found)
    grid = Grid(DataType.UINT8, symmetric=False)
    assert values_after.error(np.array([[0.07]]), np.array([[128.0]]), grid, 2)[0, 0] > 0


@given(st.integers(0, 2**32 - 1), st.sampled_from([SILU, SIGMOID]), st.booleans(), st.booleans())
@settings(max_examples=15, deadline=None)
def test_error_is_that_of_the_values_themselves(
    seed: int, function: ScalarFunction, symmetric: bool, power_of_two: bool
) -> None:
    random = np.random.default_rng(seed)
    values = (random.standard_normal(20000) * random.uniform(0.5, 8)).astype(np.float32)
    grid = Grid(DataType.INT8, symmetric, power_of_two)
    chosen = affine(find_range(BinnedValues(statistics(values)), MinMSE(), grid), grid)
    params = TensorParams(DataType.INT8, chosen.scale[0], chosen.zero_point[0])
    quantized = fake_quantize(values, params).astype(np.float64)
    exact = np.mean((function.evaluate(values.astype(np.float64)) - function.evaluate(quantized)) ** 2)
    values_after = ResponseValues(statistics(values), (function,))
    found = values_after.error(chosen.scale[None].astype(float), chosen.zero_point[None].astype(float), grid, 2)[0, 0]
    slope = values_after._weights[0]
    assert found / slope**2 == pytest.approx(exact, rel=0.1, abs=1e-9)


@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_a_tail_that_the_function_flattens_costs_nothing(power_of_two: bool, symmetric: bool) -> None:
    random = np.random.default_rng(0)
    values = np.concatenate([random.standard_normal(20000), random.uniform(-60, -40, 400)])
    grid = Grid(DataType.INT8, symmetric, power_of_two)
    ways = (BinnedValues(statistics(values)), ResponseValues(statistics(values), (SILU,)))
    scales = [float(affine(find_range(observed, MinMSE(), grid), grid).scale[0]) for observed in ways]
    assert scales[1] < scales[0] / 3


def test_whole_models_lose_less_when_evaluated_after() -> None:
    random = np.random.default_rng(1)
    first = np.concatenate([random.standard_normal((4, 4)) * 0.5, random.standard_normal((4, 4)) * 0.5 - 9])
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n,4] x) => (float[n,3] y) {
        a = Gemm <transB = 1> (x, w, b) s = Sigmoid(a) m = Mul(a, s) y = Gemm(m, v) }"""
    proto = onnx.parser.parse_model(text)
    for name, array in {"w": first, "b": random.standard_normal(8), "v": random.standard_normal((8, 3))}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    data = [{"x": np.abs(random.standard_normal((8, 4))).astype(np.float32)} for _ in range(4)]
    spec = TensorSpec(DataType.INT8, scale=PowerOfTwoScale())
    scores = []
    for after in (False, True):
        options = ScaleOptions(activation=MinMSE(after_functions=after), weight=MinMSE())
        recipe = Recipe(plan=PlanOptions(activation=spec), scale=options)
        scores.append(quantry.quantize(proto, data, recipe, store=None).evaluation.metrics["sqnr"].value)
    assert scores[1] > scores[0] + 3


def test_weights_have_nothing_after_them() -> None:
    with pytest.raises(RecipeError, match="no function follows a weight"):
        ScaleOptions(weight=MinMSE(after_functions=True))


@pytest.mark.parametrize("value", [0.0, 3.5, -1e-30])
def test_a_constant_tensor_has_a_range(value: float) -> None:
    grid = Grid(DataType.INT8, symmetric=False)
    interval = find_range(ResponseValues(statistics(np.full(9, value)), (SILU,)), MinMSE(), grid)
    assert np.isfinite(affine(interval, grid).scale).all()
