r"""What becomes of a tensor's values before anything but an elementwise function reads them.

::

    Conv -> x ----> Sigmoid -> s ---> Mul -> y -> Conv        x is read through y = x * sigmoid(x) only
             \_______________________/

An error of x counts by what is left of it in y: far below zero that is nothing, however large the error.
"""

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from quantry.observe.elementwise import elementwise_function
from quantry.observe.scalar_function import IDENTITY, MAX_OPERATORS, ScalarFunction, constant


def responses(graph: ir.Graph, names: Iterable[str]) -> dict[str, tuple[ScalarFunction, ...]]:
    """Return the functions through which each tensor is read, for those that nobody reads as they are.

    Args:
        graph: The sorted graph.
        names: Tensors of it.

    Returns:
        Functions by name; a tensor is absent where a node that is no elementwise function reads it, or it is an output.
    """
    position = {node: index for index, node in enumerate(graph)}
    values = {value.name: value for node in graph for value in node.outputs}
    found = {}
    for name in names:
        if name in values and (functions := _functions(values[name], position)):
            found[name] = functions
    return found


def _functions(start: ir.Value, position: Mapping[ir.Node, int]) -> tuple[ScalarFunction, ...]:
    known: dict[ir.Value, ScalarFunction] = {start: IDENTITY}
    waiting = _readers(start, position)
    seen: set[ir.Node] = set()
    while waiting:
        # The first in the order of the graph: whatever it could be combined with has been met before it.
        node = min(waiting, key=position.__getitem__)
        waiting.discard(node)
        seen.add(node)
        function = elementwise_function(node, [_operand(value, known) for value in node.inputs])
        if function is None or function.size > MAX_OPERATORS or not _complete(node, known):
            continue
        known[node.outputs[0]] = function
        waiting |= _readers(node.outputs[0], position) - seen
    ends = [value for value in known if value.is_graph_output() or _read_outside(value, known)]
    return () if start in ends else tuple(known[value] for value in ends)


def _readers(value: ir.Value, position: Mapping[ir.Node, int]) -> set[ir.Node]:
    return {use.node for use in value.uses() if use.node in position}


def _read_outside(value: ir.Value, known: Mapping[ir.Value, ScalarFunction]) -> bool:
    return any(not use.node.outputs or use.node.outputs[0] not in known for use in value.uses())


def _complete(node: ir.Node, known: Mapping[ir.Value, ScalarFunction]) -> bool:
    """Whether every operand is a function of the tensor or one number."""
    return all(value is None or _operand(value, known) is not None for value in node.inputs)


def _operand(value: ir.Value | None, known: Mapping[ir.Value, ScalarFunction]) -> ScalarFunction | None:
    if value is None or value in known:
        return None if value is None else known[value]
    tensor = value.const_value
    if tensor is None or tensor.size != 1 or not tensor.dtype.is_floating_point():
        return None
    return constant(float(tensor.numpy().reshape(-1)[0]))
