r"""A Q/DQ pair for every reader instead of one for all.

::

    t -> Q -> DQ -> a            t -> Q -> DQ -> a
               \-> b     becomes    \-> Q -> DQ -> b
"""

import onnx_ir as ir

from quantry.emit.graph_editor import GraphEditor
from quantry.plan import QuantPlan


def dedicate_pairs(editor: GraphEditor, plan: QuantPlan, originals: dict[str, ir.Value]) -> None:
    """Write the chain behind each activation again for every reader but the first.

    Args:
        editor: Makes nodes; the pairs are written already.
        plan: Which activations.
        originals: The activations as they were computed, by the name they had.
    """
    for tensor in plan.activations:
        chain = _chain(originals[tensor])
        restored = chain[-1].outputs[0] if chain else None
        if restored is None:
            continue
        for use in list(restored.uses())[0 if restored.is_graph_output() else 1 :]:
            copied = _copied(editor, chain)
            graph = chain[-1].graph
            assert graph is not None
            graph.insert_after(chain[-1], copied)
            use.node.replace_input_with(use.idx, copied[-1].outputs[0])


def _chain(value: ir.Value) -> list[ir.Node]:
    """Return the nodes of the pair behind a tensor: one, or two."""
    chain: list[ir.Node] = []
    for _ in range(2):
        readers = [use.node for use in value.uses() if "uantize" in use.node.op_type and use.idx == 0]
        if len(readers) != 1 or (chain and "Dequantize" not in readers[0].op_type):
            break
        chain.append(readers[0])
        value = readers[0].outputs[0]
    return chain


def _copied(editor: GraphEditor, chain: list[ir.Node]) -> list[ir.Node]:
    copies: list[ir.Node] = []
    for node in chain:
        inputs = list(node.inputs)
        if copies:
            inputs[0] = copies[-1].outputs[0]
        copy = editor.node((node.domain, node.op_type), inputs, node.name or "", None)
        copy.attributes.update(node.attributes)
        copy.overload = node.overload
        copy.outputs[0].type, copy.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
        copies.append(copy)
    return copies
