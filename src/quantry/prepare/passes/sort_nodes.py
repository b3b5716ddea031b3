"""Puts producers before consumers."""

import onnx_ir as ir
from onnx_ir.passes.common import TopologicalSortPass

from quantry.errors import ModelError


def sort_nodes(model: ir.Model) -> tuple[str, ...]:
    """Sort the nodes of every graph and function topologically, keeping the order of independent nodes.

    Raises:
        ModelError: If a graph has a cycle.
    """
    try:
        result = TopologicalSortPass()(model)
    except ValueError as error:
        raise ModelError(f"the graph must have no cycles, got one; in graph {model.graph.name!r}") from error
    return ("sorted the nodes topologically",) if result.modified else ()
