"""What changes together: single tensors, or layers with those that read the same tensors."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from quantry.errors import RecipeError, SelectionError
from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import QuantPlan
from quantry.plan.selection import matching, of_types
from quantry.recipe import MixedPrecision


@dataclass(frozen=True)
class Group:
    """Tensors that have one choice of types.

    Attributes:
        name: What the user is told: a layer, or a tensor.
        tensors: Activations and weights; biases too where they are decided upon apart.
        nodes: Names of the layers.
    """

    name: str
    tensors: tuple[str, ...]
    nodes: tuple[str, ...]


def find_groups(model: FloatModel, plans: Sequence[QuantPlan], options: MixedPrecision) -> tuple[Group, ...]:
    """Return what may change, in the order of the graph.

    Args:
        model: The float model.
        plans: The plan, and what it would be with each target everywhere.
        options: Which layers take part.

    Raises:
        SelectionError: Nothing may change, or a layer or operator type is misspelt.
        RecipeError: The model has no such output.
    """
    outputs = len(model.model.graph.outputs)
    if options.output is not None and not -outputs <= options.output < outputs:
        raise RecipeError(
            f"MixedPrecision.output must be the index of one of the model's {outputs} outputs, got {options.output}"
        )
    layers = [(node, _tensors(node, plans, options)) for node in _layers(model.model.graph, plans[0], options)]
    layers = [(node, tensors) for node, tensors in layers if tensors]
    if not layers:
        raise SelectionError(
            "MixedPrecision must have layers whose types the targets change, got none among the quantized nodes of "
            f"types {', '.join(options.operators)}"
        )
    return _apart(layers) if options.apart else _together(layers)


def _layers(graph: ir.Graph, plan: QuantPlan, options: MixedPrecision) -> list[ir.Node]:
    nodes = list(graph)
    chosen = of_types(nodes, options.operators, "MixedPrecision.operators")
    included = _named(nodes, options.include, "MixedPrecision.include") if options.include else set(nodes)
    excluded = _named(nodes, options.exclude, "MixedPrecision.exclude")
    quantized = frozenset(plan.quantized_nodes)
    return [
        node
        for node in nodes
        if node.name in quantized
        and node in chosen
        and node in included
        and node not in excluded
        and not (options.unshared_inputs and _shares_input(node, plan))
    ]


def _named(nodes: list[ir.Node], entries: Iterable[str], where: str) -> set[ir.Node]:
    return {node for entry in entries for node in matching(nodes, entry, where)}


def _shares_input(node: ir.Node, plan: QuantPlan) -> bool:
    activations = [value for value in node.inputs if value is not None and value.name in plan.activations]
    return any(len(value.uses()) > 1 for value in activations)


def _tensors(node: ir.Node, plans: Sequence[QuantPlan], options: MixedPrecision) -> tuple[str, ...]:
    """Return what of a layer has different types in different plans."""
    plan = plans[0]
    names = [value.name for value in node.inputs if value is not None and value.name]
    found = [plan.root(name) for name in names if name in plan.activations]
    found += [name for name in names if name in plan.weights]
    if options.apart:
        found += [name for name in names if name in plan.biases and plan.spec_of(name) is not None]
    return tuple(name for name in dict.fromkeys(found) if len({entry.spec_of(name) for entry in plans}) > 1)


def _apart(layers: Sequence[tuple[ir.Node, tuple[str, ...]]]) -> tuple[Group, ...]:
    readers: dict[str, list[str]] = defaultdict(list)
    for node, tensors in layers:
        for tensor in tensors:
            readers[tensor].append(node.name or "")
    return tuple(Group(tensor, (tensor,), tuple(nodes)) for tensor, nodes in readers.items())


def _together(layers: Sequence[tuple[ir.Node, tuple[str, ...]]]) -> tuple[Group, ...]:
    """Join layers that have tensors in common."""
    owner: dict[str, int] = {}
    parent = list(range(len(layers)))

    def root(index: int) -> int:
        while parent[index] != index:
            index = parent[index]
        return index

    for index, (_, tensors) in enumerate(layers):
        for tensor in tensors:
            first, second = sorted((root(owner.setdefault(tensor, index)), root(index)))
            parent[second] = first
    members: dict[int, list[int]] = defaultdict(list)
    for index in range(len(layers)):
        members[root(index)].append(index)
    return tuple(_joined([layers[index] for index in indices]) for indices in members.values())


def _joined(layers: Sequence[tuple[ir.Node, tuple[str, ...]]]) -> Group:
    names = tuple(node.name or "" for node, _ in layers)
    tensors = tuple(dict.fromkeys(tensor for _, part in layers for tensor in part))
    return Group(names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more", tensors, names)
