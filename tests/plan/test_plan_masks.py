"""Attention masks stay float, and so does what they are added to, up to the Softmax."""

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from quantry import quantize
from quantry.graph.load import model_source
from quantry.graph.quant_plan import QuantPlan
from quantry.plan import plan
from quantry.prepare import prepare
from quantry.recipe import PlanOptions, PrepareOptions


def graph(body: str, **constants: np.ndarray) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,2,4] x) => (float[1,2,4] y) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    return model


def planned(model: onnx.ModelProto) -> QuantPlan:
    return plan(prepare(model_source(model), PrepareOptions()), PlanOptions(force_pass_through=True))


def mask(value: float) -> np.ndarray:
    return np.array([[[0, 0, value, value], [0, 0, 0, value]]], np.float32)


@pytest.mark.parametrize("far", [-np.inf, np.finfo(np.float32).min, -1e9, -65504, -10000])
def test_softmax_reads_masked_scores_in_float(far: float) -> None:
    result = planned(graph("s = Mul(x, x) [masking] t = Add(s, mask) y = Softmax<axis = -1>(t)", mask=mask(far)))
    assert set(result.activations) == {"x", "s", "y"}
    (declined,) = result.declined
    assert declined.node == "masking"
    assert "'mask'" in declined.reason


def test_mask_that_is_computed_moved_and_then_added_is_followed() -> None:
    body = """[scaled] m = Mul(keep, far)
    [moved] u = Transpose<perm = [0,2,1]>(m) [again] v = Transpose<perm = [0,2,1]>(u)
    [masking] t = Add(x, v) y = Softmax<axis = -1>(t)"""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,2,4] x, float[1,2,4] keep) => (float[1,2,4] y) {{ {body} }}"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.array(-10000, np.float32), "far"))
    result = planned(model)
    assert [entry.node for entry in result.declined] == ["scaled", "moved", "again", "masking"]
    assert list(result.activations) == ["y"]


def test_operator_that_is_no_softmax_stays_float_after_a_mask() -> None:
    result = planned(graph("t = Add(x, mask) [act] y = Relu(t)", mask=mask(-np.inf)))
    assert not result.activations
    assert [entry.operator for entry in result.declined] == ["Add", "Relu"]


def test_limit_of_a_maximum_ends_at_the_maximum() -> None:
    result = planned(graph("[limit] t = Max(x, low) y = Relu(t)", low=np.array(-np.inf, np.float32)))
    assert [entry.node for entry in result.declined] == ["limit"]
    assert set(result.activations) == {"t", "y"}


def test_ordinary_constants_are_no_masks() -> None:
    result = planned(graph("t = Add(x, c) y = Softmax<axis = -1>(t)", c=mask(-9999)))
    assert not result.declined
    assert set(result.activations) == {"x", "t", "y"}


@pytest.mark.parametrize("far", [-np.inf, -1e9, -10000])
@pytest.mark.parametrize("preset", ["XINT8", "U8S8_AAWS", "A16W8"])
def test_masked_positions_keep_no_weight(preset: str, far: float) -> None:
    model = graph("s = Mul(x, x) t = Add(s, mask) y = Softmax<axis = -1>(t)", mask=mask(far))
    data = [{"x": np.random.default_rng(0).normal(size=(1, 2, 4)).astype(np.float32)}]
    result = quantize(model, data, preset, store=None)
    (reference,) = ort.InferenceSession(model.SerializeToString()).run(None, data[0])
    (got,) = ort.InferenceSession(result.to_bytes()).run(None, data[0])
    assert np.all(got[mask(far) != 0] == 0)
    np.testing.assert_allclose(got, reference, atol=0.03)
