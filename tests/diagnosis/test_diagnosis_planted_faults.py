"""Each known cause is injected into a healthy network, and must be the first finding; the healthy one has none."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import quantry
from quantry.diagnosis.counterfactual import Counterfactual
from quantry.evaluate.output_layout import PLAIN_LAYOUT
from quantry.recipe import (
    PRESETS,
    MinMax,
    MinMSE,
    NpuConversions,
    Percentile,
    PerChannel,
    Recipe,
    ScaleOptions,
    TensorSpec,
)

Weights = dict[str, np.ndarray]

CLASSIFIER = """
g (float[1,3,16,16] x) => (float[1,40] y)
{ a = Conv<pads=[1,1,1,1]>(x, w1, b1)  ar = Relu(a)
  c = Conv<pads=[1,1,1,1]>(ar, w2, b2) cr = Relu(c)
  d = Conv<pads=[1,1,1,1]>(cr, w3, b3) dr = Relu(d)
  p = GlobalAveragePool(dr)  f = Flatten(p)  y = Gemm(f, w4, b4) }
"""
JOINED = """
g (float[1,3,16,16] x) => (float[1,8,16,16] y, float[1,8,16,16] z)
{ a = Conv(x, k1)  c = Conv(x, k2)  j = Concat<axis=1>(a, c)  ja, jc = Split<axis=1>(j)
  y = Conv(ja, k3)  z = Conv(jc, k4) }
"""
NORMALIZED = """
g (float[1,3,16,16] x) => (float[1,8,16,16] y, float[1,8,16,16] z)
{ n = Conv(x, n1)  s = Softplus(n)  m = Conv(x, n2)  z = Conv(s, n3)  y = Div(m, s) }
"""
TRANSFORMER = """
g (float[1,24,16] t) => (float[1,24,16] y)
{ h1 = MatMul(t, m1)  h2 = Relu(h1)  h3 = MatMul(h2, m2)  s = Add(t, h3)  n = LayerNormalization<axis=-1>(s, gain)
  y = MatMul(n, m3) }
"""


def weights(seed: int = 0) -> Weights:
    rng = np.random.default_rng(seed)
    shapes = {
        **dict.fromkeys(["w2", "w3"], (16, 16, 3, 3)),
        **dict.fromkeys(["b1", "b2", "b3"], (16,)),
        **dict.fromkeys(["k1", "k2", "n1", "n2"], (8, 3, 1, 1)),
        **dict.fromkeys(["k3", "k4", "n3"], (8, 8, 1, 1)),
        "w1": (16, 3, 3, 3),
        "w4": (16, 40),
        "b4": (40,),
        **dict.fromkeys(["m1", "m2", "m3"], (16, 16)),
    }
    # Weights that keep the size of values from layer to layer.
    arrays = {name: rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:4]) / 2) for name, shape in shapes.items()}
    return {**arrays, "n1": arrays["n1"] / 20, "w4": arrays["w4"] * 3, "gain": np.ones(16)}


def network(text: str, arrays: Weights) -> onnx.ModelProto:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> ' + text)
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items() if name in used
    )
    for number, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{number}"
    return model


def samples(count: int = 12, seed: int = 1) -> list[np.ndarray]:
    """Pictures of a few smooth waves, which differ in brightness and contrast as photographs do."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:16, 0:16] / 16.0
    pictures = []
    for _ in range(count):
        waves = rng.standard_normal((1, 3, 4, 3))
        picture = sum(
            waves[..., wave, 0, None, None]
            * np.sin(6 * (waves[..., wave, 1, None, None] * rows + waves[..., wave, 2, None, None] * columns))
            for wave in range(4)
        )
        pictures.append((rng.uniform(0.3, 1.0) * picture + rng.normal(0, 0.5, (1, 3, 1, 1))).astype(np.float32))
    return pictures


def npu() -> Recipe:
    recipe = PRESETS["XINT8"].recipe
    conversions = NpuConversions(sigmoid_to_hard_sigmoid=False)
    return replace(recipe, prepare=replace(recipe.prepare, npu=conversions), equalize=Recipe().equalize)


def words(count: int = 12, seed: int = 1) -> list[np.ndarray]:
    """Sentences of 24 words, of which each is a point in 16 dimensions."""
    return list(np.random.default_rng(seed).standard_normal((count, 1, 24, 16)).astype(np.float32))


def unchanged(_: Weights) -> None:
    pass


def one_large_weight(arrays: Weights) -> None:
    arrays["b1"][5] = -100.0  # so that what the large weight reads is always zero
    arrays["w2"][3, 5, 1, 1] = 60.0


def one_large_input_channel(arrays: Weights) -> None:
    arrays["w1"] *= np.geomspace(1, 1e3, 16)[:, None, None, None]
    arrays["b1"] *= np.geomspace(1, 1e3, 16)
    arrays["w2"] /= np.geomspace(1, 1e3, 16)[:, None, None]


def one_large_channel_of_a_sum(arrays: Weights) -> None:
    arrays["m2"][:, 5] *= 100  # of the second layer, so that its results and the sum have it
    arrays["gain"][5] = 0.01  # training takes it back after the normalization


def large_branch(arrays: Weights) -> None:
    arrays["k1"] *= 300


def one_large_bias(arrays: Weights) -> None:
    arrays["b2"][:] = np.random.default_rng(5).standard_normal(16) * 0.4
    arrays["b2"][7] = -200.0


def one_hopeless_class(arrays: Weights) -> None:
    arrays["w4"] /= 30
    arrays["b4"][:] = 0
    arrays["b4"][9] = -60.0


def small_divisor(arrays: Weights) -> None:
    arrays["n1"] *= 120


def mean_of_inputs(arrays: Weights) -> None:
    arrays["w2"] -= arrays["w2"].mean(axis=(1, 2, 3), keepdims=True)
    arrays["w2"][0, 0, 0, 0] = 12.0
    arrays["w3"][:, 0] = 0.001
    arrays["b1"] += 8


@dataclass(frozen=True)
class Fault:
    """What is planted, and what must be found first."""

    title: str
    tensor: str
    plant: Callable[[Weights], None] = unchanged
    graph: str = CLASSIFIER
    recipe: Callable[[], Recipe] = Recipe
    calibration: Callable[[], list[np.ndarray]] = samples
    evaluation: Callable[[], list[np.ndarray]] | None = field(default=None)


def with_outliers() -> list[np.ndarray]:
    data = samples()
    data[3][0, 1, 5, 5] = 400.0
    return data


def one_strange_sample() -> list[np.ndarray]:
    """Return samples of which one has much larger values, as a file of another kind of data has."""
    return [(40 if index == 3 else 1) * sample for index, sample in enumerate(samples())]


def darker() -> list[np.ndarray]:
    return [0.1 * sample for sample in samples()]


def tight() -> Recipe:
    return replace(Recipe(), scale=ScaleOptions(activation=Percentile(80.0)))


def per_channel() -> Recipe:
    """Return a recipe in which each channel of a weight has a scale, so that activations alone are at fault."""
    return replace(Recipe(), plan=replace(Recipe().plan, weight=TensorSpec(granularity=PerChannel())))


def three() -> list[np.ndarray]:
    return [size * sample for size, sample in zip((0.5, 0.1, 0.05), samples(3), strict=True)]


FAULTS = {
    "weight channel": Fault("of very different size", "w2", one_large_weight),
    "activation channels": Fault("activation: channels of", "ar", one_large_input_channel),
    "outlier in the data": Fault("outliers in", "x", calibration=with_outliers, evaluation=samples),
    "sample of another kind": Fault(
        "calibration stretched", "x", calibration=one_strange_sample, evaluation=lambda: samples(12, 5)
    ),
    "tight percentile": Fault("values are cut off", "x", recipe=tight),
    "other evaluation data": Fault("values of the evaluation data", "x", calibration=darker, evaluation=samples),
    "sum of a transformer": Fault(
        "that a normalization reads", "s", one_large_channel_of_a_sum, TRANSFORMER, per_channel, words
    ),
    "shared range": Fault("of a shared range in use", "c", large_branch, JOINED, npu),
    "bias": Fault("bias does not fit", "b2", one_large_bias, recipe=npu),
    "coarse last layer": Fault("coarse outputs", "y", one_hopeless_class),
    "divisor": Fault("round to zero", "s", small_divisor, NORMALIZED),
    "too few samples": Fault("too few samples", "x", calibration=three, evaluation=lambda: samples(12, 5)),
    "shifted means": Fault("shifts the mean", "c", mean_of_inputs),
}


def planted_weights(fault: Fault) -> Weights:
    arrays = weights()
    fault.plant(arrays)
    return arrays


def diagnosed(fault: Fault, *, planted: bool) -> tuple[quantry.Diagnosis, quantry.QuantizationResult]:
    model = network(fault.graph, planted_weights(fault) if planted else weights())
    data = fault.calibration() if planted or fault.graph == TRANSFORMER else samples()
    held_out = fault.evaluation() if planted and fault.evaluation else None
    recipe = fault.recipe() if planted or fault.recipe is not tight else Recipe()
    result = quantry.quantize(model, data, recipe, evaluation_data=held_out, store=None)
    return quantry.diagnose(result), result


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_the_first_finding(name: str) -> None:
    fault = FAULTS[name]
    healthy, _ = diagnosed(fault, planted=False)
    assert fault.title not in str(healthy)
    sick, _ = diagnosed(fault, planted=True)
    assert (
        sick.closeness.mean_decibels < healthy.closeness.mean_decibels - 3
        or sick.closeness.mean_agreement < healthy.closeness.mean_agreement
    )
    first = sick.findings[0]
    assert fault.title in first.title
    assert fault.tensor in first.tensors
    assert first.cost is None or first.cost > 1 or first.decisions > 0


@pytest.mark.parametrize(("method", "helps"), [(MinMax(), True), (MinMSE(), False)])
def test_a_stretched_range_is_never_made_wider(method: MinMax | MinMSE, helps: bool) -> None:
    recipe = replace(Recipe(), scale=ScaleOptions(activation=method))
    sick, _ = diagnosed(replace(FAULTS["sample of another kind"], recipe=lambda: recipe), planted=True)
    finding = next(one for one in sick.findings if "calibration stretched" in one.title)
    labels = [fix.label for fix in finding.fixes]
    assert "ranges by MinMax" not in labels
    assert ("ranges by MinMSE" in labels, "MinMSE" in finding.fix) == (helps, helps)


@pytest.mark.parametrize(("reading", "is_blamed"), [(1e-6, False), (1.0, True)])
def test_tensor_is_blamed_only_if_its_rounding_changes_the_outputs(reading: float, is_blamed: bool) -> None:
    rng = np.random.default_rng(3)
    text = """
    g (float[1,3,16,16] x, float[1,3,16,16] q) => (float[1,4,16,16] y) { c = Conv(x, v)  r = Conv(q, u)  y = Add(c, r) }
    """
    v, u = rng.standard_normal((2, 4, 3, 1, 1))
    outliers = with_outliers()
    data = [{"x": x, "q": q} for x, q in zip(samples(), outliers, strict=True)]
    result = quantry.quantize(network(text, {"v": v, "u": reading * u}), data, Recipe(), store=None)
    diagnosis = quantry.diagnose(result)
    assert {tensor.name: tensor.sqnr for tensor in diagnosis.tensors}["q"] < 20
    assert ("q" in {name for finding in diagnosis.findings for name in finding.tensors}) is is_blamed


def test_rest_is_what_the_outputs_keep_without_all_causes() -> None:
    fault = FAULTS["sum of a transformer"]
    sick, result = diagnosed(fault, planted=True)
    healthy, _ = diagnosed(fault, planted=False)
    assert sick.rest is not None
    assert "without rounding these tensors the outputs would keep" in str(sick)
    # The large channel's harm is most of what the healthy model has more.
    gained = sick.rest.decibels - sick.closeness.mean_decibels
    assert gained > 2 * (healthy.closeness.mean_decibels - sick.rest.decibels)
    assert sick.rest.decibels > sick.closeness.mean_decibels + 6
    fixed = replace(result.recipe, plan=replace(result.recipe.plan, float_residuals=True))
    better = quantry.quantize(network(fault.graph, planted_weights(fault)), words(), fixed, store=None)
    assert quantry.diagnose(better).closeness.mean_decibels == pytest.approx(sick.rest.decibels, abs=3)


def test_what_a_finding_costs_is_what_a_run_without_it_gains() -> None:
    diagnosis, result = diagnosed(FAULTS["weight channel"], planted=True)
    measure = Counterfactual(
        result.stages, list(result.evaluation_data.take(8)), diagnosis.closeness.decibels, PLAIN_LAYOUT
    )
    assert measure.is_able
    gain, alone = measure.with_scales_per_channel(), measure.without_rounding(["w2"])
    assert gain is not None
    assert alone is not None
    assert diagnosis.findings[0].cost == pytest.approx(gain.decibels)
    # The channel with the large weight gains nothing from a scale of its own.
    assert gain.decibels < alone.decibels
    better = replace(result.recipe, plan=replace(result.recipe.plan, weight=TensorSpec(granularity=PerChannel())))
    model = network(CLASSIFIER, planted_weights(FAULTS["weight channel"]))
    kept = quantry.diagnose(quantry.quantize(model, samples(), better, store=None)).closeness.mean_decibels
    assert kept - diagnosis.closeness.mean_decibels == pytest.approx(gain.decibels, abs=1)
    untouched = measure.without_rounding(["no such tensor"])
    assert untouched is not None
    assert untouched.decibels == 0
