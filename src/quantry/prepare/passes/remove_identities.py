"""Removes nodes that pass their input on unchanged."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from quantry.prepare.passes.bypass import bypass
from quantry.prepare.passes.constant_of import constant_of


def remove_identities(model: ir.Model) -> tuple[str, ...]:
    """Remove nodes whose output provably equals their first input.

    These are Identity, Dropout at inference, Cast to the type at hand, Transpose in the order at hand, Reshape to the
    shape at hand, Pad by nothing, and Concat, Sum, Mean, Max or Min of one tensor. Graph outputs keep their names; a
    node between a graph input and a graph output stays.
    """
    removed: Counter[str] = Counter()
    for node in tuple(ir.traversal.RecursiveGraphIterator(model.graph)):
        rule = _RULES.get(node.op_type) if node.domain == "" else None
        source = node.inputs[0] if node.inputs else None
        if rule is None or source is None or not rule(node, source):
            continue
        if bypass(node, source):
            removed[node.op_type] += 1
    return tuple(
        f"removed {count} {op_type} nodes that pass their input on" for op_type, count in sorted(removed.items())
    )


def _identity(node: ir.Node, source: ir.Value) -> bool:
    # Identity also carries sequences and optionals, which are not ours to touch.
    return source.type is None or isinstance(source.type, ir.TensorType)


def _dropout(node: ir.Node, source: ir.Value) -> bool:
    """Dropout drops nothing unless training_mode is true; the mask, if anyone reads it, would have to be made."""
    if any(mask.uses() or mask.is_graph_output() for mask in node.outputs[1:]):
        return False
    training = node.inputs[2] if len(node.inputs) > 2 else None
    if training is None:
        return True
    known = constant_of(training)
    return known is not None and not known.any()


def _cast(node: ir.Node, source: ir.Value) -> bool:
    target = node.attributes.get("to")
    return target is not None and not target.is_ref() and source.dtype is not None and target.as_int() == source.dtype


def _transpose(node: ir.Node, source: ir.Value) -> bool:
    order = node.attributes.get("perm")
    if order is None or order.is_ref():
        return source.shape is not None and len(source.shape) < 2
    return list(order.as_ints()) == sorted(order.as_ints())


def _reshape(node: ir.Node, source: ir.Value) -> bool:
    """Reshape changes nothing when at most one axis is unknown and all others have the length they had."""
    target = constant_of(node.inputs[1])
    if target is None or source.shape is None or len(target) != len(source.shape):
        return False
    zero_is_copy = not _int_attribute(node, "allowzero", 0)
    wanted = [int(length) for length in target]
    unclear = [
        length != dim and not (length == 0 and zero_is_copy) for length, dim in zip(wanted, source.shape, strict=True)
    ]
    # The one axis left to infer has whatever length the others leave, which is the length it had.
    return not any(unclear) or (sum(unclear) == 1 and wanted[unclear.index(True)] == -1 and 0 not in source.shape)


def _pad(node: ir.Node, source: ir.Value) -> bool:
    pads = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    return pads is not None and not np.any(pads)


def _single_input(node: ir.Node, source: ir.Value) -> bool:
    return len(node.inputs) == 1


def _int_attribute(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.is_ref() else attribute.as_int()


_RULES: dict[str, Callable[[ir.Node, ir.Value], bool]] = {
    "Identity": _identity,
    "Dropout": _dropout,
    "Cast": _cast,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Pad": _pad,
    "Concat": _single_input,
    "Sum": _single_input,
    "Mean": _single_input,
    "Max": _single_input,
    "Min": _single_input,
}
