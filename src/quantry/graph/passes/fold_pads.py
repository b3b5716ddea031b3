"""Fold zero padding into the convolution after it."""

import onnx_ir as ir

from quantry.graph.edit import constant_of, string_of
from quantry.notes import Note, NoteKind


def fold_pads(model: ir.Model) -> tuple[Note, ...]:
    """Fold every Pad with zeros into the ``pads`` of the Conv that reads it.

    ::

        x -> Pad(zeros) -> Conv                         x -> Conv(pads)
    """
    folded = 0
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type != "Conv" or node.domain != "" or string_of(node, "auto_pad", "NOTSET") not in _PLAIN:
            continue
        padding = _zeros_before(node)
        if padding is None:
            continue
        data, padded = padding
        attribute = node.attributes.get("pads")
        lengths = [0] * len(padded) if attribute is None else list(attribute.as_ints())
        pads = [ours + theirs for ours, theirs in zip(lengths, padded, strict=True)]
        node.attributes["pads"] = ir.AttrInt64s("pads", pads)
        node.attributes.pop("auto_pad", None)
        node.replace_input_with(0, data)
        folded += 1
    message = "folded {count} Pad nodes into the Conv after them"
    return (Note.of(message, NoteKind.GRAPH, count=folded),) if folded else ()


_PLAIN = ("NOTSET", "VALID")


def _zeros_before(node: ir.Node) -> tuple[ir.Value, list[int]] | None:
    """Return the tensor before a Pad with zeros of the spatial axes, and the amounts in the order of ``pads``."""
    value = node.inputs[0]
    pad = None if value is None else value.producer()
    if pad is None or pad.op_type != "Pad" or pad.domain != "" or string_of(pad, "mode", "constant") != "constant":
        return None
    source, size, fill, axes = (*pad.inputs, None, None, None)[:4]
    sizes, filled = constant_of(size), constant_of(fill)
    if source is None or sizes is None or axes is not None or (fill is not None and (filled is None or filled.any())):
        return None
    rank = len(sizes) // 2
    starts, ends = [int(size) for size in sizes[:rank]], [int(size) for size in sizes[rank:]]
    if rank < 3 or any((*starts[:2], *ends[:2])) or min(*starts, *ends) < 0:
        return None
    return source, [*starts[2:], *ends[2:]]
