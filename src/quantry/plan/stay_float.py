"""Exceptions to the operator rules, because of the graph around a node or because the user asks for them.

`quantry.plan.planner` says in which order rules, exceptions and the user's selection decide about a node. Each
exception has a function that finds the nodes or tensors, a reason for the user, and a drawing of the pattern. What
computes divisors is in `quantry.plan.divisors`, what comes after the last layer in `quantry.plan.after_layers`,
everything else here:

==========================  =========================================================================================
`variance_nodes`            normalizations written in small operators: variances need more than a few bits
`final_joins`               joins at the very end of a model: each part keeps its own scale
`pixel_readers`             convolutions that read an image: 8-bit floats have too few digits
`masked_tensors`            attention masks: the scale of minus infinity leaves nothing for the scores
`readers_of_infinity`       readers of weights with NaN or infinite values: no scale covers them
`normalized_sums`           residual sums in front of a normalization: outliers in few channels
`weight_only`               weight-only plans keep every activation float
`any_operator`              the opposite: quantize what rules decline, if the user asks for every operator
==========================  =========================================================================================
"""

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from quantry.facts.operators import LINEAR, Copies, Family, Masking, facts, of_family, operators_where
from quantry.graph.edit import int_of, producers_of
from quantry.graph.weights import not_finite
from quantry.plan.rules import RULE_OF_OPERATOR, Annotation, Declined, OperatorRule, Own, is_constant, is_float
from quantry.recipe import DerivedBias, PlanOptions

# ---- Attention masks -------------------------------------------------------------------------------------------------
#
#     scores -> Add or Where -> t -> Softmax
#                   ^
#         -inf, -1e9 or -10000 where attention must not look
#
# With a scale that reaches to the mask, all scores round to one level; with a smaller one, masked positions become
# visible again. So the mask, what is added to it and what moves it stay float. Softmax reads the float tensor, and only
# its result is quantized.

_MASK_MAGNITUDE = 1e4
"""Exporters mask with -10000, the lowest float16, -1e9, the lowest float32 or -inf."""

_CARRIERS = operators_where(lambda row: row.masking in (Masking.CARRIES, Masking.SCALES))
_MASKED = operators_where(lambda row: row.masking is not None)


def masked_tensors(graph: ir.Graph) -> frozenset[ir.Value]:
    """Return the constants that hold a mask, and the tensors computed from them that hold it too.

    Args:
        graph: The graph, sorted.
    """
    masked = {value for value in graph.initializers.values() if _is_mask(value)}
    for node in graph:
        if node.op_type in _CARRIERS and any(value in masked for value in node.inputs if value is not None):
            masked.update(node.outputs)
    return frozenset(masked)


def keep_masks_float(node: ir.Node, annotation: Annotation, masked: frozenset[ir.Value]) -> Annotation | Declined:
    """Return an annotation without the tensors that hold a mask.

    Args:
        node: The node.
        annotation: What its rule returned.
        masked: What `masked_tensors` returned.
    """
    reached = [node.inputs[index] for index in (*annotation.activations, *annotation.constants)]
    mask = next((value for value in reached if value in masked), None)
    if mask is None:
        return annotation
    if node.op_type == "Softmax":
        return replace(annotation, activations=())
    return Declined(
        f"its input {mask.name!r} holds a mask or a limit, next to which all other values would round to zero"
    )


def _is_mask(value: ir.Value) -> bool:
    if value.dtype != ir.DataType.FLOAT or value.const_value is None or not value.const_value.size:
        return False
    # Only operands that are added or moved can be masks: a large weight of a convolution is just a large weight.
    if not any(use.node.op_type in _MASKED for use in value.uses()):
        return False
    return not bool(np.abs(value.const_value.numpy()).max() < _MASK_MAGNITUDE)


# ---- Weights that are not finite -------------------------------------------------------------------------------------
#
# A model can have finite results although a weight has not, for example with NaN in the row of a token that never
# occurs. No scale covers such a weight, so what reads it stays float.


def readers_of_infinity(graph: ir.Graph) -> dict[str, str]:
    """Return the nodes that read a constant with NaN or infinite values, with the reason; masks are not among them."""
    readers = {}
    for value in graph.initializers.values():
        if value.const_value is None or not value.const_value.dtype.is_floating_point():
            continue
        nans, infinities = not_finite(value.const_value)
        for use in value.uses() if nans or infinities else ():
            if nans or use.node.op_type not in _MASKED:
                readers[use.node.name or ""] = f"its constant {value.name!r} has values that are not finite"
    return readers


# ---- Sums in front of normalizations ---------------------------------------------------------------------------------
#
#     MatMul -> f -> Add(bias) -> g -> Add(residual) -> h -> LayerNormalization -> y
#
# In transformers a few channels of h are a hundred times larger than the others, and the normalization divides by the
# deviation of all: with 8 bits, the small channels are mostly noise. No kernel is faster at adding or normalizing
# such tensors in 8 bits, so f, g and h stay float. y, whose channels have similar ranges again, is quantized.

SUM_REASON = (
    "a normalization reads its sum, in which outliers in a few channels would leave too few levels for the others"
)


def normalized_sums(graph: ir.Graph) -> frozenset[ir.Value]:
    """Return the sums that normalizations read, and their operands that nothing else reads.

    Args:
        graph: The sorted graph.
    """
    sums: set[ir.Value] = set()
    pending = [node.inputs[0] for node in graph if facts(node).across_channels]
    while pending:
        value = pending.pop()
        producer = None if value is None else value.producer()
        if value is None or producer is None or value in sums:
            continue
        if producer.op_type == "Add":
            sums.add(value)
            pending += [operand for operand in producer.inputs if operand is not None and len(operand.uses()) == 1]
        elif any(use.node.op_type == "Add" and use.node.outputs[0] in sums for use in value.uses()):
            sums.add(value)
    return frozenset(sums)


def keep_sums_float(node: ir.Node, annotation: Annotation, sums: frozenset[ir.Value]) -> Annotation | Declined:
    """Return an annotation without the tensors that stay float.

    Args:
        node: The node.
        annotation: What its rule returned.
        sums: What `normalized_sums` returned.
    """
    read = tuple(index for index in annotation.activations if node.inputs[index] in sums)
    written = any(output in sums for output in node.outputs)
    if not read and not written:
        return annotation
    # What only moves a sum has no scale to share.
    if node.op_type == "Add" or (read and annotation.moves_data):
        return Declined(SUM_REASON)
    indices = tuple(index for index in annotation.activations if index not in read)
    return replace(annotation, activations=indices, output=None if written else annotation.output)


# ---- Variances -------------------------------------------------------------------------------------------------------
#
#     x -> ReduceMean -> m -> Mul(m, m) ---v
#     x -> Mul(x, x) -> ReduceMean ------> Sub -> Add(epsilon) -> Sqrt -> Div         E[x**2] - E[x]**2
#
#     x -> ReduceMean -> Sub(x, .) -> Pow(2) -> ReduceMean -> Add(epsilon) -> Sqrt -> Div
#
# A square spans twice the orders of magnitude of its argument, and a variance is a small difference of large numbers.
# A few bits round it to zero or below, and the division by its root then gives huge values. So everything from the
# square to the root stays float, and so does a centered tensor that only the square and the division read.

VARIANCE_REASON = "it is part of a variance, a small difference of squares that integers of a few bits would round away"

_ROOTS = frozenset({"Sqrt", "Rsqrt"})
_BETWEEN = (
    *of_family(Family.ARITHMETIC, Family.AVERAGE, Family.REDUCTION),
    *operators_where(
        lambda row: row.copies is Copies.EACH_ONCE or (row.family is Family.ACTIVATION and row.homogeneous)
    ),
    *("Div", "Pow", "Expand", "Cast"),
)
_MEANS = (*of_family(Family.AVERAGE), "ReduceSum")


def variance_nodes(graph: ir.Graph) -> dict[str, str]:
    """Return the nodes that compute variances.

    Args:
        graph: The sorted graph.

    Returns:
        Node name to reason.
    """
    variance: set[ir.Node] = set()
    for node in graph:
        if node.op_type in _ROOTS or _is_inverse_root(node):
            variance |= _after_squares(node)
    variance |= _centred(variance)
    return {node.name or "": VARIANCE_REASON for node in variance}


def _after_squares(root: ir.Node) -> set[ir.Node]:
    """Return the nodes between squares and a root, if there are squares."""
    region: set[ir.Node] = set()
    squares = False
    pending = producers_of(root)
    while pending:
        node = pending.pop()
        if node in region or node.op_type not in _BETWEEN:
            continue
        if node.op_type == "Mul" and not _is_square(node) and not _scales(node):
            continue
        region.add(node)
        if _is_square(node):
            squares = True
        else:
            pending += producers_of(node)
    return region if squares else set()


def _centred(variance: set[ir.Node]) -> set[ir.Node]:
    """Return ``x - mean(x)``, and the mean, where only a square and a division by the root read the difference."""
    centred: set[ir.Node] = set()
    for square in variance:
        for node in producers_of(square) if _is_square(square) else ():
            readers = {use.node for output in node.outputs for use in output.uses()}
            if node.op_type == "Sub" and all(reader in variance or reader.op_type == "Div" for reader in readers):
                centred.add(node)
                centred |= {mean for mean in producers_of(node) if mean.op_type in _MEANS}
    return centred


def _is_square(node: ir.Node) -> bool:
    if node.op_type == "ReduceSumSquare":
        return True
    if node.op_type == "Mul":
        return node.inputs[0] is node.inputs[1]
    return node.op_type == "Pow" and _number(node.inputs[1]) == 2.0


def _is_inverse_root(node: ir.Node) -> bool:
    return node.op_type == "Pow" and _number(node.inputs[1]) in (0.5, -0.5)


def _scales(node: ir.Node) -> bool:
    return any(_number(value) is not None for value in node.inputs)


def _number(value: ir.Value | None) -> float | None:
    tensor = None if value is None else value.const_value
    if tensor is None or tensor.size != 1 or not tensor.dtype.is_floating_point():
        return None
    return float(tensor.numpy().reshape(-1)[0])


# ---- Joins at the end of a model -------------------------------------------------------------------------------------
#
#     boxes  -> Reshape \
#                        Concat -> Transpose -> output
#     scores -> Reshape /
#
# A detector joins boxes, in pixels, and scores, in [0, 1], into one output. One scale for both leaves the scores a
# handful of levels. Nothing computes after the join, so quantizing it gains nothing: each part keeps its own scale.

FINAL_JOIN_REASON = "it only joins finished results at the model's end; each part keeps its own scale"


def final_joins(graph: ir.Graph, options: PlanOptions) -> dict[str, str]:
    """Return the nodes after which nothing computes, if there is a Concat among them.

    Args:
        graph: The sorted graph.
        options: For the rules, which know which nodes only move data.

    Returns:
        Node name to reason.
    """
    tail: dict[ir.Node, bool] = {}
    for node in reversed(graph):
        readers = [use.node for output in node.outputs for use in output.uses()]
        ends = bool(readers) or any(output.is_graph_output() for output in node.outputs)
        if ends and all(reader in tail for reader in readers) and (node.op_type == "Concat" or _moves(node, options)):
            # A node that moves data only counts if there is a join before or after it.
            tail[node] = node.op_type == "Concat" or any(tail[reader] for reader in readers)
    joined = {node for node, joins in tail.items() if joins}
    frontier = list(joined)
    while frontier:
        for output in frontier.pop().outputs:
            other_readers = {use.node for use in output.uses()} - joined
            joined |= other_readers
            frontier.extend(other_readers)
    return {node.name or "": FINAL_JOIN_REASON for node in tail if node in joined}


def _moves(node: ir.Node, options: PlanOptions) -> bool:
    rule = RULE_OF_OPERATOR.get(node.op_type)
    answer = None if rule is None else rule.annotate(node, options)
    return isinstance(answer, Annotation) and answer.moves_data


# ---- Every operator, and weights only --------------------------------------------------------------------------------


_IMAGE_CHANNELS = 4


def pixel_readers(graph: ir.Graph) -> dict[str, str]:
    """Return the convolutions that read an image, and why they stay float; none if there is no other convolution.

    Args:
        graph: The sorted graph.
    """
    convolutions = [node for node in graph if node.op_type == "Conv"]
    readers = [node for node in convolutions if _reads_image(node)]
    reason = "it reads an image, and 8-bit floats lose differences between bright pixels (plan.float_pixels)"
    return {} if len(readers) == len(convolutions) else dict.fromkeys((node.name or "" for node in readers), reason)


def _reads_image(node: ir.Node) -> bool:
    weight, value = node.inputs[1], node.inputs[0]
    if weight is None or weight.shape is None or not isinstance(weight.shape[1], int):
        return False
    if weight.shape[1] * int_of(node, "group", 1) > _IMAGE_CHANNELS:
        return False
    # Normalization and changes of layout lie between the input and the first layer.
    while value is not None and (producer := value.producer()) is not None:
        computed = [source for source in producer.inputs if source is not None and source.const_value is None]
        if len(computed) != 1 or producer.op_type in LINEAR:
            return False
        value = computed[0]
    return value is not None and value.is_graph_input()


def is_left_float(node: ir.Node, rule: OperatorRule | None, options: PlanOptions) -> bool:
    """Whether a node computes on floats and its rule would leave it float.

    Args:
        node: The node.
        rule: The rule of its operator, or None.
        options: For the rule.
    """
    if facts(node).family in (Family.CONTROL_FLOW, Family.RECURRENT) or not any(
        _is_computed(value) for value in node.inputs
    ):
        return False
    return rule is None or isinstance(rule.annotate(node, options), Declined)


def any_operator(node: ir.Node) -> Annotation:
    """Quantize computed float inputs and float results; constants stay float, since their meaning is not known.

    Args:
        node: A node of `is_left_float`.
    """
    computed = tuple(index for index, value in enumerate(node.inputs) if _is_computed(value))
    return Annotation(activations=computed, output=Own() if any(is_float(output) for output in node.outputs) else None)


def _is_computed(value: ir.Value | None) -> bool:
    return is_float(value) and not is_constant(value)


def weight_only(annotation: Annotation, options: PlanOptions) -> Annotation | Declined:
    """Return the part of an annotation that quantizes no activation.

    Args:
        annotation: What a rule returned for a node.
        options: Which kind of bias is quantized.
    """
    if annotation.weight is None and not annotation.tables:
        return Declined("it has no constant weight, and only weights are quantized")
    derived = isinstance(options.bias, DerivedBias)
    return replace(annotation, activations=(), constants=(), bias=None if derived else annotation.bias, output=None)
