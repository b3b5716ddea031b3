"""The cost of each choice of a group: tensors in finer types, bytes, bit operations, or measured time."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from quantry.emit import emit
from quantry.execute.quantized_view import QuantizedView
from quantry.graph.float_model import FloatModel
from quantry.graph.multiplications import elements, multiplications
from quantry.graph.quant_plan import OwnRange, QuantPlan
from quantry.graph.segments import segment_of
from quantry.mix.downstream import Downstream, Tensors
from quantry.mix.groups import Group
from quantry.recipe import EmitOptions, Qdq, TensorSpec, VitisDialect, VitisQdq
from quantry.runtime.sessions import deployment_session

Floats = npt.NDArray[np.float64]

_UNQUANTIZED_BITS = 32
_DERIVED_BITS = 32

# The first runs of a session allocate memory and fill caches.
_WARM_UP_RUNS = 3


def count_costs(model: FloatModel, groups: Sequence[Group], plans: Sequence[QuantPlan]) -> Floats:
    """Return how many tensors get more than their smallest number of bits, [groups, choices]."""
    biases = _biases(model, plans[0])
    rows = []
    for group in groups:
        tensors = (*group.tensors, *(name for name in _following(group, biases) if plans[0].spec_of(name) is not None))
        bits = np.array([[_bits(plan.spec_of(name)) for plan in plans] for name in tensors])
        rows.append((bits > bits.min(axis=1, keepdims=True)).sum(axis=0))
    return np.array(rows, np.float64)


def quantized_tensors(plan: QuantPlan) -> int:
    """Return how many tensors have types of their own: activations with a range, weights and biases."""
    return sum(plan.root(name) == name for name in plan.activations) + len(plan.weights) + len(plan.biases)


def size_costs(model: FloatModel, groups: Sequence[Group], plans: Sequence[QuantPlan]) -> Floats:
    """Return the bytes of the constants of each group with each choice, [groups, choices]."""
    biases = _biases(model, plans[0])
    rows = [
        [sum(_bytes(model, plan, name) for name in (*group.tensors, *_following(group, biases))) for plan in plans]
        for group in groups
    ]
    return np.array(rows, np.float64)


def fixed_size(model: FloatModel, groups: Sequence[Group], plan: QuantPlan) -> float:
    """Return the bytes of the quantized constants that belong to no group."""
    biases = _biases(model, plan)
    changing = {name for group in groups for name in (*group.tensors, *_following(group, biases))}
    return sum(_bytes(model, plan, name) for name in (*plan.weights, *plan.biases) if name not in changing)


def bit_operations(model: FloatModel, groups: Sequence[Group], plans: Sequence[QuantPlan]) -> Floats:
    """Return multiplications x bits of the activation x bits of the weight, [groups, choices]."""
    nodes = {node.name or "": node for node in model.model.graph}
    rows = [[sum(_node_operations(nodes[name], plan) for name in group.nodes) for plan in plans] for group in groups]
    return np.array(rows, np.float64)


def _node_operations(node: ir.Node, plan: QuantPlan) -> float:
    operands = [value for value in node.inputs[:2] if value is not None]
    bits = [_bits(plan.spec_of(value.name or "")) for value in operands]
    # Other nodes than layers compute about one product for each result.
    return (multiplications(node) or elements(node.outputs[0])) * float(np.prod(bits))


def _bits(spec: TensorSpec | None) -> int:
    return _UNQUANTIZED_BITS if spec is None else spec.dtype.bits


def _bytes(model: FloatModel, plan: QuantPlan, name: str) -> float:
    value = model.model.graph.initializers.get(name)
    if value is None or value.const_value is None:
        return 0.0
    spec = plan.spec_of(name)
    derived = name in plan.biases and spec is None
    return value.const_value.size * (_DERIVED_BITS if derived else _bits(spec)) / 8


def _biases(model: FloatModel, plan: QuantPlan) -> dict[str, tuple[str, ...]]:
    """Return the biases of the layers by the name of the weight."""
    found: dict[str, tuple[str, ...]] = {}
    for node in model.model.graph:
        names = [value.name for value in node.inputs if value is not None and value.name]
        for weight in (name for name in names if name in plan.weights):
            found[weight] = (*found.get(weight, ()), *(name for name in names if name in plan.biases))
    return found


def _following(group: Group, biases: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the biases that change with the weights of a group."""
    if len(group.tensors) == 1 and group.name == group.tensors[0]:
        return ()  # Every tensor is a group of its own, biases included.
    return tuple(name for weight in group.tensors for name in biases.get(weight, ()))


class LayerTimer:
    """Times single layers on their inputs in one sample.

    Args:
        model: The float model.
        views: Types and scales of each choice.
        sample: Inputs of the model.
        runs: How often each layer is timed; the fastest run counts, since other load only ever makes runs slower.
    """

    def __init__(self, model: FloatModel, views: Sequence[QuantizedView], sample: Tensors, runs: int) -> None:
        self._model = model
        self._views = views
        self._known = Downstream(model.model).run(sample)
        self._nodes = {node.name or "": node for node in model.model.graph}
        self._runs = runs

    def costs(self, groups: Sequence[Group]) -> npt.NDArray[np.float64]:
        """Return milliseconds of the layers of each group with each choice, [groups, choices]."""
        rows = [
            [sum(self._milliseconds(self._nodes[name], view) for name in group.nodes) for view in self._views]
            for group in groups
        ]
        return np.array(rows, np.float64)

    def _milliseconds(self, node: ir.Node, view: QuantizedView) -> float:
        segment = segment_of(self._model.model, [node], frozenset(), frozenset(node.outputs))
        alone = FloatModel(segment.extracted())
        plan = _plan_of(node, view.plan)
        blocks = any(spec.dtype.is_block for spec in plan.specs())
        written = EmitOptions(VitisQdq(VitisDialect.QUARK) if blocks else Qdq())
        session = deployment_session(emit(alone, plan, view.params, written, {}).model, threads=1)
        feeds = {entry.name: self._known[entry.name] for entry in session.get_inputs()}
        times = []
        for _ in range(_WARM_UP_RUNS + self._runs):
            started = time.perf_counter()
            session.run(None, feeds)
            times.append(time.perf_counter() - started)
        return min(times[_WARM_UP_RUNS:]) * 1e3


def _plan_of(node: ir.Node, plan: QuantPlan) -> QuantPlan:
    """Return the part of a plan that concerns one node."""
    inputs = [value.name for value in node.inputs if value is not None and value.name]
    outputs = [value.name for value in node.outputs if value.name]
    specs = {name: plan.spec_of(name) for name in (*inputs, *outputs) if name in plan.activations}
    return QuantPlan(
        activations={name: OwnRange(spec) for name, spec in specs.items() if spec is not None},
        weights={
            name: replace(plan.weights[name], users=(node.name or "",)) for name in inputs if name in plan.weights
        },
        biases={name: plan.biases[name] for name in inputs if name in plan.biases},
        quantized_nodes=(node.name or "",),
    )
