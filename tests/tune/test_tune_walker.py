"""The walker's inputs against the emitted model, and how often it runs each node."""

import numpy as np
import onnx
import onnxruntime
import pytest
from tune_models import COARSE, chain, inputs, network, task_of

from quantry.emit import emit
from quantry.recipe import DataType, EmitOptions, Gptq, PlanOptions, TensorSpec
from quantry.tune import TuneTask
from quantry.tune.layers import find_layers
from quantry.tune.layerwise import LayerWalker


def emitted_tensors(task: TuneTask, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what every node of the emitted model gives, by its name, without optimisations."""
    quantized = emit(task.model, task.plan, task.params, EmitOptions(), {})
    model = onnx.load_from_string(quantized.to_bytes())
    names = [output for node in model.graph.node for output in node.output]
    present = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names if name not in present)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = [output.name for output in session.get_outputs()]
    values = dict(zip(wanted, session.run(wanted, feed), strict=True))
    return {node.name: values[node.output[0]] for node in model.graph.node}


@pytest.mark.parametrize("activation", [DataType.INT8, DataType.UINT8, DataType.INT16])
def test_layers_get_the_inputs_of_the_emitted_model(activation: DataType) -> None:
    samples = inputs((3, 8, 8), 3)
    options = PlanOptions(TensorSpec(activation, symmetric=activation is DataType.INT16), COARSE.weight)
    task = task_of(chain(), samples, options)
    layers, _ = find_layers(task.model.model, task.plan, ("Conv",))
    expected = emitted_tensors(task, samples[2])
    for visit in LayerWalker(task, layers, Gptq()).visits("test"):
        fed, _ = visit.pair(2)
        np.testing.assert_array_equal(fed, expected[f"{visit.layer.source}_DequantizeLinear"])


def test_targets_are_the_float_outputs_and_new_constants_reach_later_layers() -> None:
    samples = inputs((3, 8, 8), 2)
    task = task_of(chain(), samples)
    session = onnxruntime.InferenceSession(chain().SerializeToString(), providers=["CPUExecutionProvider"])
    layers, _ = find_layers(task.model.model, task.plan, ("Conv",))
    last = []
    for visit in LayerWalker(task, layers, Gptq()).visits("test"):
        fed, target = visit.pair(1)
        last = [fed, target]
        visit.finish({visit.layer.weight: np.zeros_like(visit.layer.initializer(visit.layer.weight))})
    np.testing.assert_allclose(last[1], session.run(None, samples[1])[0], rtol=1e-4, atol=1e-5)
    # Both convolutions before the last one give constants now, so its input is the same everywhere inside.
    assert np.ptp(last[0][:, :, 2:-2, 2:-2], axis=(2, 3)).max() == 0


@pytest.mark.parametrize("level", [0, 1, 2])
def test_memory_level_does_not_change_what_layers_see(level: int) -> None:
    task = task_of(network(), inputs((4, 9, 8), 3))
    layers, _ = find_layers(task.model.model, task.plan, ("Conv", "Gemm"))
    sums = [float(visit.pair(1)[0].sum()) for visit in LayerWalker(task, layers, Gptq(memory=level)).visits("test")]
    reference = [float(visit.pair(1)[0].sum()) for visit in LayerWalker(task, layers, Gptq()).visits("test")]
    assert sums == reference


def test_every_node_runs_once_for_each_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    from quantry.execute import activation_stream

    task = task_of(chain(), inputs((3, 8, 8), 2))
    seen: list[str] = []
    original = activation_stream.segment_of

    def counting(model, nodes, wanted, later):  # type: ignore[no-untyped-def]
        seen.extend(node.name for node in nodes)
        return original(model, nodes, wanted, later)

    monkeypatch.setattr(activation_stream, "segment_of", counting)
    layers, _ = find_layers(task.model.model, task.plan, ("Conv",))
    for visit in LayerWalker(task, layers, Gptq()).visits("test"):
        visit.finish({})
    names = [node.name for node in task.model.model.graph]
    # Once as float, and once as quantized up to the last layer.
    assert all(seen.count(name) <= 2 for name in names)


def test_mixed_inputs_are_between_float_and_quantized_ones() -> None:
    task = task_of(chain(), inputs((3, 8, 8), 2))
    layers, _ = find_layers(task.model.model, task.plan, ("Conv",))
    exact, mixed, rounded = (
        [visit.pair(0)[0] for visit in LayerWalker(task, layers, Gptq(quantized_inputs=part)).visits("test")][1]
        for part in (0.0, 0.5, 1.0)
    )
    assert ((mixed == exact) | (mixed == rounded)).all()
    assert 0.3 < (mixed == rounded).mean() < 0.9
