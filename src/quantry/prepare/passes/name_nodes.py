"""Gives every node a name."""

import onnx_ir as ir

from quantry.prepare.graph.fresh_name import FreshNames


def name_nodes(model: ir.Model) -> tuple[str, ...]:
    """Give every node of the graph and its subgraphs a unique, non-empty name.

    Existing unique names stay; of several nodes with one name the first keeps it. A nameless node is called after its
    operator and its place in the model, such as ``Conv_12``; the result depends on nothing but the model.
    """
    seen: set[str] = set()
    nameless: list[tuple[int, ir.Node]] = []
    for index, node in enumerate(ir.traversal.RecursiveGraphIterator(model.graph)):
        if not node.name or node.name in seen:
            nameless.append((index, node))
        else:
            seen.add(node.name)
    names = FreshNames(model)
    for index, node in nameless:
        node.name = names.node(f"{node.op_type}_{index}")
    return (f"named {len(nameless)} nodes",) if nameless else ()
