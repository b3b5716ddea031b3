"""Layers inside the bodies of If, Loop and Scan, of which the weights are quantized.

Tensors inside a body are observed only if they become outputs of it, and their number of values may change from run to
run, so activations there stay float. `quantry.graph.passes.lift_body_weights` has moved the weights to the main graph.
"""

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from quantry.graph.operators import LINEAR, Family, facts, of_family
from quantry.plan.rules import RULE_OF_OPERATOR, Annotation, is_float
from quantry.plan.selection import deselected
from quantry.recipe import PlanOptions, Selection

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
    selection = options.selection
    # Which operators or nodes are selected is a question about the layers, not about the node they are inside of.
    outer = deselected(graph, Selection(selection.input_nodes, selection.output_nodes, exclude=selection.exclude))
    known = set(graph.initializers.values())
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
            if all(weight in known and is_float(weight) for weight in weights):
                yield node, answer


def _inside(parent: ir.Node) -> Iterator[ir.Node]:
    for attribute in parent.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield from ir.traversal.RecursiveGraphIterator(attribute.as_graph())
