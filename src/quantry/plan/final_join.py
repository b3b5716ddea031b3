r"""Finds the joins at a model's very end.

A detector ends by joining boxes, in pixels, and scores, in [0, 1], into one tensor::

    boxes  -> Reshape \
                       Concat -> Transpose -> output
    scores -> Reshape /

One scale for the join leaves the scores a handful of levels. Behind the join nothing computes any more, so nothing is
gained by quantizing it: each part keeps the scale it has before.
"""

import onnx_ir as ir

from quantry.plan.rules import RULE_OF_OPERATOR, Annotation
from quantry.recipe import PlanOptions

REASON = "it only joins finished results at the model's end; each part keeps its own scale"


def final_joins(graph: ir.Graph, options: PlanOptions) -> dict[str, str]:
    """Return the nodes behind which nothing computes, where they contain a Concat.

    Args:
        graph: The sorted graph.
        options: Passed on to the rules that know which operators only move data.

    Returns:
        Node name to reason.
    """
    tail: dict[ir.Node, bool] = {}
    for node in reversed(graph):
        readers = [use.node for output in node.outputs for use in output.uses()]
        ends = bool(readers) or any(output.is_graph_output() for output in node.outputs)
        if ends and all(reader in tail for reader in readers) and (node.op_type == "Concat" or _moves(node, options)):
            # A node that moves data belongs to the tail only if a join comes with it: before it, or behind it.
            tail[node] = node.op_type == "Concat" or any(tail[reader] for reader in readers)
    joined = {node for node, joins in tail.items() if joins}
    frontier = list(joined)
    while frontier:
        for output in frontier.pop().outputs:
            behind = {use.node for use in output.uses()} - joined
            joined |= behind
            frontier.extend(behind)
    return {node.name or "": REASON for node in tail if node in joined}


def _moves(node: ir.Node, options: PlanOptions) -> bool:
    rule = RULE_OF_OPERATOR.get(node.op_type)
    answer = None if rule is None else rule.annotate(node, options)
    return isinstance(answer, Annotation) and answer.moves_data
