"""Attention masks: constants that stand for infinity, and the tensors they reach.

::

    scores -> Add or Where -> t -> Softmax
                  ^
        -inf, -1e9 or -10000 where attention must not look

On a grid of a few bits that reaches to the mask, all scores round to one level; on one that does not, what was masked
becomes visible again. So the mask, whatever is added to it and whatever moves it stay float; Softmax reads the float
tensor, and only its result is quantized.

Finds the sums that normalizations read.

::

    MatMul -> f -> Add(bias) -> g -> Add(residual) -> h -> LayerNormalization -> y

In transformers a few channels of h are a hundred times as large as the others, and the normalization divides by the
deviation of all: what 8 bits leave of the small channels is noise. No kernel adds or normalizes such tensors in 8 bits
to advantage, so f, g and h stay float; y, whose channels are alike again, is quantized.

Finds the variances that normalizations written in small operators compute.

::

    x -> ReduceMean -> m -> Mul(m, m) ---v
    x -> Mul(x, x) -> ReduceMean ------> Sub -> Add(epsilon) -> Sqrt -> Div         E[x**2] - E[x]**2

    x -> ReduceMean -> Sub(x, .) -> Pow(2) -> ReduceMean -> Add(epsilon) -> Sqrt -> Div

A square spans twice the orders of magnitude of its argument, and a variance is a small difference of large numbers: on
an even grid of a few bits it rounds to zero or below, and the division by its root then blows everything up. So all
from the square to the root stays float, and so does a centred tensor that only the square and the division read.

Finds the joins at a model's very end.

A detector ends by joining boxes, in pixels, and scores, in [0, 1], into one tensor::

    boxes  -> Reshape \
                       Concat -> Transpose -> output
    scores -> Reshape /

One scale for the join leaves the scores a handful of levels. Behind the join nothing computes any more, so nothing is
gained by quantizing it: each part keeps the scale it has before.

Finds what a detector does to its results behind its last layers.

::

    Conv -> boxes  -> Add(grid) -> Mul(stride) \
    Conv -> sizes  -> Exp -> Mul(stride) -------- Concat -> NonMaxSuppression -> output
    Conv -> scores -> Sigmoid ----------------- /

Pixels, logarithms and probabilities meet here; one step of 8 bits is a few pixels of a box. No weights are multiplied,
so nothing is gained by quantizing it.

Operators that stay float for their precision, or because nothing is known of them, where all are to be quantized.

Plans of weights alone: what is left of an annotation where every activation stays float.
"""

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from quantry.graph.operators import LINEAR, Copies, Family, Masking, facts, of_family, operators_where
from quantry.plan.rules import RULE_OF_OPERATOR, Annotation, Declined, Own, Rule, is_constant, is_float
from quantry.recipe import DerivedBias, PlanOptions

_FAR = 1e4
"""Exporters mask with -10000, the lowest float16, -1e9, the lowest float32 or -inf."""

_CARRIERS = operators_where(lambda row: row.masking in (Masking.CARRIES, Masking.SCALES))
_MASKED = operators_where(lambda row: row.masking is not None)


def masked_tensors(graph: ir.Graph) -> frozenset[ir.Value]:
    """Return the constants that hold a mask, and the tensors that carry one on.

    Args:
        graph: The graph, sorted.
    """
    masked = {value for value in graph.initializers.values() if _is_mask(value)}
    for node in graph:
        if node.op_type in _CARRIERS and any(value in masked for value in node.inputs if value is not None):
            masked.update(node.outputs)
    return frozenset(masked)


def keep_masks_float(node: ir.Node, annotation: Annotation, masked: frozenset[ir.Value]) -> Annotation | Declined:
    """Return what is left of an annotation when tensors that hold a mask must stay float.

    Args:
        node: The node.
        annotation: What its rule says.
        masked: What `masked_tensors` returned.
    """
    reached = [node.inputs[index] for index in (*annotation.activations, *annotation.constants)]
    mask = next((value for value in reached if value in masked), None)
    if mask is None:
        return annotation
    if node.op_type == "Softmax":
        return replace(annotation, activations=())
    return Declined(f"its input {mask.name!r} holds a mask or a limit, beside which all else would round to zero")


def _is_mask(value: ir.Value) -> bool:
    if value.dtype != ir.DataType.FLOAT or value.const_value is None or not value.const_value.size:
        return False
    # Weights are looked at only where they are operands: the largest of a convolution says nothing.
    if not any(use.node.op_type in _MASKED for use in value.uses()):
        return False
    return not bool(np.abs(value.const_value.numpy()).max() < _FAR)


REASON = "a normalization reads its sum, in which outliers of few channels would cost all others their resolution"

_NORMALIZATIONS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})


def normalized_sums(graph: ir.Graph) -> frozenset[ir.Value]:
    """Return the sums that normalizations read, and the summands that nobody else reads.

    Args:
        graph: The sorted graph.
    """
    found: set[ir.Value] = set()
    waiting = [node.inputs[0] for node in graph if node.op_type in _NORMALIZATIONS]
    while waiting:
        value = waiting.pop()
        producer = None if value is None else value.producer()
        if value is None or producer is None or value in found:
            continue
        if producer.op_type == "Add":
            found.add(value)
            waiting += [operand for operand in producer.inputs if operand is not None and len(operand.uses()) == 1]
        elif any(use.node.op_type == "Add" and use.node.outputs[0] in found for use in value.uses()):
            found.add(value)
    return frozenset(found)


def keep_sums_float(node: ir.Node, annotation: Annotation, sums: frozenset[ir.Value]) -> Annotation | Declined:
    """Return what is left of an annotation when some tensors must stay float.

    Args:
        node: The node.
        annotation: What its rule says.
        sums: What `normalized_sums` returned.
    """
    read = tuple(index for index in annotation.activations if node.inputs[index] in sums)
    written = any(output in sums for output in node.outputs)
    if not read and not written:
        return annotation
    if node.op_type == "Add":
        return Declined(REASON)
    kept = tuple(index for index in annotation.activations if index not in read)
    return replace(annotation, activations=kept, output=None if written else annotation.output)


VARIANCE_REASON = (
    "it is part of a variance, a small difference of squares that an even grid of a few bits would round away"
)

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
    found: set[ir.Node] = set()
    for node in graph:
        if node.op_type in _ROOTS or _is_inverse_root(node):
            found |= _behind_squares(node)
    found |= _centred(found)
    return {node.name or "": VARIANCE_REASON for node in found}


def _behind_squares(root: ir.Node) -> set[ir.Node]:
    """Return the nodes between squares and a root, if there are squares."""
    region: set[ir.Node] = set()
    squares = False
    waiting = _producers(root)
    while waiting:
        node = waiting.pop()
        if node in region or node.op_type not in _BETWEEN:
            continue
        if node.op_type == "Mul" and not _is_square(node) and not _scales(node):
            continue
        region.add(node)
        if _is_square(node):
            squares = True
        else:
            waiting += _producers(node)
    return region if squares else set()


def _centred(variance: set[ir.Node]) -> set[ir.Node]:
    """Return ``x - mean(x)``, and the mean, where only a square and a division by the root read the difference."""
    found: set[ir.Node] = set()
    for square in variance:
        for node in _producers(square) if _is_square(square) else ():
            readers = {use.node for output in node.outputs for use in output.uses()}
            if node.op_type == "Sub" and all(reader in variance or reader.op_type == "Div" for reader in readers):
                found.add(node)
                found |= {mean for mean in _producers(node) if mean.op_type in _MEANS}
    return found


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


def _producers(node: ir.Node) -> list[ir.Node]:
    return [made for value in node.inputs if value is not None and (made := value.producer()) is not None]


FINAL_JOIN_REASON = "it only joins finished results at the model's end; each part keeps its own scale"


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
    return {node.name or "": FINAL_JOIN_REASON for node in tail if node in joined}


def _moves(node: ir.Node, options: PlanOptions) -> bool:
    rule = RULE_OF_OPERATOR.get(node.op_type)
    answer = None if rule is None else rule.annotate(node, options)
    return isinstance(answer, Annotation) and answer.moves_data


POST_PROCESSING_REASON = (
    "it decodes or selects finished results behind the last layer with weights, where pixels are counted exactly"
)

_LAYERS = (*LINEAR, *of_family(Family.RECURRENT), "Einsum")
_MARKERS = frozenset({"Exp", "NonMaxSuppression", "TopK"})
_GRID = 256
"""A constant operand with more values than this, behind all layers, is a grid of positions."""


def post_processing(graph: ir.Graph) -> dict[str, str]:
    """Return the nodes behind the last layers, from where boxes are decoded or selected on.

    Args:
        graph: The sorted graph.

    Returns:
        Node name to reason; empty where nothing is decoded.
    """
    if not any(node.op_type in _LAYERS for node in graph):
        return {}
    tail: set[ir.Node] = set()
    for node in reversed(graph):
        readers = [use.node for output in node.outputs for use in output.uses()]
        if node.op_type not in _LAYERS and all(reader in tail for reader in readers):
            tail.add(node)
    marked = [node for node in graph if node in tail and (node.op_type in _MARKERS or _has_grid(node))]
    connected: set[ir.Node] = set()
    waiting = marked
    while waiting:
        node = waiting.pop()
        if node in tail and node not in connected:
            connected.add(node)
            waiting += [use.node for output in node.outputs for use in output.uses()]
            waiting += [made for value in node.inputs if value is not None and (made := value.producer()) is not None]
    return {node.name or "": POST_PROCESSING_REASON for node in connected}


def _has_grid(node: ir.Node) -> bool:
    if node.op_type not in ("Add", "Sub", "Mul"):
        return False
    constants = [value.const_value for value in node.inputs if value is not None and value.const_value is not None]
    shapes = [tuple(tensor.shape.numpy()) for tensor in constants]
    # A constant along one axis is a bias or a factor for each channel; positions run along two, or beside channels.
    return any(sum(length > 1 for length in shape) > 1 and _size(shape) > _GRID for shape in shapes)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def is_left_float(node: ir.Node, rule: Rule | None, options: PlanOptions) -> bool:
    """Whether a node computes on floats and would not be quantized.

    Args:
        node: The node.
        rule: The rule of its operator; None where there is none.
        options: Passed on to the rule.
    """
    if facts(node).family in (Family.CONTROL_FLOW, Family.RECURRENT) or not any(
        _is_computed(value) for value in node.inputs
    ):
        return False
    return rule is None or isinstance(rule.annotate(node, options), Declined)


def any_operator(node: ir.Node) -> Annotation:
    """Quantize what is computed and float, and the float results; constants of an unknown meaning stay float.

    Args:
        node: A node of `is_left_float`.
    """
    computed = tuple(index for index, value in enumerate(node.inputs) if _is_computed(value))
    return Annotation(activations=computed, output=Own() if any(is_float(output) for output in node.outputs) else None)


def _is_computed(value: ir.Value | None) -> bool:
    return is_float(value) and not is_constant(value)


def weights_alone(annotation: Annotation, options: PlanOptions) -> Annotation | Declined:
    """Return the part of an annotation that needs no activation.

    Args:
        annotation: What a rule said of a node.
        options: Whether the bias has a scale of its own.
    """
    if annotation.weight is None:
        return Declined("it has no constant weight, and only weights are quantized")
    derived = isinstance(options.bias, DerivedBias)
    return replace(annotation, activations=(), constants=(), bias=None if derived else annotation.bias, output=None)
