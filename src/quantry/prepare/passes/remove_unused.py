"""Removes what no output depends on."""

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedFunctionsPass, RemoveUnusedNodesPass, RemoveUnusedOpsetsPass


def remove_unused(model: ir.Model) -> tuple[str, ...]:
    """Remove nodes, initializers, functions and operator sets that no graph output needs; inputs and outputs stay."""
    nodes, weights = _counts(model)
    RemoveUnusedNodesPass()(model)
    for graph in model.graph.subgraphs():
        _remove_unused_initializers(graph)
    RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    RemoveUnusedOpsetsPass()(model)
    nodes_left, weights_left = _counts(model)
    removed = [
        f"{count} {what}"
        for count, what in ((nodes - nodes_left, "nodes"), (weights - weights_left, "weights"))
        if count
    ]
    return (f"removed {' and '.join(removed)} that no output needs",) if removed else ()


def _remove_unused_initializers(graph: ir.Graph) -> None:
    for name, value in tuple(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del graph.initializers[name]


def _counts(model: ir.Model) -> tuple[int, int]:
    nodes = sum(1 for _ in ir.traversal.RecursiveGraphIterator(model.graph))
    return nodes, sum(len(graph.initializers) for graph in model.graphs())
