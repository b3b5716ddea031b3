"""Letting one value stand in for another, under the same name."""

import onnx_ir as ir

from quantry.prepare.graph.fresh_name import FreshNames


def take_over(old: ir.Value, new: ir.Value, names: FreshNames) -> None:
    """Let every reader of ``old`` read ``new``, except the node that computes ``new`` from it.

    ``new`` gets type, shape and name of ``old``, so that graph outputs and tensors known by name stay what they were;
    ``old`` is renamed.

    Args:
        old: The value to replace.
        new: An output of a node in the same graph.
        names: Names that are free.
    """
    new.type, new.shape = old.type, old.shape
    readers = [use for use in old.uses() if use.node is not new.producer()]
    for use in readers:
        use.node.replace_input_with(use.idx, new)
    graph = old.graph
    if graph is not None and old.is_graph_output():
        for index, output in enumerate(graph.outputs):
            if output is old:
                graph.outputs[index] = new
    name = old.name or ""
    old.name = names.value(f"{name}_before_npu")
    new.name = name
