"""Checks that no two tensors of a graph have one name, which onnx-ir could not hold apart."""

from collections import Counter
from collections.abc import Iterable

import onnx

from quantry.errors import ModelError


def check_unique_names(graph: onnx.GraphProto, label: str) -> None:
    """Check inputs, initializers, node outputs and graph outputs of a graph and its subgraphs.

    Raises:
        ModelError: If a name is used twice.
    """
    where = f"in graph {graph.name!r} of {label}"
    inputs = [value.name for value in graph.input]
    weights = [tensor.name for tensor in graph.initializer]
    computed = [name for node in graph.node for name in node.output if name]
    _check(inputs, "input", where)
    _check(weights, "initializer", where)
    _check((value.name for value in graph.output), "output", where)
    # Old files list an initializer among the inputs as well, so those two may share a name.
    _check((*{*inputs, *weights}, *computed), "tensor", where)
    for node in graph.node:
        for attribute in node.attribute:
            for subgraph in (attribute.g, *attribute.graphs):
                check_unique_names(subgraph, label)


def _check(names: Iterable[str], kind: str, where: str) -> None:
    name, count = next(iter(Counter(names).most_common(1)), ("", 1))
    if count > 1:
        raise ModelError(f"every {kind} must have a name of its own, got {name!r} {count} times; {where}")
