"""Give each reader of a shared weight its own copy if readers need different scales."""

from collections import defaultdict
from collections.abc import Hashable, Iterable

import onnx_ir as ir

from quantry.facts.operators import BIASED, CONVOLUTIONS, MATRIX_PRODUCTS
from quantry.graph.edit import FreshNames, int_of
from quantry.graph.weights import initializer_of, renamed
from quantry.notes import Note, NoteKind

Usage = tuple[ir.Node, int]


def split_shared_weights(model: ir.Model) -> tuple[Note, ...]:
    """Copy a shared bias for each reader, and a shared weight for each role.

    The scale of a bias is the product of its operator's input and weight scales, so two operators cannot share one. A
    weight keeps one copy for all readers that use it in the same way (two Convs), and gets another copy for another
    role (the operand of an Add, or a Gemm that transposes it), because its scales are then along another axis. So does
    a Gemm whose bias is not one number for each channel, because its weight has a single scale. The first reader keeps
    the original; a copy is named ``<weight>_<node>`` and shares the data in memory.
    """
    names = FreshNames(model)
    position = {node: index for index, node in enumerate(ir.traversal.RecursiveGraphIterator(model.graph))}
    copies = 0
    for graph in model.graphs():
        for value in tuple(graph.initializers.values()):
            if value.const_value is None or value.is_graph_input() or not _is_float(value):
                continue
            usages = sorted(value.uses(), key=lambda usage: (position[usage[0]], usage[1]))
            copies += _split(graph, value, usages, names)
    return (
        (Note.of("copied {count} weights that several nodes shared", NoteKind.GRAPH, count=copies),) if copies else ()
    )


def _is_float(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()


def _split(graph: ir.Graph, value: ir.Value, usages: Iterable[Usage], names: FreshNames) -> int:
    readers: dict[Hashable, list[Usage]] = defaultdict(list)
    for usage in usages:
        readers[_role(usage)].append(usage)
    tensor = value.const_value
    if tensor is None or not any(isinstance(role, tuple) for role in readers):
        return 0
    for group in list(readers.values())[1:]:
        copy = initializer_of(renamed(tensor, names.value(f"{value.name}_{group[0][0].name}")))
        graph.register_initializer(copy)
        for usage in group:
            usage[0].replace_input_with(usage[1], copy)
    return len(readers) - 1


def _role(usage: Usage) -> Hashable:
    """Return the role of the weight for a reader; readers with the same role share it."""
    node, index = usage
    if node.domain != "":
        return "operand"
    if index == 2 and node.op_type in BIASED:
        return ("bias", node)
    if index == 1 and node.op_type in CONVOLUTIONS:
        group = int_of(node, "group", 1)
        return ("weight", node.op_type, group if node.op_type == "ConvTranspose" else None)
    if index == 1 and node.op_type in MATRIX_PRODUCTS:
        turned = bool(int_of(node, "transB", 0))
        return ("weight", "matrix", turned, has_bias_per_channel(node, 0 if turned else 1))
    return "operand"


def has_bias_per_channel(node: ir.Node, axis: int) -> bool:
    """Return whether a matrix product has no bias, or one number for each output channel, so that scales can differ.

    A derived bias has the scales of the weight. A bias that is one number for all channels, or differs from row to row,
    cannot have one scale per channel.

    Args:
        node: A MatMul or Gemm.
        axis: Axis of the weight's output channels.
    """
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    weight = node.inputs[1]
    if bias is None:
        return True
    if weight is None or bias.shape is None or weight.shape is None or len(bias.shape) != 1:
        return False
    return bool(bias.shape[0] == weight.shape[axis])
