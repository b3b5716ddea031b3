"""Passes that bring a graph into a regular form: sorted and named nodes, nothing unused, no overridable weights."""

import onnx_ir as ir
from onnx_ir.passes.common import (
    RemoveInitializersFromInputsPass,
    RemoveUnusedFunctionsPass,
    RemoveUnusedNodesPass,
    RemoveUnusedOpsetsPass,
    TopologicalSortPass,
)

from quantry.errors import ModelError
from quantry.graph.edit import FreshNames
from quantry.notes import Note, NoteKind


def sort_nodes(model: ir.Model) -> tuple[Note, ...]:
    """Sort the nodes of every graph and function topologically, keeping the order of independent nodes.

    Raises:
        ModelError: A graph has a cycle.
    """
    try:
        result = TopologicalSortPass()(model)
    except ValueError as error:
        raise ModelError(f"the graph must have no cycles, got one; in graph {model.graph.name!r}") from error
    return (Note.of("sorted the nodes topologically", NoteKind.GRAPH),) if result.modified else ()


def name_nodes(model: ir.Model) -> tuple[Note, ...]:
    """Give every node of the graph and its subgraphs a unique, non-empty name.

    Existing unique names stay; the first of several nodes with one name keeps it. A node without a name is named after
    its operator and its place in the model, such as ``Conv_12``; the result depends only on the model.
    """
    used: set[str] = set()
    nameless: list[tuple[int, ir.Node]] = []
    for index, node in enumerate(ir.traversal.RecursiveGraphIterator(model.graph)):
        if not node.name or node.name in used:
            nameless.append((index, node))
        else:
            used.add(node.name)
    names = FreshNames(model)
    for index, node in nameless:
        node.name = names.node(f"{node.op_type}_{index}")
    return (Note.of("named {count} nodes", NoteKind.GRAPH, count=len(nameless)),) if nameless else ()


def remove_unused(model: ir.Model) -> tuple[Note, ...]:
    """Remove nodes, initializers, functions and operator sets that no graph output needs; keep inputs and outputs."""
    nodes, weights = _counts(model)
    RemoveUnusedNodesPass()(model)
    for graph in model.graph.subgraphs():
        _remove_unused_initializers(graph)
    RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    RemoveUnusedOpsetsPass()(model)
    nodes_left, weights_left = _counts(model)
    notes = (
        Note.of("removed {count} nodes that no output needs", NoteKind.GRAPH, count=nodes - nodes_left),
        Note.of("removed {count} weights that no output needs", NoteKind.GRAPH, count=weights - weights_left),
    )
    return tuple(note for note in notes if note.value("count"))


def _remove_unused_initializers(graph: ir.Graph) -> None:
    for name, value in tuple(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del graph.initializers[name]


def _counts(model: ir.Model) -> tuple[int, int]:
    nodes = sum(1 for _ in ir.traversal.RecursiveGraphIterator(model.graph))
    return nodes, sum(len(graph.initializers) for graph in model.graphs())


def inputs_without_initializers(model: ir.Model) -> tuple[Note, ...]:
    """Remove initializers from the inputs, where old exporters list them as overridable defaults.

    A weight that a caller may override is not constant: it could neither be folded nor quantized. An IR version below
    4 requires the old form, so it is raised.
    """
    count = len(model.graph.inputs)
    RemoveInitializersFromInputsPass()(model)
    model.ir_version = max(model.ir_version, 4)
    removed = count - len(model.graph.inputs)
    return (Note.of("removed {count} initializers from the inputs", NoteKind.GRAPH, count=removed),) if removed else ()


def separate_outputs(model: ir.Model) -> tuple[Note, ...]:
    """Give each output that a graph lists again a copy and a name of its own: later stages know outputs by name."""
    names, copied = FreshNames(model), []
    for graph in model.graphs():
        visited: set[ir.Value] = set()
        for index, value in enumerate(graph.outputs):
            if value in visited:
                copy = ir.node("Identity", [value], name=names.node(f"{value.name}_copy"))
                copy.outputs[0].name = names.value(f"{value.name}_copy")
                copy.outputs[0].type, copy.outputs[0].shape = value.type, value.shape
                graph.append(copy)
                graph.outputs[index] = copy.outputs[0]
                copied.append(copy.outputs[0].name)
            visited.add(value)
    message = "named {count} outputs that were listed twice: {names}"
    return (Note.of(message, count=len(copied), names=", ".join(copied)),) if copied else ()


def forget_placeholders(model: ir.Model) -> tuple[Note, ...]:
    """Turn ``?`` and negative numbers in shapes into unknown axes.

    Some exporters write the same ``?`` for every unknown axis; as a name it would mean that all these axes have the
    same length.
    """
    for graph in model.graphs():
        for value in (*graph.inputs, *(output for node in graph for output in node.outputs)):
            if value.shape is not None and any(_is_placeholder(dim) for dim in value.shape):
                value.shape = ir.Shape([None if _is_placeholder(dim) else dim for dim in value.shape])
    return ()


def _is_placeholder(dim: int | ir.SymbolicDim) -> bool:
    if isinstance(dim, int):
        return dim < 0
    return dim.value is not None and not any(character.isalpha() for character in dim.value)
