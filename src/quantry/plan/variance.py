r"""Finds the variances that normalizations written in small operators compute.

::

    x -> ReduceMean -> m -> Mul(m, m) ---v
    x -> Mul(x, x) -> ReduceMean ------> Sub -> Add(epsilon) -> Sqrt -> Div         E[x**2] - E[x]**2

    x -> ReduceMean -> Sub(x, .) -> Pow(2) -> ReduceMean -> Add(epsilon) -> Sqrt -> Div

A square spans twice the orders of magnitude of its argument, and a variance is a small difference of large numbers: on
an even grid of a few bits it rounds to zero or below, and the division by its root then blows everything up. So all
from the square to the root stays float, and so does a centred tensor that only the square and the division read.
"""

import onnx_ir as ir

REASON = "it is part of a variance, a small difference of squares that an even grid of a few bits would round away"

_ROOTS = frozenset({"Sqrt", "Rsqrt"})
_BETWEEN = frozenset(
    {"Add", "Sub", "ReduceMean", "ReduceSum", "GlobalAveragePool", "Div", "Max", "Clip", "Relu", "Abs", "Mul", "Pow"}
    | {"Reshape", "Squeeze", "Unsqueeze", "Expand", "Identity", "Cast", "ReduceSumSquare"}
)
_MEANS = frozenset({"ReduceMean", "ReduceSum", "GlobalAveragePool"})


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
    return {node.name or "": REASON for node in found}


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
