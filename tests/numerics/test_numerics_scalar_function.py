import math

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from observe_oracle import CPU, assert_closely
from quantry.numerics.scalar_function import IDENTITY, OPERATORS, ScalarFunction, constant, turning_points
from quantry.observe.counting import CountingSpace, TensorCounter
from quantry.observe.derive import combined_stats, derived_extrema, derived_histogram


def apply(name, *parameters, to=IDENTITY):
    return ScalarFunction(name, parameters, (to,))


def combine(name, left, right):
    return ScalarFunction(name, (), (left, right))


SILU = combine("Mul", IDENTITY, apply("Sigmoid"))
ERF = apply("Erf", to=combine("Div", IDENTITY, constant(math.sqrt(2))))
GELU_FROM_ERF = combine("Mul", IDENTITY, combine("Mul", constant(0.5), combine("Add", constant(1.0), ERF)))

# Function, and the ONNX operators of which stock onnxruntime makes it from x.
FUNCTIONS = {
    "Abs": (apply("Abs"), "y = Abs(x)"),
    "Add": (combine("Add", IDENTITY, constant(1.5)), "c = Constant<value = float {1.5}>() y = Add(x, c)"),
    "Celu": (apply("Celu", 0.7), "y = Celu<alpha = 0.7>(x)"),
    "Clip": (
        combine("Min", combine("Max", IDENTITY, constant(-1.0)), constant(2.0)),
        "l = Constant<value = float {-1.0}>() h = Constant<value = float {2.0}>() y = Clip(x, l, h)",
    ),
    "Div": (combine("Div", IDENTITY, constant(-3.0)), "c = Constant<value = float {-3.0}>() y = Div(x, c)"),
    "Elu": (apply("Elu", 0.7), "y = Elu<alpha = 0.7>(x)"),
    "Erf": (apply("Erf"), "y = Erf(x)"),
    "Exp": (apply("Exp"), "y = Exp(x)"),
    "Gelu": (apply("Gelu"), "y = Gelu(x)"),
    "GeluFromErf": (
        GELU_FROM_ERF,
        "r, o, h = Constants() d = Div(x, r) e = Erf(d) a = Add(o, e) m = Mul(h, a) y = Mul(x, m)".replace(
            "r, o, h = Constants()",
            " ".join(f"{n} = Constant<value = float {{{v}}}>()" for n, v in (("r", 1.4142135), ("o", 1.0), ("h", 0.5))),
        ),
    ),
    "GeluTanh": (apply("GeluTanh"), 'y = Gelu<approximate = "tanh">(x)'),
    "HardSigmoid": (apply("HardSigmoid", 0.25, 0.4), "y = HardSigmoid<alpha = 0.25, beta = 0.4>(x)"),
    "HardSwish": (apply("HardSwish"), "y = HardSwish(x)"),
    "LeakyRelu": (apply("LeakyRelu", 0.1), "y = LeakyRelu<alpha = 0.1>(x)"),
    "Max": (combine("Max", constant(0.25), IDENTITY), "c = Constant<value = float {0.25}>() y = Max(c, x)"),
    "Min": (combine("Min", IDENTITY, constant(0.25)), "c = Constant<value = float {0.25}>() y = Min(x, c)"),
    "Mish": (apply("Mish"), "y = Mish(x)"),
    "Mul": (combine("Mul", IDENTITY, constant(-0.3)), "c = Constant<value = float {-0.3}>() y = Mul(x, c)"),
    "Neg": (apply("Neg"), "y = Neg(x)"),
    "PRelu": (combine("PRelu", IDENTITY, constant(-0.5)), "c = Constant<value = float {-0.5}>() y = PRelu(x, c)"),
    "Pow": (combine("Pow", IDENTITY, constant(2.0)), "c = Constant<value = float {2.0}>() y = Pow(x, c)"),
    "Relu": (apply("Relu"), "y = Relu(x)"),
    "Selu": (apply("Selu", 1.6732632, 1.050701), "y = Selu(x)"),
    "Sigmoid": (apply("Sigmoid"), "y = Sigmoid(x)"),
    "Silu": (SILU, "s = Sigmoid(x) y = Mul(x, s)"),
    "Softplus": (apply("Softplus"), "y = Softplus(x)"),
    "Softsign": (apply("Softsign"), "y = Softsign(x)"),
    "Sub": (combine("Sub", constant(1.0), IDENTITY), "c = Constant<value = float {1.0}>() y = Sub(c, x)"),
    "Tanh": (apply("Tanh"), "y = Tanh(x)"),
}


def run(body, x):
    graph = onnx.parser.parse_graph(f"g (float[n] x) => (float[n] y) {{ {body} }}")
    model = onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 22)])
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=list(CPU))
    return session.run(None, {"x": x})[0]


def derived(function, samples):
    counter = TensorCounter(CountingSpace(), turning_points(function))
    for sample in samples:
        counter.add(sample)
    root = counter.freeze()
    return combined_stats([derived_histogram(root.distribution, function)], [derived_extrema(root, function)], [1])


def test_every_operator_has_a_case_here():
    used = {name for function, _ in FUNCTIONS.values() for name in _operators(function)}
    assert set(OPERATORS) <= used


def _operators(function):
    return {function.operator} | {name for operand in function.operands for name in _operators(operand)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_computes_what_onnxruntime_computes(name):
    function, body = FUNCTIONS[name]
    x = np.linspace(-9, 9, 2001).astype(np.float32)
    np.testing.assert_allclose(function.evaluate(x.astype(np.float64)), run(body, x), rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("spread", [0.02, 3.0])
def test_derived_statistics_are_those_observed(name, spread):
    function, body = FUNCTIONS[name]
    random = np.random.default_rng(5)
    samples = [(random.standard_normal(4000) * spread + shift).astype(np.float32) for shift in (-0.5, 0.0, 1.0)]
    assert_closely(derived(function, samples), [run(body, sample) for sample in samples], name)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_mean_squared_value_is_kept(name):
    function, body = FUNCTIONS[name]
    x = np.random.default_rng(6).standard_normal(20000).astype(np.float32)
    found = derived(function, [x]).distribution()
    middle = (found.lower + found.upper) / 2
    exact = np.square(run(body, x).astype(np.float64)).mean()
    assert (middle**2 @ found.counts) / found.total == pytest.approx(exact, rel=0.01)


@given(st.sampled_from(sorted(FUNCTIONS)), st.floats(-3, 3), st.floats(-6, 2), st.integers(1, 40))
def test_extrema_are_exact_wherever_the_values_lie(name, centre, log_spread, count):
    function, _ = FUNCTIONS[name]
    values = np.random.default_rng(count).standard_normal(count) * math.exp(log_spread) + centre
    sample = values.astype(np.float32)
    image = function.evaluate(sample.astype(np.float64))
    stats = derived(function, [sample])
    assert stats.minimum == pytest.approx(image.min(), rel=1e-6, abs=1e-7)
    assert stats.maximum == pytest.approx(image.max(), rel=1e-6, abs=1e-7)
    assert stats.count == count == stats.counts.sum()
    assert (np.diff(stats.codes.astype(int)) > 0).all()
    spread = stats.distribution()
    assert (spread.lower[0], spread.upper[-1]) == (stats.minimum, stats.maximum)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (SILU, [-1.2784645]),
        (apply("Gelu"), [-0.7517915]),
        (GELU_FROM_ERF, [-0.7517915]),
        (apply("HardSwish"), [-1.5]),
        (apply("Mish"), [-1.1924312]),
        (apply("Abs"), [0.0]),
        (combine("Mul", IDENTITY, IDENTITY), [0.0]),
        (combine("Add", IDENTITY, apply("Sigmoid")), []),
        (combine("Sub", combine("Pow", IDENTITY, constant(3.0)), IDENTITY), [-(3**-0.5), 3**-0.5]),
        (combine("Mul", constant(-2.0), SILU), [-1.2784645]),
        (SILU.after(combine("Mul", IDENTITY, constant(0.5))), [-2.556929]),
    ],
)
def test_turning_points_are_found(function, expected):
    found = [turn.position for turn in turning_points(function)]
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tolerance_of_a_turning_point_is_below_rounding(name):
    function, _ = FUNCTIONS[name]
    for turn in turning_points(function):
        around = turn.position + turn.tolerance * np.array([-1.0, 0.0, 1.0])
        values = function.evaluate(around)
        assert np.ptp(values) <= np.spacing(np.float32(abs(values[1])))


def test_function_that_turns_too_often_is_not_followed():
    cubic = combine("Sub", combine("Pow", IDENTITY, constant(3.0)), combine("Mul", constant(2.0), IDENTITY))
    assert turning_points(cubic.after(cubic)) is None


def test_composition_applies_the_inner_function_first():
    negated = apply("Neg").after(apply("Relu"))
    assert negated.evaluate(np.array([-1.0, 2.0])).tolist() == [0.0, -2.0]
    assert apply("Relu").after(apply("Neg")).evaluate(np.array([-1.0, 2.0])).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("function", [SILU, GELU_FROM_ERF, apply("HardSigmoid", 0.2, 0.5), IDENTITY, constant(3.0)])
def test_function_survives_as_plain_data(function):
    assert ScalarFunction.from_plain(function.to_plain()) == function


@pytest.mark.parametrize(
    ("function", "monotone"),
    [
        (apply("LeakyRelu", 0.1), True),
        (apply("LeakyRelu", -0.1), False),
        (combine("PRelu", IDENTITY, constant(0.5)), True),
        (combine("PRelu", IDENTITY, constant(-0.5)), False),
        (combine("Pow", IDENTITY, constant(2.0)), False),
        (combine("Pow", IDENTITY, constant(3.0)), True),
        (apply("Relu", to=combine("Sub", constant(1.0), IDENTITY)), True),
        (apply("Relu", to=SILU), False),
    ],
)
def test_monotone_is_known(function, monotone):
    assert function.monotone is monotone


def test_zeros_after_relu_are_a_point_mass():
    x = np.random.default_rng(7).standard_normal(1000).astype(np.float32)
    found = derived(apply("Relu"), [x]).distribution()
    assert (found.lower[0], found.upper[0], found.counts[0]) == (0.0, 0.0, (x <= 0).sum())
