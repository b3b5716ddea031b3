"""End-to-end training of the quantized graph against the outputs of the float model, without labels.

This module imports torch, so it is imported inside functions only.
"""

import torch

from quantry.errors import ModelError
from quantry.execute.trainable_graph import SampleBatches, TrainableGraph, Trained, interpretable_part, torch_device
from quantry.numerics.tensor_params import QuantParams
from quantry.recipe import Distill
from quantry.tune.graph_training import Lesson, Loss, fit
from quantry.tune.task import Tuned, TuneTask


def run(task: TuneTask, step: Distill) -> Tuned:
    """Train the whole graph, as far as the interpreter knows its operators.

    Args:
        task: What is tuned.
        step: The options.

    Raises:
        ModelError: The interpreter does not know the first operators already.
    """
    torch.manual_seed(step.seed)
    device = torch_device(step.device)
    part = interpretable_part(task.model.model)
    if not part.targets:
        raise ModelError(f"distill must be able to interpret the model's operators; {part.notes}; in tune")
    trained = Trained(step.train_weights, step.train_bias, step.train_scales)
    graph = TrainableGraph(task.model.model, part.nodes, task.plan, task.params, trained, device)
    data = task.data if step.samples is None else task.data.take(step.samples)
    batches = SampleBatches(data, graph, task.model.model, device)
    lesson = _lesson(task, step, _shared_targets(task, part.targets), batches, device)
    fitted = fit(graph, lesson, Loss(step.loss, lesson), step, step.evaluations)
    params = QuantParams({**task.params.tensors, **graph.trained_params()})
    note = f"distill: loss of the outputs {fitted.before:.4g} -> {fitted.after:.4g} over {len(lesson.judged)} samples"
    return Tuned(graph.values(), params, (note, *(f"distill: {line}" for line in part.notes)))


def _shared_targets(task: TuneTask, targets: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tensors to compare: the parts of the outputs, or the outputs where the reference lacks a part."""
    known = {value.name for node in task.reference.model.graph for value in node.outputs}
    if known.issuperset(targets):
        return targets
    return tuple(value.name or "" for value in task.model.model.graph.outputs if value.name in known)


def _lesson(task: TuneTask, step: Distill, targets: tuple[str, ...], batches: SampleBatches, device: str) -> Lesson:
    nodes = interpretable_part(task.reference.model).nodes
    reference = TrainableGraph(
        task.reference.model, nodes, task.plan, task.params, Trained(weights=False, biases=False), device
    )
    with torch.no_grad():
        known = [reference.run(batches.get([at]), targets, quantized=False) for at in range(len(batches))]
    judged = list(range(int(len(batches) * step.held_out)))
    samples = list(range(len(judged), len(batches)))
    return Lesson(
        inputs=batches.get,
        targets=lambda numbers: {name: torch.cat([known[number][name] for number in numbers]) for name in targets},
        samples=samples or judged,
        judged=judged or samples,
        together=batches.together,
    )
