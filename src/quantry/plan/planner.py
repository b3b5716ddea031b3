"""Merges what the rules say about single nodes into one plan for the graph."""

import onnx_ir as ir

from quantry.memo import stage
from quantry.plan.draft import Draft
from quantry.plan.every_operator import any_operator, is_left_float
from quantry.plan.final_join import final_joins
from quantry.plan.layer_types import types_of_nodes
from quantry.plan.masks import keep_masks_float, masked_tensors
from quantry.plan.post_processing import post_processing
from quantry.plan.quant_plan import QuantPlan
from quantry.plan.residuals import keep_sums_float, normalized_sums
from quantry.plan.rules import RULE_OF_OPERATOR, Annotation, Declined, is_constant, is_float
from quantry.plan.selected_nodes import deselected
from quantry.plan.variance import variance_nodes
from quantry.plan.weights_alone import weights_alone
from quantry.prepare import FloatModel
from quantry.recipe import PlanOptions

_KNOWN_DOMAINS = ("", "ai.onnx", "com.microsoft")


@stage(name="plan", version=5)
def plan(model: FloatModel, options: PlanOptions) -> QuantPlan:
    """Decide which tensors of the model are quantized, to what.

    Args:
        model: The prepared model.
        options: Types, selection and placement.

    Returns:
        The plan; every node is either among its quantized nodes or declined with a reason.

    Raises:
        SelectionError: The selection, or an entry for a layer or a tensor, names something that is not there.
        RecipeError: Types of a layer do not go together.
    """
    graph = model.model.graph
    joins = final_joins(graph, options) if options.float_final_joins else {}
    types = types_of_nodes(graph, options.layers)
    kept = {name: entry.float_reason for name, entry in types.items() if entry.float_reason is not None}
    joins |= post_processing(graph) if options.float_post_processing else {}
    excluded = {**joins, **variance_nodes(graph), **kept, **deselected(graph, options.selection)}
    masked = masked_tensors(graph)
    sums = normalized_sums(graph) if options.float_residuals else frozenset()
    draft = Draft(options, types)
    for node in graph:
        answer = _answer(node, excluded, options)
        if isinstance(answer, Annotation) and options.weights_only:
            answer = weights_alone(answer, options)
        if isinstance(answer, Annotation):
            answer = keep_masks_float(node, answer, masked)
        if isinstance(answer, Annotation):
            answer = keep_sums_float(node, answer, sums)
        if isinstance(answer, Annotation) and answer.moves_data and not draft.may_pass_through(node, answer):
            answer = Declined("it only moves data and its input is not quantized")
        if isinstance(answer, Declined):
            draft.decline(node, answer.reason)
        else:
            draft.add(node, answer)
    return draft.finish()


def _answer(node: ir.Node, excluded: dict[str, str], options: PlanOptions) -> Annotation | Declined:
    if node.name in excluded:
        return Declined(excluded[node.name])
    rule = RULE_OF_OPERATOR.get(node.op_type) if node.domain in _KNOWN_DOMAINS else None
    if options.every_operator and is_left_float(node, rule, options):
        return any_operator(node)
    if rule is None:
        where = f" of domain {node.domain}" if node.domain else ""
        return Declined(f"there is no rule for operator {node.op_type}{where}")
    if not any(is_float(value) for value in (*node.inputs, *node.outputs) if value is not None):
        # Control flow and recurrences give their own reason whatever their types.
        answer = rule.annotate(node, options) if node.op_type in ("If", "Loop", "Scan") else None
        return answer if isinstance(answer, Declined) else Declined("it does not compute on float32 tensors")
    answer = rule.annotate(node, options)
    if isinstance(answer, Annotation):
        if not all(is_float(node.inputs[index]) for index in answer.activations):
            return Declined("a data input of it is no float32 tensor")
        if any(is_constant(node.inputs[index]) for index in answer.activations):
            return Declined("its data are a constant and its weight is computed at run time")
    return answer
