r"""Finds what a detector does to its results behind its last layers.

::

    Conv -> boxes  -> Add(grid) -> Mul(stride) \
    Conv -> sizes  -> Exp -> Mul(stride) -------- Concat -> NonMaxSuppression -> output
    Conv -> scores -> Sigmoid ----------------- /

Pixels, logarithms and probabilities meet here; one step of 8 bits is a few pixels of a box. No weights are multiplied,
so nothing is gained by quantizing it.
"""

import onnx_ir as ir

REASON = "it decodes or selects finished results behind the last layer with weights, where pixels are counted exactly"

_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "Einsum"})
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
    return {node.name or "": REASON for node in connected}


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
