import dataclasses
import math

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import quantry
from quantry.errors import RecipeError
from quantry.recipe import PerChannel

TWO_CONVS = """
<ir_version: 8, opset_import: ["": 17]>
pair (float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y)
<float[4, 3, 3, 3] w1, float[4, 4, 1, 1] w2>
{
  first = Conv<pads=[1, 1, 1, 1]>(x, w1)
  y = Conv(first, w2)
}
"""


def two_convs(change=lambda w1, w2: None) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    w1, w2 = rng.standard_normal((4, 3, 3, 3)) / 5, rng.standard_normal((4, 4, 1, 1)) / 2
    change(w1, w2)
    model = onnx.parser.parse_model(TWO_CONVS)
    del model.graph.initializer[:]
    model.graph.initializer.extend(
        numpy_helper.from_array(array.astype(np.float32), name) for name, array in (("w1", w1), ("w2", w2))
    )
    for number, node in enumerate(model.graph.node):
        node.name = f"conv{number}"
    return model


def samples(count: int = 4, scale: float = 1.0) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [scale * rng.standard_normal((1, 3, 8, 8)).astype(np.float32) for _ in range(count)]


def diagnosed(model: onnx.ModelProto, data: list[np.ndarray], recipe="S8S8_AAWS") -> quantry.Diagnosis:
    return quantry.diagnose(quantry.quantize(model, data, recipe, store=None))


def titles(diagnosis: quantry.Diagnosis) -> str:
    return "\n".join(finding.title for finding in diagnosis.findings)


def test_healthy_model_has_no_findings() -> None:
    diagnosis = diagnosed(two_convs(), samples())
    assert diagnosis.findings == ()
    assert "no known cause" in str(diagnosis)
    assert all(tensor.sqnr > 30 for tensor in diagnosis.tensors)


def test_channel_that_starves_the_others_is_found_and_the_fix_works() -> None:
    def blow_up(w1: np.ndarray, w2: np.ndarray) -> None:
        w1[2, 2] *= 400

    model = two_convs(blow_up)
    plain = quantry.Recipe()
    data = samples()
    for sample in data:
        sample[:, 2] = 0  # so that the large weights stretch the range of all, and nothing else
    sick = diagnosed(model, data, plain)
    assert [finding.tensors for finding in sick.findings if "very different size" in finding.title] == [("w1",)]
    per_channel = dataclasses.replace(
        plain.plan, weight=dataclasses.replace(plain.plan.weight, granularity=PerChannel())
    )
    cured = diagnosed(model, data, dataclasses.replace(plain, plan=per_channel))
    assert "very different size" not in titles(cured)


@pytest.mark.parametrize("transposed", [0, 1])
def test_starved_columns_of_a_matrix_are_found_along_its_outputs(transposed: int) -> None:
    weight = np.random.default_rng(2).standard_normal((16, 8)).astype(np.float32)
    weight[:, 3] *= 400
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,16] x) => (float[1,8] y) <float[1] w> '
        f"{{ y = Gemm<transB = {transposed}>(x, w) }}"
    )
    del model.graph.initializer[:]
    model.graph.initializer.append(numpy_helper.from_array(weight.T.copy() if transposed else weight, "w"))
    data = [np.random.default_rng(3).standard_normal((1, 16)).astype(np.float32)]
    found = diagnosed(model, data, quantry.Recipe())
    assert [finding.tensors for finding in found.findings if "very different size" in finding.title] == [("w",)]


def test_outliers_of_an_activation_are_found() -> None:
    data = samples(64, scale=0.5)
    data[0][0, 0, 0, 0] = 100.0
    diagnosis = diagnosed(two_convs(), data)
    found = next(finding for finding in diagnosis.findings if "outliers" in finding.title)
    assert "x" in found.tensors
    assert "MinMSE" in found.fix


def test_conversion_that_changes_the_float_model_is_reported() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        gate (float[1, 3, 8, 8] x) => (float[1, 3, 8, 8] y) <float[3, 3, 1, 1] w = {1,0,0,0,1,0,0,0,1}>
        { c = Conv(x, w)  y = Sigmoid(c) }
    """)
    diagnosis = diagnosed(model, samples(scale=4.0), "XINT8")
    assert "already changes before quantization" in titles(diagnosis)


def test_error_gathers_along_the_graph_and_falls_are_sorted() -> None:
    diagnosis = diagnosed(two_convs(), samples())
    assert list(diagnosis.gathered) == ["first", "y"]
    assert [fall.lost for fall in diagnosis.falls] == sorted((fall.lost for fall in diagnosis.falls), reverse=True)
    assert {fall.tensor: fall.before for fall in diagnosis.falls}["first"] == math.inf


def test_gathered_error_is_that_of_the_outputs() -> None:
    result = quantry.quantize(two_convs(), samples(1), "S8S8_AAWS", store=None)
    assert quantry.diagnose(result, samples=1).gathered["y"] == pytest.approx(result.evaluation.metrics["sqnr"].value)


def test_own_noise_of_an_activation_is_that_of_its_values() -> None:
    data = samples(8)
    result = quantry.quantize(two_convs(), data, "S8S8_AAWS", store=None)
    health = {tensor.name: tensor for tensor in quantry.diagnose(result).tensors}["x"]
    values = np.concatenate([sample.ravel() for sample in data]).astype(np.float64)
    scale = health.scales[0]
    zero_point = round(-128 - health.range[0] / scale)
    restored = (np.clip(np.rint(values / scale) + zero_point, -128, 127) - zero_point) * scale
    expected = 10 * math.log10((values**2).mean() / ((values - restored) ** 2).mean())
    assert health.sqnr == pytest.approx(expected, abs=0.1)


def test_samples_must_be_positive() -> None:
    result = quantry.quantize(two_convs(), samples(1), "S8S8_AAWS", store=None)
    with pytest.raises(RecipeError, match="at least 1, got 0"):
        quantry.diagnose(result, samples=0)


def test_large_fall_that_no_rule_knows_is_reported() -> None:
    def cancel(w1: np.ndarray, w2: np.ndarray) -> None:
        w1[1] = 1.01 * w1[0]  # the second layer takes the difference of two nearly equal channels
        w2[:] = 0
        w2[:, 0], w2[:, 1] = 1, -1

    diagnosis = diagnosed(two_convs(cancel), samples(), quantry.Recipe())
    assert "no known cause, but Conv conv1" in titles(diagnosis)
