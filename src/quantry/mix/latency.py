"""What layers cost on this machine: each is timed by itself, in each type."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from quantry.emit import emit
from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import OwnRange, QuantPlan
from quantry.graph.segments import segment_of
from quantry.mix.downstream import Downstream, Tensors
from quantry.mix.groups import Group
from quantry.mix.scheme import Scheme
from quantry.recipe import EmitOptions, Qdq, VitisDialect, VitisQdq
from quantry.runtime.sessions import deployment_session

_WARM_UP_RUNS = 3


class LayerTimer:
    """Times single layers on what they are fed in one sample.

    Args:
        model: The float model.
        schemes: Types and scales of each choice.
        sample: Inputs of the model.
        runs: How often each layer is timed; the fastest counts, which load of the machine disturbs least.
    """

    def __init__(self, model: FloatModel, schemes: Sequence[Scheme], sample: Tensors, runs: int) -> None:
        self._model = model
        self._schemes = schemes
        self._known = Downstream(model.model).run(sample)
        self._nodes = {node.name or "": node for node in model.model.graph}
        self._runs = runs

    def costs(self, groups: Sequence[Group]) -> npt.NDArray[np.float64]:
        """Return milliseconds of the layers of each group with each choice, [groups, choices]."""
        rows = [
            [sum(self._milliseconds(self._nodes[name], scheme) for name in group.nodes) for scheme in self._schemes]
            for group in groups
        ]
        return np.array(rows, np.float64)

    def _milliseconds(self, node: ir.Node, scheme: Scheme) -> float:
        segment = segment_of(self._model.model, [node], frozenset(), frozenset(node.outputs))
        alone = FloatModel(segment.extracted())
        plan = _plan_of(node, scheme.plan)
        blocks = any(spec.dtype.is_block for spec in plan.specs())
        written = EmitOptions(VitisQdq(VitisDialect.QUARK) if blocks else Qdq())
        session = deployment_session(emit(alone, plan, scheme.params, written, {}).model, threads=1)
        feeds = {entry.name: self._known[entry.name] for entry in session.get_inputs()}
        times = []
        for _ in range(_WARM_UP_RUNS + self._runs):
            started = time.perf_counter()
            session.run(None, feeds)
            times.append(time.perf_counter() - started)
        return min(times[_WARM_UP_RUNS:]) * 1e3


def _plan_of(node: ir.Node, plan: QuantPlan) -> QuantPlan:
    """Return the part of a plan that speaks of one node."""
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
