"""Remove nodes that return their input unchanged."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from quantry.graph.edit import bypass, constant_of, int_of, is_whole
from quantry.notes import Note, NoteKind


def remove_identities(model: ir.Model) -> tuple[Note, ...]:
    """Remove nodes whose output provably equals their first input.

    These are Identity, Dropout at inference, Cast to the same type, Transpose to the same order, Reshape to the same
    shape, Slice of everything, Pad by nothing, and Concat, Sum, Mean, Max or Min of one tensor. Graph outputs keep
    their names; a node between a graph input and a graph output stays.
    """
    removed: Counter[str] = Counter()
    for node in tuple(ir.traversal.RecursiveGraphIterator(model.graph)):
        rule = _RULES.get(node.op_type) if node.domain == "" else None
        source = node.inputs[0] if node.inputs else None
        if rule is not None and source is not None and rule(node) and bypass(node, source):
            removed[node.op_type] += 1
    message = "removed {count} {operator} nodes that return their input"
    return tuple(
        Note.of(message, NoteKind.GRAPH, count=count, operator=operator) for operator, count in sorted(removed.items())
    )


def _identity(node: ir.Node) -> bool:
    """Identity also carries sequences and optionals, which are not changed."""
    source = _source(node)
    return source.type is None or isinstance(source.type, ir.TensorType)


def _dropout(node: ir.Node) -> bool:
    """Dropout does nothing unless training_mode is true; but a mask that is read must be computed."""
    if any(mask.uses() or mask.is_graph_output() for mask in node.outputs[1:]):
        return False
    training = node.inputs[2] if len(node.inputs) > 2 else None
    if training is None:
        return True
    is_training = constant_of(training)
    return is_training is not None and not is_training.any()


def _cast(node: ir.Node) -> bool:
    dtype = _source(node).dtype
    return dtype is not None and int_of(node, "to", 0) == dtype


def _transpose(node: ir.Node) -> bool:
    order = node.attributes.get("perm")
    if order is None:
        shape = _source(node).shape
        return shape is not None and len(shape) < 2
    return not order.is_ref() and list(order.as_ints()) == sorted(order.as_ints())


def _reshape(node: ir.Node) -> bool:
    """Reshape does nothing if all axes, except at most one, are known to keep their length."""
    target = constant_of(node.inputs[1])
    shape = _source(node).shape
    if target is None or shape is None or target.size != len(shape):
        return False
    zero_copies = not int_of(node, "allowzero", 0)
    lengths = [int(length) for length in target]
    unchanged = [length == dim or (length == 0 and zero_copies) for length, dim in zip(lengths, shape, strict=True)]
    # A single inferred axis gets the remaining length, which is the length it had.
    return all(unchanged) or (
        unchanged.count(False) == 1 and lengths[unchanged.index(False)] == -1 and 0 not in list(shape)
    )


def _slice(node: ir.Node) -> bool:
    """Slice does nothing if it takes all of every axis that it names."""
    shape = _source(node).shape
    starts, ends, axes, steps = (constant_of(value) for value in [*node.inputs, None, None][1:5])
    if starts is None or ends is None or (len(node.inputs) > 4 and steps is None):
        return False
    if axes is None and len(node.inputs) > 3 and node.inputs[3] is not None:
        return False
    if any(array is not None and array.shape != (starts.size,) for array in (starts, ends, axes, steps)):
        return False
    sliced_axes = range(starts.size) if axes is None else [int(axis) for axis in axes]
    lengths = [shape[axis] if shape is not None else None for axis in sliced_axes]
    strides = np.ones_like(starts) if steps is None else steps
    return all(
        is_whole(int(start), int(end), int(step), length if isinstance(length, int) else None)
        for start, end, step, length in zip(starts, ends, strides, lengths, strict=True)
    )


def _pad(node: ir.Node) -> bool:
    pads = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    return pads is not None and not np.any(pads)


def _single_input(node: ir.Node) -> bool:
    return len(node.inputs) == 1


def _source(node: ir.Node) -> ir.Value:
    source = node.inputs[0]
    assert source is not None
    return source


_RULES: dict[str, Callable[[ir.Node], bool]] = {
    "Identity": _identity,
    "Dropout": _dropout,
    "Cast": _cast,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Pad": _pad,
    "Slice": _slice,
    "Concat": _single_input,
    "Sum": _single_input,
    "Mean": _single_input,
    "Max": _single_input,
    "Min": _single_input,
}
