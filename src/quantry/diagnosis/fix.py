"""`Fix`: a change of the recipe that may remove a cause, as data that a search can try."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from quantry.facts.operators import FUSIBLE, LINEAR
from quantry.graph.edit import is_channel_product, is_learned, producers_of
from quantry.graph.lone_layers import lone_layers
from quantry.graph.quant_plan import QuantPlan
from quantry.recipe import JointEqualization, TuneStep


@dataclass(frozen=True)
class Fix:
    """A change of the recipe.

    Attributes:
        label: What it does, in a few words.
        fields: Dotted paths of the recipe to new values, as in a search space.
        float_nodes: Nodes to keep in float.
        wide_tensors: Activations that get 16 bits.
        steps: Tuning steps to append.
        is_costly: Whether it costs run time although neither nodes nor tensors are named.
        is_cheap: Whether its float nodes take hardly any run time: there is no layer among them, and they come last.
        pieces: How many more pieces the quantized part of the graph falls into because of the float nodes. Each of them
            is a detour on a device that runs no float nodes.
        depth: How many of the first layers its float nodes are; 0 if they are something else.
        expected: What the outputs gain in simulation if its nodes are not rounded, in dB; None if it was not measured.
    """

    label: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    float_nodes: tuple[str, ...] = ()
    wide_tensors: tuple[str, ...] = ()
    steps: tuple[TuneStep, ...] = ()
    is_costly: bool = False
    is_cheap: bool = False
    pieces: int = 0
    depth: int = 0
    expected: float | None = None

    @property
    def is_free(self) -> bool:
        """Whether the deployed model computes as before: no node in float, no tensor with more bits."""
        return not self.float_nodes and not self.wide_tensors and not self.is_costly


JOINT_FIX = Fix("joint equalization", {"equalize.joint": JointEqualization()})
"""Channels of very different size get factors that make them alike."""


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

    A function that is fused with its layer, such as Relu after Conv, is part of the layer: integer kernels compute both
    at once. A layer whose weights are whole numbers is no such layer, because nothing was learned: the detectors of one
    family compute an expected distance with the weights 0, 1, 2 and so on.

    Args:
        model: The float model that was quantized.
        plan: What is quantized.

    Returns:
        Names of the nodes after the last layers, in graph order, and names of the last layers.
    """
    reached: dict[ir.Node, None] = {}
    layers: dict[ir.Node, None] = {}
    queue = [producer for value in model.graph.outputs if (producer := value.producer()) is not None]
    while queue:
        node = queue.pop()
        if node in reached or node in layers:
            continue
        fused = _fused_layer(node)
        if is_learned(node) or fused is not None:
            layers |= dict.fromkeys((node,) if fused is None else (node, fused))
            continue
        reached[node] = None
        queue += producers_of(node)
    quantized = set(plan.quantized_nodes)
    ordered = [node for node in model.graph if node.name in quantized]
    return (
        tuple(node_name(node) for node in ordered if node in reached),
        tuple(node_name(node) for node in ordered if node in layers),
    )


def first_layers(model: ir.Model, plan: QuantPlan, depth: int = 1) -> tuple[str, ...]:
    """Return the quantized nodes up to the first layers with weights, in graph order.

    Args:
        model: The float model that was quantized.
        plan: What is quantized.
        depth: How many layers an input of the model passes through at most.
    """
    quantized, layers = set(plan.quantized_nodes), []
    depths: dict[ir.Node, int] = {}
    for node in model.graph:
        depth_before = max((depths[producer] for producer in producers_of(node) if producer in depths), default=0)
        depth_here = depths[node] = depth_before + (node.op_type in LINEAR)
        if depth_here <= depth and node.name in quantized and not is_channel_product(node):
            layers.append(node_name(node))
    return tuple(layers)


def freed_tensors(model: ir.Model, plan: QuantPlan, nodes: Collection[str]) -> frozenset[str]:
    """Return the tensors that are not rounded any more if nodes stay float: those that no other quantized node touches.

    Args:
        model: The float model that was quantized.
        plan: What is quantized.
        nodes: Names of the nodes, as in `Fix.float_nodes`.
    """
    remaining = {
        node.name
        for node in model.graph
        if node.name in plan.quantized_nodes and node_name(node) not in nodes and not is_channel_product(node)
    }
    freed = set()
    for value in {value for node in model.graph for value in (*node.inputs, *node.outputs) if value is not None}:
        producer = value.producer()
        touching = {use.node.name for use in value.uses()} | (set() if producer is None else {producer.name})
        if not touching & remaining:
            freed.add(value.name or "")
    return frozenset(freed & {*plan.activations, *plan.weights, *plan.biases})


def is_rounded_again(model: ir.Model, plan: QuantPlan, nodes: Collection[str]) -> bool:
    """Return whether some nodes would not stay float, because onnxruntime rounds the weights of lone layers itself.

    Args:
        model: The float model that was quantized.
        plan: What is quantized.
        nodes: Names of the nodes, as in `Fix.float_nodes`.
    """
    names = {node.name or "" for node in model.graph if node_name(node) in nodes}
    rounded = plan.activations.keys() - freed_tensors(model, plan, nodes)
    lone = lone_layers(model.graph, set(plan.quantized_nodes) - names, rounded)
    return any(node.name in names for node in lone)


def count_pieces(model: ir.Model, quantized: Collection[str]) -> int:
    """Return how many quantized pieces a graph is cut into by float nodes, along its longest chain of pieces.

    Float nodes before the first and after the last quantized node cut nothing.

    Args:
        model: The float model.
        quantized: Names of the quantized nodes.
    """
    # By node, the piece it is in or comes after, from 1; 0 before the first piece.
    pieces: dict[ir.Node, int] = {}
    last = 0
    for node in model.graph:
        is_quantized = node.name in quantized
        piece = 1 if is_quantized else 0
        for producer in producers_of(node):
            upstream = pieces.get(producer, 0)
            cut = is_quantized and upstream > 0 and producer.name not in quantized
            piece = max(piece, upstream + cut)
        pieces[node] = piece
        last = max(last, piece if is_quantized else 0)
    return last


def _fused_layer(node: ir.Node) -> ir.Node | None:
    """Return the layer that a function is fused with, if any."""
    if node.op_type not in FUSIBLE or node.inputs[0] is None or len(node.inputs[0].uses()) != 1:
        return None
    producer = node.inputs[0].producer()
    return producer if producer is not None and is_learned(producer) else None
