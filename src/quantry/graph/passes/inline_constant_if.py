"""Replace an If with a constant condition by the branch it takes."""

from collections.abc import Iterable

import onnx_ir as ir

from quantry.graph.edit import FreshNames, constant_of
from quantry.graph.weights import renamed
from quantry.notes import Note, NoteKind


def inline_constant_if(model: ir.Model) -> tuple[Note, ...]:
    """Replace every If with a constant condition by the branch it takes.

    ::

        y = If(true)<then: a = Relu(x), y1 = Neg(a)>      becomes      a = Relu(x), y1 = Neg(a), y = Identity(y1)

    Nodes inside a branch can neither be observed nor quantized; outside they can. The Identity keeps the output's name
    and is removed later if possible.
    """
    inlined = 0
    for node in tuple(ir.traversal.RecursiveGraphIterator(model.graph)):
        condition = constant_of(node.inputs[0]) if node.op_type == "If" and node.domain == "" else None
        if condition is None or condition.size != 1:
            continue
        _inline(node, "then_branch" if condition.reshape(()) else "else_branch", FreshNames(model))
        inlined += 1
    message = "inlined {count} If nodes with a constant condition"
    return (Note.of(message, NoteKind.GRAPH, count=inlined),) if inlined else ()


def _inline(node: ir.Node, name: str, names: FreshNames) -> None:
    branch, parent = node.attributes[name].as_graph(), node.graph
    assert parent is not None
    weights = tuple(branch.initializers.values())
    body = tuple(branch)
    results = tuple(branch.outputs)
    branch.outputs.clear()
    for weight in weights:
        branch.initializers.pop(weight.name or "")
    branch.remove(body)
    # Two branches may use the same name because only one runs; in one graph they may not.
    _rename_within(names, node, (*weights, *(value for inner in body for value in inner.outputs)))
    for weight in weights:
        parent.register_initializer(weight)
    parent.insert_before(node, body)
    for output, result in zip(node.outputs, results, strict=True):
        keeper = ir.node("Identity", [result], name=names.node(f"{node.name}_{output.name}"))
        replacement = keeper.outputs[0]
        replacement.name, replacement.type, replacement.shape = output.name, output.type, output.shape
        parent.insert_before(node, keeper)
        output.replace_all_uses_with(replacement, replace_graph_outputs=True)
        output.name = None
    parent.remove(node, safe=True)
    _release(node)


def _release(node: ir.Node) -> None:
    """Disconnect what is left inside a removed node, so that it does not count as a reader of outer tensors."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            for inner in tuple(ir.traversal.RecursiveGraphIterator(attribute.as_graph())):
                for index in range(len(inner.inputs)):
                    inner.replace_input_with(index, None)


def _rename_within(names: FreshNames, node: ir.Node, values: Iterable[ir.Value]) -> None:
    """Name the values of a branch after their If."""
    for value in values:
        if not value.name:
            continue
        name = names.value(f"{node.name}_{value.name}")
        if value.const_value is not None:
            value.const_value = renamed(value.const_value, name)
        value.name = name
