"""End-to-end training of the quantized graph against the outputs of the float model, without labels.

This module imports torch, so it is imported inside functions only.
"""

import torch

from quantry.execute.graph_builder import GraphDefinition
from quantry.execute.trainable_graph import SampleBatches, TrainableGraph, Trained, interpretable_part, torch_device
from quantry.notes import Note
from quantry.numerics.tensor_params import QuantParams
from quantry.recipe import Distill
from quantry.tune.graph_training import Loss, TrainingData, fit, trained_part
from quantry.tune.task import Tuned, TuneTask


def run(task: TuneTask, step: Distill) -> Tuned:
    """Train the whole graph, as far as its operators are interpretable.

    Args:
        task: What is tuned.
        step: The options.

    Raises:
        ModelError: Even the first operators are not interpretable.
    """
    torch.manual_seed(step.seed)
    device = torch_device(step.device)
    part = trained_part(task, "distill")
    reference_names = {value.name for node in task.reference.model.graph for value in node.outputs}
    targets = part.targets
    if not reference_names.issuperset(targets):  # the outputs as they are, because the reference lacks a tensor inside
        targets = tuple(value.name or "" for value in task.model.model.graph.outputs if value.name in reference_names)
    trained = Trained(step.train_weights, step.train_bias, step.train_scales)
    definition = GraphDefinition(model=task.model, plan=task.plan, params=task.params)
    graph = TrainableGraph(definition, part.nodes, targets, trained, device)
    data = task.samples(step.samples)
    batches = SampleBatches(data, graph, task.model.model, device)
    training = _training_data(task, step, targets, batches, device)
    fitted = fit(graph, training, Loss(step.loss, training), step, step.evaluations, "distill")
    params = QuantParams({**task.params.tensors, **graph.trained_params()})
    message = "distill: loss of the outputs {before:.4g} -> {after:.4g} over {count} samples"
    note = Note.of(message, before=fitted.before, after=fitted.after, count=len(training.held_out))
    return Tuned(graph.values(), params, (note, *part.notes))


def _training_data(
    task: TuneTask, step: Distill, targets: tuple[str, ...], batches: SampleBatches, device: str
) -> TrainingData:
    nodes = interpretable_part(task.reference.model).nodes
    definition = GraphDefinition(model=task.reference, plan=task.plan, params=task.params)
    reference = TrainableGraph(definition, nodes, targets, Trained(weights=False, biases=False), device)
    with torch.no_grad():
        float_outputs = [reference.run(batches.get([at]), quantized=False) for at in range(len(batches))]
    held_out = list(range(int(len(batches) * step.held_out)))
    samples = list(range(len(held_out), len(batches)))
    return TrainingData(
        inputs=batches.get,
        targets=lambda numbers: {
            name: torch.cat([float_outputs[number][name] for number in numbers]) for name in targets
        },
        samples=samples or held_out,
        held_out=held_out or samples,
        together=batches.together,
    )
