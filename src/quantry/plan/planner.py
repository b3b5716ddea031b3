"""The plan stage: asks the rules about every node and merges their answers into one plan."""

from dataclasses import replace

import onnx_ir as ir

from quantry.errors import SelectionError
from quantry.facts.operators import KNOWN_DOMAINS, Family, facts
from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import QuantPlan
from quantry.memo import stage
from quantry.plan.after_layers import final_pools, post_processing
from quantry.plan.bodies import InsidePlan, body_layers, deciding_nodes, inside_notes
from quantry.plan.divisors import divisor_tensors, keep_divisors_float
from quantry.plan.draft import Draft
from quantry.plan.rules import RULE_OF_OPERATOR, Annotation, Declined, is_constant, is_float
from quantry.plan.selection import deselected, deselected_so_far
from quantry.plan.stay_float import (
    any_operator,
    final_joins,
    is_left_float,
    keep_masks_float,
    keep_sums_float,
    masked_tensors,
    normalized_sums,
    pixel_readers,
    readers_of_infinity,
    variance_nodes,
    weight_only,
)
from quantry.plan.types import types_of_nodes
from quantry.recipe import PlanOptions


@stage(name="plan", version=14)
def plan(model: FloatModel, options: PlanOptions, inside: tuple[InsidePlan, ...] = ()) -> QuantPlan:
    """Decide which tensors of the model are quantized, and to which type.

    Args:
        model: The prepared model.
        options: Types, selection and placement.
        inside: Plans of bodies that were quantized as models of their own; this plan lists their nodes.

    Returns:
        The plan. Every node is either quantized or declined with a reason.

    Raises:
        SelectionError: The selection, or an entry for layers or tensors, names something that the model does not have.
        RecipeError: Types of a layer are incompatible.
    """
    graph = model.model.graph
    joins = final_joins(graph, options) if options.float_final_joins else {}
    types = types_of_nodes(graph, options.layers)
    float_reasons = {name: entry.float_reason for name, entry in types.items() if entry.float_reason is not None}
    joins |= post_processing(graph) if options.float_post_processing else {}
    joins |= final_pools(graph) if options.float_final_pools else {}
    joins |= pixel_readers(graph) if options.float_pixels else {}
    joins |= readers_of_infinity(graph)
    joins |= deciding_nodes(graph)
    excluded = {**joins, **variance_nodes(graph), **float_reasons, **deselected(graph, options.selection)}
    masked = masked_tensors(graph)
    sums = normalized_sums(graph) if options.float_residuals else frozenset()
    divisors = divisor_tensors(graph, options) if options.activation.dtype.has_scale else frozenset()
    draft = Draft(options, types)
    for node in graph:
        answer = _answer(node, excluded, options)
        if isinstance(answer, Annotation) and options.weights_only:
            answer = weight_only(answer, options)
        if isinstance(answer, Annotation):
            answer = keep_masks_float(node, answer, masked)
        if isinstance(answer, Annotation):
            answer = keep_sums_float(node, answer, sums)
        if isinstance(answer, Annotation):
            answer = keep_divisors_float(node, answer, divisors)
        if isinstance(answer, Annotation) and answer.moves_data and not draft.may_pass_through(node, answer):
            answer = Declined("it only moves data, and its input is not quantized")
        if isinstance(answer, Annotation) and node.op_type in options.pass_through:
            answer = answer if draft.may_pass_through(node, answer) else Declined("its input is not quantized")
        if isinstance(answer, Declined):
            draft.decline(node, answer.reason)
        else:
            draft.add(node, answer)
    for node, answer in body_layers(graph, options, excluded) if options.body_weights else ():
        draft.add_weights(node, answer)
    return _with_bodies(draft.finish(), inside)


def _with_bodies(plan: QuantPlan, inside: tuple[InsidePlan, ...]) -> QuantPlan:
    bodies = [(body_place, body_plan) for body_place, body_plan in inside if isinstance(body_plan, QuantPlan)]
    parents = {body_place.node for body_place, _ in bodies}
    reason = "it only runs its body, which is quantized like the main graph"
    declined = [replace(entry, reason=reason) if entry.node in parents else entry for entry in plan.declined]
    return replace(
        plan,
        declined=tuple(declined),
        inside=tuple(name for _, body_plan in bodies for name in body_plan.all_quantized),
        declined_inside=tuple(entry for _, body_plan in bodies for entry in body_plan.all_declined),
        notes=(*plan.notes, *inside_notes(inside)),
    )


def _answer(node: ir.Node, excluded: dict[str, str], options: PlanOptions) -> Annotation | Declined:
    if node.name in excluded:
        return Declined(excluded[node.name])
    rule = RULE_OF_OPERATOR.get(node.op_type) if node.domain in KNOWN_DOMAINS else None
    is_requested = options.every_operator or node.op_type in options.extra_operators
    if is_requested and is_left_float(node, rule, options):
        return any_operator(node)
    if rule is None:
        suffix = f" of domain {node.domain}" if node.domain else ""
        return Declined(f"there is no rule for operator {node.op_type}{suffix}")
    if not any(is_float(value) for value in (*node.inputs, *node.outputs) if value is not None):
        # Control flow has a reason of its own, whatever types it computes with.
        answer = rule.annotate(node, options) if facts(node).family is Family.CONTROL_FLOW else None
        return answer if isinstance(answer, Declined) else Declined("it does not compute on float32 tensors")
    answer = rule.annotate(node, options)
    if isinstance(answer, Annotation):
        if not all(is_float(node.inputs[index]) for index in answer.activations):
            return Declined("one of its data inputs is not a float32 tensor")
        if any(is_constant(node.inputs[index]) for index in answer.activations):
            return Declined("its data is constant and its weight is computed at run time")
    return answer


def kept_by_choice(model: FloatModel, options: PlanOptions) -> tuple[str, ...]:
    """Return the nodes that the selection or an entry for layers leaves float.

    Called before conversions for a target, which rename and replace nodes. Entries that match nothing are ignored: they
    may name nodes that a conversion will create. ``Selection.operators`` is ignored as well, because it names operators
    as they are after conversions, such as HardSigmoid.

    Args:
        model: The prepared model, before conversions.
        options: Selection and entries for layers.

    Returns:
        Names of nodes, sorted.
    """
    graph = model.model.graph
    names = set(deselected_so_far(graph, replace(options.selection, operators=())))
    if any(entry.keep_float for entry in options.layers):
        names |= _kept_layers(graph, options)
    return tuple(sorted(names))


def names_are_found(model: FloatModel, options: PlanOptions) -> bool:
    """Whether the model has everything that the options name."""
    try:
        plan(model, options)
    except SelectionError:
        return False
    return True


def _kept_layers(graph: ir.Graph, options: PlanOptions) -> frozenset[str]:
    try:
        types = types_of_nodes(graph, options.layers)
    except SelectionError:
        return frozenset()
    return frozenset(name for name, entry in types.items() if entry.float_reason is not None)
