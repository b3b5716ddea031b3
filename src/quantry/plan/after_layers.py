"""What comes after the last layer with weights and stays float: decoding of boxes, and final average pools."""

import numpy as np
import onnx_ir as ir

from quantry.facts.operators import LINEAR, Family, facts, of_family
from quantry.graph.edit import constant_of, producers_of
from quantry.plan.rules import is_float

_LAYERS = (*LINEAR, *of_family(Family.RECURRENT), "Einsum")


def _after_layers(graph: ir.Graph) -> set[ir.Node]:
    """Return the nodes from which no layer with weights can be reached."""
    tail: set[ir.Node] = set()
    for node in reversed(graph):
        readers = [use.node for output in node.outputs for use in output.uses()]
        is_layer = node.op_type in _LAYERS and not _is_expectation(node)
        if not is_layer and all(reader in tail for reader in readers):
            tail.add(node)
    return tail


# ---- Post-processing of detectors ------------------------------------------------------------------------------------
#
#     boxes of a Conv  -> Add(grid) -> Mul(stride) \
#     sizes of a Conv  -> Exp -> Mul(stride) -------- Concat -> NonMaxSuppression -> output
#     scores of a Conv -> Sigmoid ----------------- /
#
# Pixels, logarithms and probabilities meet here, and one step of 8 bits is a few pixels of a box. There are no weights,
# so quantizing it gains nothing. The grid is a constant, or computed from the shape of the image where that is dynamic.
#
#     bins of a Conv -> Softmax -> Conv with weights 0, 1, 2, ... -> distance to the edge of a box
#
# These weights were not learned: the layer computes the mean of a distribution, and belongs to the decoding.

POST_PROCESSING_REASON = (
    "it decodes or selects finished results after the last layer with weights, where pixels must be exact"
)

_MARKERS = frozenset({"Exp", "NonMaxSuppression", "TopK"})
_GRID = 256
"""A constant operand with more values than this, after all layers, is a grid of positions."""

_MOST_BINS = 1024
"""More weights than this are not the bins of a distribution."""


def post_processing(graph: ir.Graph) -> dict[str, str]:
    """Return the nodes after the last layers that take part in decoding or selecting boxes.

    Args:
        graph: The sorted graph.

    Returns:
        Node name to reason; empty where nothing is decoded.
    """
    if not any(node.op_type in _LAYERS for node in graph):
        return {}
    tail = _after_layers(graph)
    computed = _from_data(graph)
    pending = [node for node in graph if node in tail and (node.op_type in _MARKERS or _has_grid(node, computed))]
    connected: set[ir.Node] = set()
    while pending:
        node = pending.pop()
        if node in tail and node not in connected:
            connected.add(node)
            pending += [use.node for output in node.outputs for use in output.uses()]
            pending += producers_of(node)
    return {node.name or "": POST_PROCESSING_REASON for node in connected}


def _from_data(graph: ir.Graph) -> set[ir.Value]:
    """Return the values that depend on the model's inputs, not only on their shapes."""
    data_values = set(graph.inputs)
    for node in graph:
        if node.op_type not in ("Shape", "Size") and any(value in data_values for value in node.inputs):
            data_values.update(node.outputs)
    return data_values


def _has_grid(node: ir.Node, computed: set[ir.Value]) -> bool:
    if node.op_type not in ("Add", "Sub", "Mul"):
        return False
    fixed = [value for value in node.inputs if value is not None and value not in computed]
    if len(fixed) != 1:
        return False
    constant = constant_of(fixed[0])
    if constant is None:
        return is_float(fixed[0])
    # A constant along one axis is a bias or a factor per channel. Positions run along two axes, or one and channels.
    return sum(length > 1 for length in constant.shape) > 1 and constant.size > _GRID


def _is_expectation(node: ir.Node) -> bool:
    """Whether a layer computes the mean of a distribution: equal steps as weights, for the result of a Softmax."""
    if node.op_type not in LINEAR or len(node.inputs) != 2:
        return False
    weight = constant_of(node.inputs[1])
    if weight is None or not 2 <= weight.size <= _MOST_BINS or max(weight.shape) != weight.size:
        return False
    steps = np.diff(weight.reshape(-1).astype(np.float64))
    if not steps[0] or not np.allclose(steps, steps[0], rtol=1e-3):
        return False
    producer = node.inputs[0].producer() if node.inputs[0] is not None else None
    while producer is not None and facts(producer).family is Family.MOVEMENT:
        producer = producer.inputs[0].producer() if producer.inputs[0] is not None else None
    return producer is not None and producer.op_type == "Softmax"


# ---- Pools that compute the outputs ----------------------------------------------------------------------------------
#
#     Conv -> Relu -> GlobalAveragePool -> Mul(constant) -> Flatten -> Softmax -> output
#
# NPUs copy integers through a pool, so the means have the step of the pixels, ten times as large as they need. Between
# layers that is one error among many. At the end, classes with similar scores become equal.

FINAL_POOL_REASON = (
    "it averages after the last layer with weights; with the range of its input, few levels would be left for the means"
)


def final_pools(graph: ir.Graph) -> dict[str, str]:
    """Return average pools after which no layer follows, and what follows them.

    Args:
        graph: The sorted graph.

    Returns:
        Node name to reason.
    """
    pools = {node for node in _after_layers(graph) if facts(node).family is Family.AVERAGE}
    for node in graph:
        if any(producer in pools for producer in producers_of(node)):
            pools.add(node)
    return {node.name or "": FINAL_POOL_REASON for node in pools}
