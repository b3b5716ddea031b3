"""BRECQ and TQT: train a graph block by block, a few linear layers at a time, from the input on.

Li et al., "BRECQ" (https://arxiv.org/abs/2102.05426), with weights trained through rounding; Jain et al., "Trained
quantization thresholds" (https://arxiv.org/abs/1903.08066), which also trains the logarithms of scales. Both without
labels: the input of a block is the output of the finished blocks before it, the target its output in the float model.

This module imports torch, so it is imported inside functions only.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import onnx_ir as ir
import torch

from quantry.execute.activation_stream import ActivationStore
from quantry.execute.graph_builder import GraphDefinition
from quantry.execute.trainable_graph import SampleBatches, TrainableGraph, Trained, torch_device
from quantry.facts.operators import LINEAR
from quantry.graph.float_model import FloatModel
from quantry.graph.segments import values_used
from quantry.memo import checkpoint
from quantry.notes import Note
from quantry.numerics.tensor_params import QuantParams
from quantry.recipe import Brecq, DistillLoss, Tqt
from quantry.runtime.progress import progress, tell
from quantry.tune.graph_training import Fitted, Loss, Tensors, TrainingData, fit, trained_part
from quantry.tune.layerwise import mean_gain
from quantry.tune.task import Tuned, TuneTask


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive nodes.

    Attributes:
        nodes: The nodes, in order.
        inputs: Names of the tensors they read from earlier blocks.
        outputs: Names of their tensors that later nodes or the user read.
        passed: Names of all tensors, theirs or not, that are still needed after the block.
    """

    nodes: tuple[ir.Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    passed: tuple[str, ...]

    @property
    def layers(self) -> int:
        """Number of linear layers with constant weights."""
        return sum(1 for node in self.nodes if is_linear(node))


def is_linear(node: ir.Node) -> bool:
    """Return whether a node multiplies by a constant weight."""
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    return node.op_type in LINEAR and weight is not None and weight.is_initializer()


def cut_into_blocks(nodes: Sequence[ir.Node], targets: Sequence[str], layers: int) -> tuple[Block, ...]:
    """Return nodes in blocks, cut where few tensors pass from one block to the next.

    Args:
        nodes: The nodes, in order.
        targets: Names of tensors that are needed at the end.
        layers: Upper bound of linear layers in a block.
    """
    last_use = {value: at for at, node in enumerate(nodes) for value in values_used(node)}
    producer_at = {value: at for at, node in enumerate(nodes) for value in node.outputs}
    ends = frozenset(targets)
    for value in producer_at:
        if value.name in ends:
            last_use[value] = len(nodes)
    crossing = [
        sum(
            1
            for value, use in last_use.items()
            if use >= at and producer_at.get(value, -1) < at and not value.is_initializer()
        )
        for at in range(len(nodes) + 1)
    ]
    bounds = [0]
    while bounds[-1] < len(nodes):
        bounds.append(_next_cut(nodes, bounds[-1], crossing, layers))
    return tuple(_block(nodes[start:end], end, last_use, producer_at) for start, end in pairwise(bounds))


def _next_cut(nodes: Sequence[ir.Node], start: int, crossing: Sequence[int], layers: int) -> int:
    layers_before = 0
    possible = []
    for at in range(start, len(nodes)):
        if is_linear(nodes[at]):
            if layers_before > 0:
                possible.append(at)
            if layers_before == layers:
                break
            layers_before += 1
    else:
        return len(nodes)
    # Of the positions before a linear layer, the latest of those that the fewest tensors cross.
    return min(possible, key=lambda at: (crossing[at], -at))


def _block(
    nodes: Sequence[ir.Node], end: int, last_use: dict[ir.Value, int], producer_at: dict[ir.Value, int]
) -> Block:
    outputs_inside = {value for node in nodes for value in node.outputs}
    inputs = dict.fromkeys(
        value
        for node in nodes
        for value in values_used(node)
        if value not in outputs_inside and not value.is_initializer()
    )
    alive = [value for value, use in last_use.items() if use >= end and producer_at.get(value, -1) < end]
    passed = [value for value in alive if not value.is_initializer()]
    outputs = [value for value in passed if value in outputs_inside]
    return Block(tuple(nodes), _names(inputs), _names(outputs), _names(passed))


def _names(values: Sequence[ir.Value] | dict[ir.Value, None]) -> tuple[str, ...]:
    return tuple(value.name for value in values if value.name)


_LOG = logging.getLogger("quantry.tune")

# How often the state of a block is evaluated on all samples; the best one is kept.
_EVALUATIONS = 5

_FIXED = Trained(weights=False, biases=False)


class BlockTrainer:
    """Trains the blocks of a model one after the other.

    The result of each block is a checkpoint in the store, so an interrupted or killed run resumes after the last block
    that was finished.

    Args:
        task: What is tuned.
        step: The options.
        scales: Whether scales are trained.
        title: The algorithm's name.
    """

    def __init__(self, task: TuneTask, step: Brecq | Tqt, title: str, *, scales: bool) -> None:
        torch.manual_seed(step.seed)
        self._task, self._step, self._title, self._scales = task, step, title, scales
        self._device = torch_device(step.device)
        self._part = trained_part(task, title)
        # The reference has the same graph with the same names of nodes.
        names = {node.name for node in self._part.nodes}
        self._reference = [node for node in task.reference.model.graph if node.name in names]
        self._float = ActivationStore(1, None)
        self._quantized = ActivationStore(1, None)
        self._params = task.params
        self._seen: set[str] = set()
        self._samples = 0
        self._together = 1

    def run(self) -> Tuned:
        """Return the trained constants and parameters."""
        self._load()
        weights: dict[str, np.ndarray] = {}
        losses: list[Fitted] = []
        blocks = cut_into_blocks(self._part.nodes, self._part.targets, self._step.layers)
        at = 0
        for number, block in enumerate(progress(blocks, f"tune: {self._title}", len(blocks))):
            tell(f"{self._title}: block {number + 1} of {len(blocks)}")
            nodes = self._reference[at : at + len(block.nodes)]
            at += len(block.nodes)
            exact = self._graph(self._task.reference, nodes, block.outputs, _FIXED)
            self._compute(exact, block, self._float, quantized=False)
            if block.layers:
                result = checkpoint(f"block {number}", Tuned, partial(self._train, block, number))
                weights |= result.weights
                tensors = {**self._params.tensors, **result.params.tensors}
                self._params = QuantParams(tensors)
                losses.append(Fitted(result.notes[0].value("before"), result.notes[0].value("after")))
            self._advance_quantized(block, weights)
            self._forget(block)
        gain = mean_gain((fitted.before, fitted.after) for fitted in losses)
        message = "{title}: {count} blocks trained; mean output error fell to 1/{gain:.2f}"
        summary = Note.of(message, title=self._title, count=len(losses), gain=gain)
        return Tuned(weights, self._params, (summary, *self._part.notes))

    def _load(self) -> None:
        data = self._task.samples(self._step.samples)
        graph = self._graph(self._task.model, self._part.nodes, self._part.targets, _FIXED)
        batches = SampleBatches(data, graph, self._task.model.model, self._device)
        self._samples = len(batches)
        # A block needs far less memory than the whole graph, so a batch always fits.
        self._together = 1 if batches.together == 1 else self._step.batch_size
        for number in range(self._samples):
            for name, tensor in batches.samples[number].items():
                for store in (self._float, self._quantized):
                    store.put(name, number, tensor.numpy())

    def _graph(
        self, model: FloatModel, nodes: Sequence[ir.Node], outputs: Sequence[str], trained: Trained
    ) -> TrainableGraph:
        definition = GraphDefinition(model=model, plan=self._task.plan, params=self._params)
        return TrainableGraph(definition, nodes, outputs, trained, self._device)

    def _advance_quantized(self, block: Block, weights: dict[str, np.ndarray]) -> None:
        graph = self._graph(self._task.model, block.nodes, block.outputs, Trained())
        with torch.no_grad():
            for name, tensor in graph.constants.items():
                if name in weights:
                    tensor.copy_(torch.from_numpy(np.array(weights[name])))
        self._compute(graph, block, self._quantized, quantized=True)

    def _compute(self, graph: TrainableGraph, block: Block, store: ActivationStore, *, quantized: bool) -> None:
        with torch.no_grad():
            for number in range(self._samples):
                outputs = graph.run(self._get(store, block.inputs, [number]), quantized=quantized)
                for name, tensor in outputs.items():
                    store.put(name, number, tensor.cpu().numpy())

    def _train(self, block: Block, number: int) -> Tuned:
        trained = Trained(weights=True, biases=self._step.train_bias, scales=self._scales, frozen=frozenset(self._seen))
        graph = self._graph(self._task.model, block.nodes, block.outputs, trained)
        floats = [name for name in block.outputs if self._float.get(name, 0).dtype == np.float32]
        everything = list(range(self._samples))
        training_data = TrainingData(
            inputs=lambda numbers: self._get(self._quantized, block.inputs, numbers),
            targets=lambda numbers: self._get(self._float, floats, numbers),
            samples=everything,
            held_out=everything,
            together=self._together,
        )
        step = replace(self._step, seed=self._step.seed + number)
        fitted = fit(graph, training_data, Loss(DistillLoss.RELATIVE_L2, training_data), step, _EVALUATIONS)
        _LOG.debug("%s: block %d: loss %.4g -> %.4g", self._title, number, fitted.before, fitted.after)
        note = Note.of("loss {before:.4g} -> {after:.4g}", before=fitted.before, after=fitted.after)
        return Tuned(graph.values(), QuantParams(graph.trained_params(), ()), (note,))

    def _get(self, store: ActivationStore, names: Sequence[str], numbers: Sequence[int]) -> Tensors:
        def joined(name: str) -> object:
            arrays = [np.array(store.get(name, number)) for number in numbers]
            return torch.from_numpy(np.concatenate(arrays) if len(arrays) > 1 else arrays[0]).to(self._device)

        return {name: joined(name) for name in names}

    def _forget(self, block: Block) -> None:
        """Drop what no later block reads, and freeze the scales that this block has trained."""
        plan = self._task.plan
        for node in block.nodes:
            for value in (*node.inputs, *node.outputs):
                name = value.name if value is not None else None
                if name is not None:
                    self._seen.add(plan.root(name) if name in plan.activations else name)
        for store in (self._float, self._quantized):
            for name in store:
                if name not in block.passed:
                    store.drop(name)


def run(task: TuneTask, step: Brecq | Tqt) -> Tuned:
    """Train all blocks of a model.

    Args:
        task: What is tuned.
        step: The options; `Tqt` also trains scales.
    """
    is_tqt = isinstance(step, Tqt)
    return BlockTrainer(task, step, "tqt" if is_tqt else "brecq", scales=is_tqt).run()
