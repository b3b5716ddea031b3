"""Models in the torch interpreter give what the models give that the emit stage writes."""

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import torch
from tune_models import chain, inputs, network, task_of

import quantry.demo
from quantry.emit import emit
from quantry.execute.graph_builder import GraphDefinition
from quantry.execute.trainable_graph import TrainableGraph, Trained, interpretable_part
from quantry.graph.float_model import FloatModel
from quantry.graph.load import model_source
from quantry.prepare import prepare
from quantry.recipe import EmitOptions, PrepareOptions, find_preset
from quantry.tune import TuneTask

torch.set_num_threads(1)


def quantized_outputs(task: TuneTask, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = emit(task.model, task.plan, task.params, EmitOptions(), {}).to_bytes()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, feed)


def interpreted(task: TuneTask, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    definition = GraphDefinition(model=task.model, plan=task.plan, params=task.params)
    names = [value.name or "" for value in task.model.model.graph.outputs]
    graph = TrainableGraph(definition, list(task.model.model.graph), names, Trained())
    with torch.no_grad():
        results = graph.run({name: torch.from_numpy(array) for name, array in feed.items()}, quantized=True)
    return [results[name].numpy() for name in names]


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.square(ours - theirs).mean() / np.square(theirs).mean())


@pytest.mark.parametrize("preset", ["XINT8", "CPU_INT8", "A16W8", "S8S8_AAWS", "BF16"])
@pytest.mark.parametrize("model", [chain, network])
def test_quantized_graph_gives_what_the_emitted_model_gives(preset: str, model) -> None:  # type: ignore[no-untyped-def]
    samples = inputs((3, 8, 8) if model is chain else (4, 9, 8), 3)
    task = task_of(model(), samples, find_preset(preset).recipe.plan)
    for ours, theirs in zip(interpreted(task, samples[0]), quantized_outputs(task, samples[0]), strict=True):
        assert distance(ours, theirs) < 1e-4


def test_embedded_detector_is_interpreted_exactly_as_it_is_emitted() -> None:
    samples = list(quantry.demo.calibration_inputs(2))
    task = task_of(onnx.load(quantry.demo.model_path()), samples, find_preset("XINT8").recipe.plan)
    part = interpretable_part(task.model.model)
    assert not part.notes
    assert len(part.nodes) == len(list(task.model.model.graph))
    for ours, theirs in zip(interpreted(task, samples[0]), quantized_outputs(task, samples[0]), strict=True):
        assert distance(ours, theirs) < 1e-4


def test_unknown_operator_ends_the_trained_part_with_a_reason() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[1, 4] x) => (float[1, 4] y, int64[1, 4] z)
    {
        a = Relu (x)
        b = Bernoulli (a)
        y = Add (a, b)
        z = Shape (b)
    }
    """
    model = onnx.parser.parse_model(text)
    prepared: FloatModel = prepare(model_source(model), PrepareOptions())
    part = interpretable_part(prepared.model)
    assert part.targets == ("a",)
    assert "Bernoulli" in str(part.notes[0])
