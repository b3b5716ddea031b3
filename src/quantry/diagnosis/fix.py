"""`Fix`: a change of the recipe that may remove a cause, as data that a search can try."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from quantry.graph.operators import LINEAR
from quantry.graph.quant_plan import QuantPlan
from quantry.recipe import TuneStep


@dataclass(frozen=True)
class Fix:
    """A change of the recipe.

    Attributes:
        label: What it does, in a few words.
        fields: Dotted paths of the recipe to new values, as in a search space.
        float_nodes: Nodes to keep in float.
        wide_tensors: Activations that get 16 bits.
        steps: Tuning steps to append.
    """

    label: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    float_nodes: tuple[str, ...] = ()
    wide_tensors: tuple[str, ...] = ()
    steps: tuple[TuneStep, ...] = ()

    @property
    def is_free(self) -> bool:
        """Whether the deployed model computes as before: no node in float, no tensor with more bits."""
        return not self.float_nodes and not self.wide_tensors


def float_fix(nodes: tuple[str, ...], what: str = "") -> Fix:
    """Return the fix that keeps nodes in float.

    Args:
        nodes: Names of the nodes, the most important first.
        what: What they are; empty lists their names.
    """
    return Fix(f"{what or ', '.join(nodes)} in float", float_nodes=nodes)


def wide_fix(tensors: tuple[str, ...]) -> Fix:
    """Return the fix that gives activations 16 bits.

    Args:
        tensors: Names of the activations.
    """
    return Fix(f"16 bits for {', '.join(tensors)}", wide_tensors=tensors)


def node_name(node: ir.Node) -> str:
    """Return the name under which a selection finds a node: its own, or that of its first output."""
    return node.name or node.outputs[0].name or ""


def last_nodes(model: ir.Model, plan: QuantPlan) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the quantized nodes after the last layers with weights, and these last layers themselves.

    Args:
        model: The float model that was quantized.
        plan: What is quantized.

    Returns:
        Names of the nodes after the last layers, in graph order, and names of the last layers.
    """
    after: dict[ir.Node, None] = {}
    layers: dict[ir.Node, None] = {}
    waiting = [producer for value in model.graph.outputs if (producer := value.producer()) is not None]
    while waiting:
        node = waiting.pop()
        if node in after or node in layers:
            continue
        if node.op_type in LINEAR:
            layers[node] = None
            continue
        after[node] = None
        waiting += list(_producers(node))
    quantized = set(plan.quantized_nodes)
    ordered = [node for node in model.graph if node.name in quantized]
    return (
        tuple(node_name(node) for node in ordered if node in after),
        tuple(node_name(node) for node in ordered if node in layers),
    )


def first_layers(model: ir.Model, plan: QuantPlan, depth: int = 1) -> tuple[str, ...]:
    """Return the quantized nodes up to the first layers with weights, in graph order.

    Args:
        model: The float model that was quantized.
        plan: What is quantized.
        depth: How many layers an input of the model passes through at most.
    """
    quantized, found = set(plan.quantized_nodes), []
    depths: dict[ir.Node, int] = {}
    for node in model.graph:
        before = max((depths[producer] for producer in _producers(node) if producer in depths), default=0)
        own = depths[node] = before + (node.op_type in LINEAR)
        if own <= depth and node.name in quantized:
            found.append(node_name(node))
    return tuple(found)


def _producers(node: ir.Node) -> Iterator[ir.Node]:
    for value in node.inputs:
        producer = None if value is None else value.producer()
        if producer is not None:
            yield producer
