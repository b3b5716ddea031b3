"""Sensitivities against quantizing one tensor at a time and running the whole model."""

import numpy as np
import onnxruntime
import pytest
from mixed_models import network, samples

from quantry.data.calibration_data import CalibrationData
from quantry.data.open_data import calibration_data
from quantry.emit import emit
from quantry.graph.float_model import FloatModel
from quantry.graph.load import model_source
from quantry.graph.quant_plan import QuantPlan
from quantry.memo import Memo, MemoryStore
from quantry.mix import Sensitivity, sensitivity
from quantry.mix.downstream import Downstream
from quantry.mix.sensitivity import results_of
from quantry.numerics.tensor_params import QuantParams
from quantry.observe import observe
from quantry.plan import plan
from quantry.prepare import prepare
from quantry.recipe import (
    DataType,
    EmitOptions,
    FloatBias,
    ObserveOptions,
    PlanOptions,
    PrepareOptions,
    ScaleOptions,
    TensorSpec,
)
from quantry.scale import scale

INT8, INT16 = TensorSpec(DataType.INT8), TensorSpec(DataType.INT16)


def prepared() -> tuple[FloatModel, CalibrationData]:
    model = prepare(model_source(network()), PrepareOptions())
    return model, calibration_data(samples(), model.inputs)


def scheme(model: FloatModel, data: CalibrationData, spec: TensorSpec) -> tuple[QuantPlan, QuantParams]:
    planned = plan(model, PlanOptions(activation=spec, weight=spec, bias=FloatBias()))
    return planned, scale(model, observe(model, data, ObserveOptions()), planned, ScaleOptions())


def outputs(model: bytes, sample: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, sample)


def brute_force(model: FloatModel, data: CalibrationData, planned: QuantPlan, params: QuantParams) -> np.ndarray:
    """Return the relative error power of both outputs with one tensor quantized at a time."""
    exact = [outputs(network().SerializeToString(), sample) for sample in data]
    rows = []
    for name in tensors(planned):
        alone = QuantPlan(
            activations={key: entry for key, entry in planned.activations.items() if planned.root(key) == name},
            weights={key: entry for key, entry in planned.weights.items() if key == name},
            quantized_nodes=planned.quantized_nodes,
        )
        written = emit(model, alone, params, EmitOptions(), {}).to_bytes()
        found = [outputs(written, sample) for sample in data]
        error = [sum(np.square(f[i] - e[i]).sum() for f, e in zip(found, exact, strict=True)) for i in range(2)]
        power = [sum(np.square(e[i]).sum() for e in exact) for i in range(2)]
        rows.append(np.array(error) / power)
    return np.array(rows)


def tensors(planned: QuantPlan) -> tuple[str, ...]:
    return (*(name for name in planned.activations if planned.root(name) == name), *planned.weights)


def test_sensitivity_equals_quantizing_one_tensor_at_a_time() -> None:
    model, data = prepared()
    planned, params = scheme(model, data, INT8)
    found = sensitivity(model, data, (planned,), (params,), tensors(planned))
    assert found.outputs == ("classes", "map")
    np.testing.assert_allclose(found.noise[:, 0], brute_force(model, data, planned, params), rtol=1e-2, atol=1e-9)


def test_finer_types_are_derived_from_coarser_ones_where_that_is_exact_enough() -> None:
    model, data = prepared()
    coarse, fine = scheme(model, data, INT8), scheme(model, data, INT16)
    found = sensitivity(model, data, (coarse[0], fine[0]), (coarse[1], fine[1]), tensors(coarse[0]))
    exact = brute_force(model, data, *fine)
    ratio = found.noise[:, 1].mean(axis=-1) / np.maximum(exact.mean(axis=-1), 1e-14)
    assert 0.3 < np.median(ratio) < 3


@pytest.mark.parametrize("dtype", [DataType.BFLOAT16, DataType.FLOAT16])
def test_types_without_scales_have_sensitivities(dtype: DataType) -> None:
    model, data = prepared()
    planned, params = scheme(model, data, TensorSpec(dtype))
    found = sensitivity(model, data, (planned,), (params,), tensors(planned))
    np.testing.assert_allclose(found.noise[:, 0], brute_force(model, data, planned, params), rtol=0.05, atol=1e-10)


def test_outlier_weight_is_the_most_sensitive() -> None:
    model, data = prepared()
    planned, params = scheme(model, data, INT8)
    found = sensitivity(model, data, (planned,), (params,), tuple(planned.weights))
    assert found.tensors[int(found.noise[:, 0, 1].argmax())] == "wide_w", "by what it does to the map"


def test_sensitivity_is_kept_in_the_store() -> None:
    model, data = prepared()
    planned, params = scheme(model, data, INT8)
    memo = Memo(MemoryStore())
    first = memo.run(sensitivity, model, data, (planned,), (params,), ("b",)).value
    again = Memo(memo.store)
    second = again.run(sensitivity, model, data, (planned,), (params,), ("b",)).value
    assert again.trace.reused("sensitivity") == 1
    np.testing.assert_array_equal(first.noise, second.noise)
    restored = Sensitivity.from_blob(first.to_blob())
    np.testing.assert_array_equal(restored.of("b"), first.of("b"))
    np.testing.assert_array_equal(restored.of("b", 0), first.noise[0, :, 0])


def test_unchanged_tensor_changes_nothing_downstream() -> None:
    model, data = prepared()
    downstream = Downstream(model.model)
    known = downstream.run(next(iter(data)))
    for name in ("x", "c", "e", "last_w"):
        value = known[name] if name in known else model.model.graph.initializers[name].const_value.numpy()
        for output, result in downstream.changed(known, {name: value}).items():
            np.testing.assert_allclose(result, known[output], rtol=1e-5, atol=1e-6)


def test_results_of_a_detector_are_the_parts_of_its_last_join() -> None:
    import onnx.parser

    text = """<ir_version: 8, opset_import: ["" : 17]> d (float[1,4,4] x) => (float[1,8,4] y) {
        boxes = Relu(x)
        scores = Sigmoid(x)
        y = Concat<axis = 1>(boxes, scores)
    }"""
    model = prepare(model_source(onnx.parser.parse_model(text)), PrepareOptions())
    assert results_of(model.model.graph) == ("boxes", "scores")
