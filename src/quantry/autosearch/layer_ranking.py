"""Which layers of a model lose the most by quantization; a search gives them more bits or keeps them float."""

from collections import defaultdict
from dataclasses import dataclass, replace

import onnx_ir as ir

from quantry.data.calibration_data import CalibrationData
from quantry.graph.load import ModelSource
from quantry.graph.quant_plan import OwnRange, QuantPlan
from quantry.memo import Memo, Store
from quantry.mix.sensitivity import Sensitivity, sensitivity
from quantry.pipeline import Stages, run_prepare, run_quantize
from quantry.recipe import MixOptions, Recipe, TuneOptions

# The ranking changes little with more samples, because every element of every output counts. Models with many tensors
# take long, and get one sample.
_SAMPLES, _MANY_TENSORS = 4, 400


@dataclass(frozen=True)
class RankedLayer:
    """A quantized node.

    Attributes:
        node: Its name.
        noise: Power of the error that rounding its inputs and weights causes at the model's outputs, relative to them.
        ends: Its result is an output of the model.
    """

    node: str
    noise: float
    ends: bool


class LayerRanking:
    """Ranks the quantized nodes of a model by sensitivity, on first use.

    The float pass and the ranges come from the store that all trials share; the sensitivities are stored there too.

    Args:
        source: The float model.
        data: Calibration data.
        store: Results of stages.
    """

    def __init__(self, source: ModelSource, data: CalibrationData, store: Store) -> None:
        self._source = source
        self._data = data
        self._store = store
        self._known: dict[Recipe, tuple[RankedLayer, ...]] = {}

    def __call__(self, recipe: Recipe) -> tuple[RankedLayer, ...]:
        """Return the nodes that a recipe quantizes, most sensitive first; nodes without any effect are skipped.

        Args:
            recipe: The recipe; its tuning steps and mixed precision are ignored.
        """
        # Tuning lowers the errors of all layers, and the order is what counts.
        plain = replace(recipe, tune=TuneOptions(), mix=MixOptions())
        if plain not in self._known:
            self._known[plain] = self._rank(plain)
        return self._known[plain]

    def _rank(self, recipe: Recipe) -> tuple[RankedLayer, ...]:
        memo = Memo(self._store)
        stages = run_quantize(run_prepare(self._source, recipe, memo), self._data, recipe, memo)
        tensors = _tensors(stages.plan.value)
        if not tensors:
            return ()
        data = self._data.take(_SAMPLES if len(tensors) <= _MANY_TENSORS else 1)
        measured = memo.run(sensitivity, stages.equalized, data, (stages.plan,), (stages.params,), tensors)
        return _layers(stages, measured.value)


def _tensors(plan: QuantPlan) -> tuple[str, ...]:
    """Return the tensors with ranges of their own, and the weights; biases count with their weights."""
    own = [name for name, entry in plan.activations.items() if isinstance(entry, OwnRange)]
    return (*own, *plan.weights)


def _layers(stages: Stages, measured: Sensitivity) -> tuple[RankedLayer, ...]:
    """Attribute the error of each tensor to the nodes that read it, in equal parts; that of an output to its node."""
    plan, graph = stages.plan.value, stages.equalized.value.model.graph
    noise = {tensor: float(measured.of(tensor)[0]) for tensor in measured.tensors}
    quantized = [node for node in graph if node.name in set(plan.quantized_nodes)]
    outputs = {value.name for value in graph.outputs}
    readers: dict[str, list[ir.Node]] = defaultdict(list)
    for node in quantized:
        for tensor in _read(node, plan):
            readers[tensor].append(node)
    found = []
    for node in quantized:
        ends = any(value.name in outputs for value in node.outputs)
        written = [plan.root(str(value.name)) for value in node.outputs if value.name in plan.activations]
        total = sum(noise.get(tensor, 0.0) / len(readers[tensor]) for tensor in _read(node, plan))
        total += sum(noise.get(tensor, 0.0) for tensor in written if ends and not readers.get(tensor))
        if total > 0:
            found.append(RankedLayer(str(node.name), total, ends))
    return tuple(sorted(found, key=lambda layer: -layer.noise))


def _read(node: ir.Node, plan: QuantPlan) -> set[str]:
    names = [str(value.name) for value in node.inputs if value is not None and value.name]
    activations = {plan.root(name) for name in names if name in plan.activations}
    return activations | {name for name in names if name in plan.weights}
