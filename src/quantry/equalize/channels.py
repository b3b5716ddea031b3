"""The algebra of channels: where an operator puts the values of its inputs, and whether a factor passes it.

Every channel has a label, a whole number. The labels of a tensor are an array of its rank, and an axis of length 1
means that the label does not depend on this axis. An operator that moves values moves the labels in the same way, so
channels are found again after any of them::

    labels of x (1, 4, 1, 1)   ->   Flatten, x (2, 4, 3, 3)   ->   labels (1, 36), each of the four repeated nine times

`moved` does this for one operator. Everything else that follows channels is derived from it: `axis_after` and
`axis_before` with labels that count along one axis, and `channel_labels` with those of a whole model.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantry.facts.operators import STANDARD_DOMAINS, Family, facts, of_family
from quantry.graph.edit import bounds_of, constant_of, int_of, string_of

Labels = np.ndarray
"""int64, one axis for each axis of the tensor."""

Length = int | str | None
"""Length of an axis: a number, the name of a symbolic one, or None if nothing is known."""

MOST_LABELS = 1 << 22
"""A tensor whose labels vary along several long axes is rare, and not worth the memory."""


class UnfollowedError(Exception):
    """Channels cannot be followed through a node."""


def moved(node: ir.Node, labels: Sequence[Labels | None]) -> list[Labels]:
    """Return the labels of a node's outputs, the first ones if others have no channels.

    Args:
        node: A node of a standard domain.
        labels: Labels of its inputs; None for constants and inputs that say how to compute.

    Raises:
        UnfollowedError: Its outputs do not have the channels of its inputs.
    """
    row, rule = facts(node), _RULES.get(node.op_type)
    if node.domain not in STANDARD_DOMAINS or not labels or labels[0] is None:
        raise UnfollowedError(f"{node.op_type} combines or moves channels")
    if rule is not None:
        results = rule(node, [each for each in labels if each is not None])
    elif row.pools:
        results = [_along(node, labels[0], range(2, labels[0].ndim))]
    elif row.operands and all(constant_of(value) is not None for value in node.inputs[1:] if value is not None):
        results = [labels[0]]
    else:
        raise UnfollowedError(f"{node.op_type} combines or moves channels")
    # For example the indices of MaxPool, which do not scale with the input.
    if any(output.uses() or output.is_graph_output() for output in node.outputs[len(results) :]):
        raise UnfollowedError(f"a second output of {node.op_type} is read")
    for value, each in zip(node.outputs, results, strict=False):
        if not fit(each, value) or each.size > MOST_LABELS:
            raise UnfollowedError(f"the shape of what {node.op_type} computes is not known")
    return results


def not_homogeneous(node: ir.Node) -> str:
    """Return why a factor does not pass a node's function, for example Sigmoid, else an empty string.

    A factor passes ``f`` if ``f(s * x) = s * f(x)`` for all ``s > 0``. Relu and pooling have that property, others only
    with some settings: bounds of 0 and infinity scale with the input, so Clip(0, infinity) is like a Relu.
    """
    row, bounds = facts(node), bounds_of(node)
    if row.homogeneous is False:
        return f"{node.op_type} is not positively homogeneous"
    if node.op_type == "Clip" and (bounds is None or bounds[0] not in (0, -math.inf) or bounds[1] not in (0, math.inf)):
        return "Clip with bounds other than 0 is not positively homogeneous"
    if row.family is Family.PADDING and string_of(node, "mode", "constant") == "constant":
        fill = node.inputs[2] if len(node.inputs) > 2 else None
        constant = constant_of(fill)
        if fill is not None and (constant is None or constant.any()):
            return "Pad with values other than 0 is not positively homogeneous"
    if (
        row.family is Family.RESIZE
        and string_of(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    ):
        return "Resize with values from outside is not positively homogeneous"
    return ""


@dataclass(frozen=True)
class ChannelAxis:
    """Where a tensor has the channels of the layer that computed it.

    Attributes:
        axis: The axis that counts them.
        flattened: Whether that axis counts positions inside each channel as well, channels being the slower index.
    """

    axis: int
    flattened: bool = False


def propagate_factor(node: ir.Node, channels: ChannelAxis) -> ChannelAxis | str:
    """Return where the channels are after a node that reads them as its first input, or why no factor passes it.

    Args:
        node: A node of the standard domain.
        channels: Where its first input has the channels.
    """
    reason = not_homogeneous(node)
    if reason or not facts(node).homogeneous:
        return reason or f"{node.op_type} combines or moves channels"
    return axis_after(node, channels)


def axis_after(node: ir.Node, channels: ChannelAxis, output: ir.Value | None = None) -> ChannelAxis | str:
    """Return where an output of a node has the channels of its inputs, or why it does not have them.

    Args:
        node: A node that reads them as its first input; a Concat as any of its inputs.
        channels: Where the inputs have the channels.
        output: Which of its outputs; None for the first one, which must be the only one that is read.
    """
    if output is None and any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        return f"a second output of {node.op_type} is read"
    if node.domain in STANDARD_DOMAINS and facts(node).operands:
        return channels
    if node.op_type == "Flatten" and channels.axis == int_of(node, "axis", 1) == 1:
        return ChannelAxis(1, flattened=True)  # also where the lengths of other axes are not known
    lengths = lengths_of(node.inputs[0]) if node.inputs else None
    length = lengths[channels.axis] if lengths is not None and channels.axis < len(lengths) else None
    if lengths is None or length is None:
        return f"the number of channels that {node.op_type} reads is not known"
    joins = facts(node).family is Family.JOIN
    if joins and int_of(node, "axis", 0) % len(lengths) == channels.axis:
        return f"{node.op_type} joins channels"
    counted = np.arange(length).reshape([length if axis == channels.axis else 1 for axis in range(len(lengths))])
    try:
        results = moved(node, [counted] * (len(node.inputs) if joins else 1))
    except UnfollowedError as reason:
        return str(reason)
    result = node.outputs[0] if output is None else output
    position = _axis_of(results[node.outputs.index(result)], length, channels, result)
    return position or f"{node.op_type} mixes or moves its channels"


def axis_before(node: ir.Node, axis: int, output: ir.Value) -> int | str:
    """Return the axis of a node's inputs from which the channels of an output come, or why there is none."""
    lengths = lengths_of(node.inputs[0]) if node.inputs else None
    if lengths is None:
        return f"{node.op_type} reads or writes it"
    positions = [axis_after(node, ChannelAxis(source_axis), output) for source_axis in range(len(lengths))]
    if ChannelAxis(axis) in positions:
        return positions.index(ChannelAxis(axis))
    return next((reason for reason in positions if isinstance(reason, str)), f"{node.op_type} creates its channels")


def _axis_of(labels: Labels, length: int, channels: ChannelAxis, value: ir.Value) -> ChannelAxis | None:
    """Return the axis along which labels count from 0, each once or equally often in a row; None if there is none."""
    if length == 1:
        # A single channel is found by its axis, which all operators but Transpose keep if they keep the rank.
        lengths, producer = lengths_of(value), value.producer()
        axis = channels.axis
        if producer is not None and producer.op_type == "Transpose" and "perm" in producer.attributes:
            axis = list(producer.attributes["perm"].as_ints()).index(axis)
        same = lengths is not None and axis < len(lengths) and lengths[axis] == 1
        return ChannelAxis(axis, channels.flattened) if same else None
    axes = [axis for axis, size in enumerate(labels.shape) if size > 1]
    if len(axes) != 1 or labels.size % length:
        return None
    inner = labels.size // length
    if not np.array_equal(labels.reshape(-1), np.repeat(np.arange(length), inner)):
        return None
    return ChannelAxis(axes[0], channels.flattened or inner > 1)


def lengths_of(value: ir.Value | None) -> list[int | None] | None:
    """Return the lengths of a tensor's axes, None for those that are not known; None if its rank is not known."""
    axes = _axes(value)
    return None if axes is None else [length if isinstance(length, int) else None for length in axes]


def _axes(value: ir.Value | None) -> list[Length] | None:
    if value is None or value.shape is None:
        return None
    return [length if isinstance(length, int) else length.value for length in value.shape]


def fit(labels: Labels, value: ir.Value) -> bool:
    """Whether labels have the shape of a tensor, as far as it is known."""
    lengths = lengths_of(value)
    if lengths is None or len(lengths) != labels.ndim:
        return False
    return all(size in (1, length) or length is None for size, length in zip(labels.shape, lengths, strict=True))


def _along(node: ir.Node, labels: Labels, axes: Iterable[int]) -> Labels:
    """Return labels, which must not vary along axes that a node runs over."""
    if any(labels.shape[axis] > 1 for axis in axes):
        raise UnfollowedError(f"{node.op_type} runs over the channels")
    return labels


def _transpose(node: ir.Node, labels: Sequence[Labels]) -> list[Labels]:
    order = node.attributes.get("perm")
    return [labels[0].transpose(None if order is None else list(order.as_ints()))]


def _reshape(node: ir.Node, labels: Sequence[Labels]) -> list[Labels]:
    """Reshape, Flatten, Squeeze and Unsqueeze: only the shapes count."""
    source, target = _axes(node.inputs[0]), _axes(node.outputs[0])
    result = None if source is None or target is None else reshaped(labels[0], source, target)
    if result is None:
        raise UnfollowedError(f"{node.op_type} mixes channels with axes of unknown length")
    return [result]


def _slice(node: ir.Node, labels: Sequence[Labels]) -> list[Labels]:
    result = labels[0]
    starts, ends, axes, steps = (constant_of(value) for value in (*node.inputs[1:], None, None)[:4])
    is_present = [value is not None for value in (*node.inputs[3:], None, None)[:2]]
    if axes is None and starts is not None and not is_present[0]:
        axes = np.arange(starts.size)
    if axes is None:
        raise UnfollowedError("the part that Slice takes is not constant")
    for number, axis in enumerate(axes.tolist()):
        length = result.shape[axis]
        if length == 1:
            continue
        if starts is None or ends is None or (is_present[1] and steps is None):
            raise UnfollowedError("the part that Slice takes is not constant")
        start, end, step = int(starts[number]), int(ends[number]), 1 if steps is None else int(steps[number])
        # Backwards past the first element: ONNX writes a hugely negative end, Python writes None.
        stop = None if step < 0 and end < -length else end
        result = np.take(result, np.arange(length)[start:stop:step], axis=axis)
    return [result]


def _split(node: ir.Node, labels: Sequence[Labels]) -> list[Labels]:
    axis = int_of(node, "axis", 0) % labels[0].ndim
    if labels[0].shape[axis] == 1:
        return [labels[0]] * len(node.outputs)
    shapes = [lengths_of(value) for value in node.outputs]
    lengths = [length for shape in shapes if shape is not None and (length := shape[axis]) is not None]
    if len(lengths) < len(shapes):
        raise UnfollowedError("the parts of Split are not known")
    return list(np.split(labels[0], np.cumsum(lengths)[:-1], axis))


def _gather(node: ir.Node, labels: Sequence[Labels]) -> list[Labels]:
    picked, indices = node.inputs[1], constant_of(node.inputs[1])
    axis = int_of(node, "axis", 0) % labels[0].ndim
    shape = labels[0].shape
    if shape[axis] == 1 and picked is not None and picked.shape is not None:
        return [labels[0].reshape(*shape[:axis], *[1] * len(picked.shape), *shape[axis + 1 :])]
    if indices is None or indices.ndim > 1:
        raise UnfollowedError("the indices of Gather are not constant")
    return [np.take(labels[0], indices.astype(np.int64), axis=axis)]


def _reduce(node: ir.Node, labels: Sequence[Labels]) -> list[Labels]:
    """Means, sums and extremes over axes along which labels do not vary."""
    attribute = node.attributes.get("axes")
    constant = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    axes = list(attribute.as_ints()) if attribute is not None else [] if constant is None else constant.tolist()
    # No axes at all would mean every axis, the channels included.
    if not axes:
        raise UnfollowedError(f"the axes of {node.op_type} are not known")
    reduced = tuple(int(axis) % labels[0].ndim for axis in axes)
    result = _along(node, labels[0], reduced)
    return [result if int_of(node, "keepdims", 1) else np.squeeze(result, reduced)]


def _resize(node: ir.Node, labels: Sequence[Labels]) -> list[Labels]:
    """Interpolation over axes along which labels do not vary."""
    source, target = lengths_of(node.inputs[0]), lengths_of(node.outputs[0])
    if source is None or target is None:
        raise UnfollowedError("Resize may run over the channels")
    resized = [axis for axis, (old, new) in enumerate(zip(source, target, strict=True)) if old != new or old is None]
    return [_along(node, labels[0], resized)]


def _pad(node: ir.Node, labels: Sequence[Labels]) -> list[Labels]:
    """Constants or copies of neighbors on axes along which labels do not vary."""
    pads = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    # Padding of selected axes, from opset 18 on, is rare in convolutional networks and not followed.
    if pads is None or len(node.inputs) > 3:
        raise UnfollowedError("the extent of Pad is not known")
    padded = np.flatnonzero(pads.reshape(2, -1).any(axis=0)).tolist()
    # Added channels would have no label.
    if any(labels[0].shape[axis] > 1 for axis in padded):
        raise UnfollowedError("Pad adds channels")
    return [labels[0]]


def _expand(node: ir.Node, labels: Sequence[Labels]) -> list[Labels]:
    lengths = lengths_of(node.outputs[0])
    if lengths is None:
        raise UnfollowedError("the shape of what Expand computes is not known")
    return [labels[0].reshape((1,) * (len(lengths) - labels[0].ndim) + labels[0].shape)]


def _concat(node: ir.Node, labels: Sequence[Labels]) -> list[Labels]:
    axis = int_of(node, "axis", 0) % labels[0].ndim
    if all(array.shape[axis] == 1 and np.array_equal(array, labels[0]) for array in labels):
        return [labels[0]]
    shapes = [lengths_of(value) for value in node.inputs]
    lengths = [length for shape in shapes if shape is not None and (length := shape[axis]) is not None]
    if len(lengths) != len(labels):
        raise UnfollowedError("the parts of Concat are not known")
    around = np.broadcast_shapes(*(tuple(np.delete(array.shape, axis)) for array in labels))
    full = [
        np.broadcast_to(array, (*around[:axis], length, *around[axis:]))
        for array, length in zip(labels, lengths, strict=True)
    ]
    return [np.concatenate(full, axis)]


_RULES: dict[str, Callable[[ir.Node, Sequence[Labels]], list[Labels]]] = {
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshape),
    **{
        name: _reduce
        for name in of_family(Family.SELECTION, Family.AVERAGE, Family.REDUCTION)
        if name.startswith("Reduce")
    },
    "Transpose": _transpose,
    "Slice": _slice,
    "Split": _split,
    "Gather": _gather,
    "Resize": _resize,
    "Pad": _pad,
    "Expand": _expand,
    "Concat": _concat,
}


def reshaped(labels: Labels, source: Sequence[Length], target: Sequence[Length]) -> Labels | None:
    """Return labels after a Reshape; None if they vary along an axis of unknown length that is joined or cut.

    Axes are matched in groups that hold the same number of elements, so labels are only spread out along the axes of
    their own group.

    Args:
        labels: Of the input.
        source: Lengths of the input's axes.
        target: The same for the output.
    """
    current, result = labels, list[int]()
    for old, new in _matched_axes(source, target):
        sizes = labels.shape[old.start : old.stop]
        lengths = [1] * len(new)
        if any(size > 1 for size in sizes):
            # An unknown length is alone in its group, and keeps its labels.
            pairs = zip(source[old.start : old.stop], sizes, strict=True)
            inner = [length if isinstance(length, int) else size for length, size in pairs]
            outer = [length if isinstance(length, int) else 1 for length in target[new.start : new.stop]]
            single = len(old) == len(new) == 1
            if not single and not _are_known((*source[old.start : old.stop], *target[new.start : new.stop])):
                return None
            lengths = inner if single else outer
            current = np.broadcast_to(current, (*result, *inner, *labels.shape[old.stop :]))
        current = current.reshape((*result, *lengths, *labels.shape[old.stop :]))
        result += lengths
    return current


def _matched_axes(source: Sequence[Length], target: Sequence[Length]) -> list[tuple[range, range]]:
    """Return groups of axes with as many elements in the input as in the output, in order.

    Axes are matched from both ends as long as their lengths are known. What is left in the middle is one group: a
    single axis on both sides, which is the same one because all others agree, or axes that may be mixed: 2 x 6 may have
    become 3 x 4.
    """
    head = _matched_from_start(source, target)
    old_start, new_start = (head[-1][0].stop, head[-1][1].stop) if head else (0, 0)
    tail = _matched_from_start(source[old_start:][::-1], target[new_start:][::-1])
    ends = len(source), len(target)
    turned = [
        (range(ends[0] - old.stop, ends[0] - old.start), range(ends[1] - new.stop, ends[1] - new.start))
        for old, new in reversed(tail)
    ]
    stop = (turned[0][0].start, turned[0][1].start) if turned else ends
    middle = range(old_start, stop[0]), range(new_start, stop[1])
    return [*head, *([middle] if any(map(len, middle)) else []), *turned]


def _matched_from_start(source: Sequence[Length], target: Sequence[Length]) -> list[tuple[range, range]]:
    groups: list[tuple[range, range]] = []
    old_start = new_start = 0
    while old_start < len(source) or new_start < len(target):
        old, new = source[old_start : old_start + 1], target[new_start : new_start + 1]
        if _are_known(old) and _are_known(new):
            ends = _same_product(source, target, old_start, new_start)
        else:
            # A symbolic length is the same axis if both have its name.
            ends = (old_start + 1, new_start + 1) if old == new and isinstance(old[0], str) else None
        if ends is None:
            return groups
        groups.append((range(old_start, ends[0]), range(new_start, ends[1])))
        old_start, new_start = ends
    return groups


def _same_product(
    source: Sequence[Length], target: Sequence[Length], old_end: int, new_end: int
) -> tuple[int, int] | None:
    """Return the ends of the shortest runs of known axes, from two places on, with the same number of elements."""
    start, begin = old_end, new_end
    old_end, new_end = min(old_end + 1, len(source)), min(new_end + 1, len(target))
    while (old := _product(source[start:old_end])) != (new := _product(target[begin:new_end])):
        grows_left = old < new
        if (old_end == len(source)) if grows_left else (new_end == len(target)):
            return None
        old_end, new_end = old_end + grows_left, new_end + (not grows_left)
        if not (_are_known(source[start:old_end]) and _are_known(target[begin:new_end])):
            return None
    return old_end, new_end


def _are_known(lengths: Sequence[Length]) -> bool:
    return all(isinstance(length, int) for length in lengths)


def _product(lengths: Sequence[Length]) -> int:
    # No elements at all would match anything.
    return math.prod(length for length in lengths if isinstance(length, int) and length)
