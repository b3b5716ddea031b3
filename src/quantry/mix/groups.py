"""Which tensors must change type together, and the plan that mixes the chosen types."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from quantry.errors import RecipeError, SelectionError
from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import (
    ActivationPlan,
    BiasPlan,
    DerivedBiasPlan,
    OwnBiasPlan,
    QuantPlan,
    SharedRange,
    WeightPlan,
)
from quantry.plan.selection import matching, of_types
from quantry.recipe import DerivedBias, MixedPrecision, OwnBias, nearest_bias


@dataclass(frozen=True)
class Group:
    """Tensors that change type together.

    Attributes:
        name: The name to report: a layer, or a tensor.
        tensors: Activations and weights; biases too if each tensor is a group of its own.
        nodes: Names of the layers.
    """

    name: str
    tensors: tuple[str, ...]
    nodes: tuple[str, ...]


def find_groups(model: FloatModel, plans: Sequence[QuantPlan], options: MixedPrecision) -> tuple[Group, ...]:
    """Return the groups that may change, in the order of the graph.

    Args:
        model: The float model.
        plans: The plan without mixing, then one plan per target.
        options: Which layers take part.

    Raises:
        SelectionError: No layer may change, or a layer or operator type does not exist.
        RecipeError: The model has no such output.
    """
    outputs = len(model.model.graph.outputs)
    if options.output is not None and not -outputs <= options.output < outputs:
        raise RecipeError(
            f"MixedPrecision.output must be the index of one of the model's {outputs} outputs, got {options.output}"
        )
    layers = changing_layers(model, plans, options)
    if not layers:
        raise SelectionError(
            "MixedPrecision must have layers whose types the targets change, got none among the quantized nodes of "
            f"types {', '.join(options.operators)}"
        )
    return _per_tensor(layers) if options.per_tensor else _together(layers)


def changing_layers(
    model: FloatModel, plans: Sequence[QuantPlan], options: MixedPrecision
) -> list[tuple[ir.Node, tuple[str, ...]]]:
    """Return the layers of the main graph that may change, each with the tensors whose type differs between plans.

    Args:
        model: The float model.
        plans: The plan without mixing, then one plan per target.
        options: Which layers take part.

    Raises:
        SelectionError: A layer or operator type does not exist.
    """
    layers = ((node, _tensors(node, plans, options)) for node in _layers(model.model.graph, plans[0], options))
    return [(node, tensors) for node, tensors in layers if tensors]


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
    """Return the tensors of a layer whose type differs between plans."""
    plan = plans[0]
    names = [value.name for value in node.inputs if value is not None and value.name]
    found = [plan.root(name) for name in names if name in plan.activations]
    found += [name for name in names if name in plan.weights]
    if options.per_tensor:
        found += [name for name in names if name in plan.biases and plan.spec_of(name) is not None]
    return tuple(name for name in dict.fromkeys(found) if len({entry.spec_of(name) for entry in plans}) > 1)


def _per_tensor(layers: Sequence[tuple[ir.Node, tuple[str, ...]]]) -> tuple[Group, ...]:
    readers: dict[str, list[str]] = defaultdict(list)
    for node, tensors in layers:
        for tensor in tensors:
            readers[tensor].append(node.name or "")
    return tuple(Group(tensor, (tensor,), tuple(nodes)) for tensor, nodes in readers.items())


def _together(layers: Sequence[tuple[ir.Node, tuple[str, ...]]]) -> tuple[Group, ...]:
    """Return one group for all layers that are connected by shared tensors."""
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


def merge_plans(model: FloatModel, plans: Sequence[QuantPlan], chosen: Mapping[str, int]) -> QuantPlan:
    """Return a plan in which each tensor has the type of the plan chosen for it.

    Args:
        model: The float model.
        plans: Plans of the same tensors.
        chosen: Index of a plan by tensor: activations with a range of their own, weights and biases. Other tensors have
            the type of the first plan; other biases follow the weight of their layer.
    """
    base = plans[0]
    activations: dict[str, ActivationPlan] = {
        name: entry if isinstance(entry, SharedRange) else plans[chosen.get(name, 0)].activations[name]
        for name, entry in base.activations.items()
    }
    weights: dict[str, WeightPlan] = {
        name: replace(plans[chosen.get(name, 0)].weights[name], users=entry.users)
        for name, entry in base.weights.items()
    }
    merged = replace(base, activations=activations, weights=weights, biases={})
    weight_of = _weights_of_biases(model, base)
    biases: dict[str, BiasPlan] = {}
    for name in _bias_names(plans):
        choice = chosen.get(name, chosen.get(weight_of.get(name, ""), 0))
        planned = _bias(plans[choice].biases.get(name), _derivation(name, plans), merged)
        if planned is not None:
            biases[name] = planned
    return replace(merged, biases=biases)


def _bias_names(plans: Sequence[QuantPlan]) -> list[str]:
    return list(dict.fromkeys(name for plan in plans for name in plan.biases))


def _derivation(name: str, plans: Sequence[QuantPlan]) -> DerivedBiasPlan | None:
    found = (plan.biases.get(name) for plan in plans)
    return next((entry for entry in found if isinstance(entry, DerivedBiasPlan)), None)


def _bias(wanted: BiasPlan | None, derivation: DerivedBiasPlan | None, merged: QuantPlan) -> BiasPlan | None:
    """Return the plan of a bias that fits the input and the weight of its layer in the merged plan."""
    if derivation is None:
        return wanted
    data, weight = merged.spec_of(derivation.input), merged.spec_of(derivation.weight)
    if data is None or weight is None:
        return wanted
    # Whether a bias can be derived depends on the merged types, not on those of the plan it comes from.
    nearest = nearest_bias(DerivedBias(), data, weight)
    if isinstance(nearest, DerivedBias):
        return derivation
    if isinstance(wanted, OwnBiasPlan):
        return wanted
    return OwnBiasPlan(nearest.spec) if isinstance(nearest, OwnBias) else None


def _weights_of_biases(model: FloatModel, plan: QuantPlan) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in model.model.graph:
        names = [value.name for value in node.inputs if value is not None and value.name]
        weight = next((name for name in names if name in plan.weights), None)
        for name in names:
            if weight is not None and name != weight and name not in plan.weights and name not in plan.activations:
                found.setdefault(name, weight)
    return found
