"""Bodies of If, Loop and Scan: which are quantized as models of their own, and the weights of all others.

A body that some calibration sample runs is planned like a main graph; here is what a recipe means inside it. Of the
others, only the weights are quantized, which `quantry.graph.passes.lift_body_weights` has moved to the main graph.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

import onnx_ir as ir

from quantry.errors import SelectionError
from quantry.facts.operators import LINEAR, Family, facts, of_family
from quantry.graph.bodies import BodyPlace, bodies_with_layers
from quantry.graph.quant_plan import QuantPlan
from quantry.notes import Note
from quantry.plan.rules import RULE_OF_OPERATOR, Annotation, is_float
from quantry.plan.selection import deselected_so_far, name_pattern
from quantry.plan.types import types_of_nodes
from quantry.recipe import (
    Dynamic,
    LayerTypes,
    MatMulNBits,
    MixOptions,
    PlanOptions,
    Recipe,
    Selection,
    TensorTypes,
)

_LAYERS = (*LINEAR, *of_family(Family.RECURRENT))


def body_layers(
    graph: ir.Graph, options: PlanOptions, excluded: Mapping[str, str]
) -> Iterator[tuple[ir.Node, Annotation]]:
    """Yield the layers inside bodies with constant weights, and the weights as an annotation.

    Args:
        graph: The main graph.
        options: Selection and types.
        excluded: Names of nodes that stay float, also of nodes inside bodies.
    """
    flow = [node for node in graph if facts(node).family is Family.CONTROL_FLOW]
    if not flow:
        return
    outer = _deselected_outside(graph, options)
    constants = set(graph.initializers.values())
    for parent in flow:
        if parent.name in outer:
            continue
        for node in _inside(parent):
            if node.op_type not in _LAYERS or node.domain != "" or node.name in excluded:
                continue
            answer = RULE_OF_OPERATOR[node.op_type].annotate(node, options)
            if not isinstance(answer, Annotation) or answer.weight is None:
                continue
            weights = [node.inputs[index] for index in (answer.weight, *answer.other_weights)]
            if all(weight in constants and is_float(weight) for weight in weights):
                yield node, answer


def _inside(parent: ir.Node) -> Iterator[ir.Node]:
    for attribute in parent.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield from ir.traversal.RecursiveGraphIterator(attribute.as_graph())


def _deselected_outside(graph: ir.Graph, options: PlanOptions) -> Collection[str]:
    """Return the nodes whose bodies stay float: which operators or nodes are selected is a question about layers."""
    selection = options.selection
    return deselected_so_far(graph, Selection(selection.input_nodes, selection.output_nodes, exclude=selection.exclude))


_DECIDING_INPUTS = {"If": (0,), "Loop": (0, 1)}


def deciding_nodes(graph: ir.Graph) -> dict[str, str]:
    """Return the nodes after the last layer that only decide which body runs, or how often, with the reason.

    Rounding them gains no speed, and a condition that changes runs another body.

    Args:
        graph: The sorted graph.
    """
    deciding: set[ir.Node] = set()
    for node in reversed(graph):
        uses = [use for output in node.outputs for use in output.uses()]
        if not uses or node.op_type in _LAYERS or any(output.is_graph_output() for output in node.outputs):
            continue
        if all(use.node in deciding or use.idx in _DECIDING_INPUTS.get(use.node.op_type, ()) for use in uses):
            deciding.add(node)
    return {node.name or "": "it decides which body of control flow runs" for node in deciding}


InsidePlan = tuple[BodyPlace, QuantPlan | str]
"""A body and its plan, or the reason why its activations stay float."""


def planned_bodies(graph: ir.Graph, recipe: Recipe) -> tuple[BodyPlace, ...]:
    """Return the bodies of the main graph that a recipe quantizes as models of their own.

    Args:
        graph: The main graph.
        recipe: The recipe; of one that leaves activations float, only the weights in bodies are quantized.
    """
    options = recipe.plan
    bodies = list(bodies_with_layers(graph))
    plans_bodies = options.body_weights and options.body_activations and not options.weights_only
    if not bodies or not plans_bodies or isinstance(recipe.emit.format, Dynamic | MatMulNBits):
        return ()
    outer = _deselected_outside(graph, options)
    return tuple(body_place for node, body_place in bodies if node.name not in outer)


def recipe_inside(recipe: Recipe, graph: ir.Graph, body: ir.Graph, states: tuple[tuple[str, str], ...]) -> Recipe:
    """Return what a recipe for a model means for one of its bodies.

    Args:
        recipe: The recipe.
        graph: The main graph.
        body: The main graph of the body as a model.
        states: Names at the start and at the end of states that a loop passes on; they share a scale, so that they are
            not rounded a second time in the next round.
    """
    plan, scale = recipe.plan, recipe.scale
    names = {node.name for node in ir.traversal.RecursiveGraphIterator(body)}
    left_out = tuple(name for name in deselected_so_far(graph, plan.selection) if name in names)
    inside = replace(
        plan,
        selection=Selection(exclude=left_out),
        layers=tuple(entry for entry in plan.layers if _matches(body, entry)),
        tensors=tuple(replace(entry, optional=True) for entry in plan.tensors),
    )
    fixed = tuple(replace(entry, optional=True) for entry in scale.given)
    return replace(
        recipe,
        plan=inside,
        scale=replace(scale, given=fixed, together=(*scale.together, *states)),
        observe=replace(recipe.observe, samples=None),
        mix=MixOptions(),
    )


def recipe_outside(recipe: Recipe, inside: Iterable[InsidePlan]) -> Recipe:
    """Return the recipe for the main graph, which need not have the tensors that the recipe names inside bodies."""
    plans = [plan for _, plan in inside if isinstance(plan, QuantPlan)]
    if not plans or not (recipe.plan.tensors or recipe.scale.given):
        return recipe
    names = {name for plan in plans for name in (*plan.activations, *plan.weights, *plan.biases)}
    tensors = tuple(
        replace(entry, optional=entry.optional or _names_some(entry, names)) for entry in recipe.plan.tensors
    )
    fixed = tuple(replace(entry, optional=entry.optional or entry.tensor in names) for entry in recipe.scale.given)
    return replace(recipe, plan=replace(recipe.plan, tensors=tensors), scale=replace(recipe.scale, given=fixed))


def _names_some(entry: TensorTypes, names: Collection[str]) -> bool:
    return all(any(map(name_pattern(name, "plan.tensors"), names)) for name in entry.match)


def _matches(graph: ir.Graph, entry: LayerTypes) -> bool:
    try:
        return bool(types_of_nodes(graph, [entry]))
    except SelectionError:
        return False


def inside_notes(inside: Iterable[InsidePlan]) -> Iterator[Note]:
    """Yield what was done with each body."""
    for body_place, plan in inside:
        if isinstance(plan, str):
            yield Note.of("{body}: activations stay float, because {reason}", body=str(body_place), reason=plan)
        else:
            count = len(plan.all_quantized)
            nodes = count + len(plan.all_declined)
            yield Note.of("{body}: {count} of {nodes} nodes quantized", body=str(body_place), count=count, nodes=nodes)
