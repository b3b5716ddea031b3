"""Taking a node out of a graph: whoever read its output reads another value instead."""

import onnx_ir as ir


def bypass(node: ir.Node, replacement: ir.Value) -> bool:
    """Let every user of a node's first output read ``replacement`` and remove the node.

    A graph output keeps its name: the replacement takes it over. That is impossible where the replacement has a name of
    its own to keep (a graph input, an initializer, another graph output) or belongs to an outer graph; the node then
    stays.

    Returns:
        Whether the node was removed.
    """
    output = node.outputs[0]
    graph = node.graph
    assert graph is not None
    if output.is_graph_output():
        if not _can_be_renamed(replacement, output):
            return False
        _adopt_type(replacement, output)
        output.replace_all_uses_with(replacement, replace_graph_outputs=True)
        name, output.name = output.name, None
        replacement.name = name
    else:
        _adopt_type(replacement, output)
        output.replace_all_uses_with(replacement)
    graph.remove(node, safe=True)
    return True


def _can_be_renamed(value: ir.Value, output: ir.Value) -> bool:
    named_outside = value.is_graph_input() or value.is_initializer() or value.is_graph_output()
    return not named_outside and value.producer() is not None and value.graph is output.graph


def _adopt_type(value: ir.Value, output: ir.Value) -> None:
    """Keep what was known only of the output that goes away."""
    if value.type is None:
        value.type = output.type
    if value.shape is None:
        value.shape = output.shape
