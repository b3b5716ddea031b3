"""Where the channels of a tensor are after an operator that only moves positions, or averages over them."""

import math
from collections.abc import Callable

import onnx_ir as ir

from quantry.equalize.passage import Channels, passage
from quantry.graph.edit import constant_of, int_of


def axis_after(node: ir.Node, axis: int, output: ir.Value) -> int | str:
    """Return the axis that counts channels after a node, or why it does not have them any more.

    Args:
        node: A node that reads the tensor as its first input; for Concat any input.
        axis: The axis before it.
        output: Which of its outputs.
    """
    rule = _RULES.get(node.op_type) if node.domain == "" else None
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    if rule is None or shape is None or output.shape is None:
        return f"{node.op_type} reads or writes it"
    found = rule(node, axis, output)
    return f"{node.op_type} mixes or moves its channels" if found is None else found


def axis_before(node: ir.Node, axis: int, output: ir.Value) -> int | str:
    """Return the axis of a node's first input from which the channels of an output come, or why there is none."""
    first = node.inputs[0] if node.inputs else None
    if first is None or first.shape is None:
        return f"{node.op_type} reads or writes it"
    found = [axis_after(node, before, output) for before in range(len(first.shape))]
    if axis in found:
        return found.index(axis)
    return next((reason for reason in found if isinstance(reason, str)), f"{node.op_type} creates its channels")


_Rule = Callable[[ir.Node, int, ir.Value], int | None]


def _shape(value: ir.Value | None) -> tuple[int | None, ...]:
    assert value is not None
    assert value.shape is not None  # checked by `axis_after`
    return tuple(length if isinstance(length, int) else None for length in value.shape)


def _same(_: ir.Node, axis: int, __: ir.Value) -> int | None:
    return axis


def _followed(node: ir.Node, axis: int, _: ir.Value) -> int | None:
    found = passage(node, Channels(axis))
    return found.axis if isinstance(found, Channels) and not found.flattened else None


def _reshape(node: ir.Node, axis: int, output: ir.Value) -> int | None:
    """The axis stays if its length and the number of values inside each of its entries stay."""
    before, after = _shape(node.inputs[0]), _shape(output)
    inside = _product(before[axis + 1 :])
    if before[axis] is None or inside is None:
        return None
    fits = (at for at in range(len(after)) if after[at] == before[axis] and _product(after[at + 1 :]) == inside)
    return next(fits, None)


def _product(lengths: tuple[int | None, ...]) -> int | None:
    known = [length for length in lengths if length is not None]
    return math.prod(known) if len(known) == len(lengths) else None


def _unsqueeze(node: ir.Node, axis: int, output: ir.Value) -> int | None:
    axes = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    if axes is None:
        return None
    rank = len(_shape(output))
    added = {int(one) % rank for one in axes.reshape(-1)}
    return [one for one in range(rank) if one not in added][axis]


def _slice(node: ir.Node, axis: int, _: ir.Value) -> int | None:
    axes = constant_of(node.inputs[3]) if len(node.inputs) > 3 else None
    rank = len(_shape(node.inputs[0]))
    return None if axes is None or axis in {int(one) % rank for one in axes.reshape(-1)} else axis


def _gather(node: ir.Node, axis: int, _: ir.Value) -> int | None:
    indices = node.inputs[1]
    picked = int_of(node, "axis", 0) % len(_shape(node.inputs[0]))
    if indices is None or indices.shape is None or picked == axis:
        return None
    return axis if axis < picked else axis - 1 + len(indices.shape)


def _other_axis(node: ir.Node, axis: int, output: ir.Value) -> int | None:
    """Split, and Concat, whose attribute is never absent, keep the channels unless they run along them."""
    return None if int_of(node, "axis", 0) % len(_shape(output)) == axis else axis


def _expand(node: ir.Node, axis: int, output: ir.Value) -> int | None:
    before, after = _shape(node.inputs[0]), _shape(output)
    moved = axis - len(before) + len(after)
    return moved if before[axis] is not None and before[axis] == after[moved] else None


_RULES: dict[str, _Rule] = {
    "Identity": _same,
    "Dropout": _same,
    "Transpose": _followed,
    "Squeeze": _followed,
    "ReduceMean": _followed,
    "Reshape": _reshape,
    "Flatten": _reshape,
    "Unsqueeze": _unsqueeze,
    "Slice": _slice,
    "Gather": _gather,
    "Split": _other_axis,
    "Concat": _other_axis,
    "Expand": _expand,
}
