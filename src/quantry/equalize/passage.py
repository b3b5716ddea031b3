"""Which operators a factor per channel passes, and where the channels are after them.

A factor can move from one side of ``f`` to the other if ``f(s * x) = s * f(x)`` for all ``s > 0``, channel by channel.
Relu and pooling have that property; Sigmoid, SiLU and Clip(0, 6) do not, and no choice of factors helps. A rule returns
where the channels are after its operator, or why they cannot be followed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from quantry.facts.operators import Family, facts, operators_where
from quantry.graph.edit import constant_of, float_of, int_of, string_of


@dataclass(frozen=True)
class Channels:
    """Where a tensor has the channels of the layer that computed it.

    Attributes:
        axis: The axis that counts them.
        flattened: Whether that axis counts positions inside each channel as well, channels being the slower index.
    """

    axis: int
    flattened: bool = False


Rule = Callable[[ir.Node, Channels], Channels | str]


def passage(node: ir.Node, channels: Channels) -> Channels | str:
    """Return where the channels are after a node that reads them as its first input, or why a factor cannot pass.

    Args:
        node: A node of the standard domain.
        channels: Where its first input has the channels.
    """
    rule = _RULES.get(node.op_type) if node.domain == "" else None
    if rule is None:
        return not_homogeneous(node) or f"{node.op_type} combines or moves channels"
    # For example the indices of MaxPool, which do not scale with the input.
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        return f"a second output of {node.op_type} is read"
    return rule(node, channels)


def not_homogeneous(node: ir.Node) -> str:
    """Return the reason if no factor per channel passes a node's function, else an empty string."""
    return f"{node.op_type} is not positively homogeneous" if facts(node).homogeneous is False else ""


def _unchanged(_: ir.Node, channels: Channels) -> Channels | str:
    return channels


def _clip(node: ir.Node, channels: Channels) -> Channels | str:
    """Only bounds of 0 and infinity scale with the input; Clip(0, infinity) is a Relu."""
    for value, unlimited in zip(node.inputs[1:3], (-math.inf, math.inf), strict=False):
        bound = constant_of(value)
        scales = value is None or (bound is not None and bound.size == 1 and float(bound.reshape(())) in (0, unlimited))
        if not scales:
            return "Clip with bounds other than 0 is not positively homogeneous"
    return channels


def _pool(node: ir.Node, channels: Channels) -> Channels | str:
    return channels if channels == Channels(1) else f"{node.op_type} runs over the channels"


def _pad(node: ir.Node, channels: Channels) -> Channels | str:
    """Zeros, or copies of neighbors, on other axes than that of the channels."""
    pads = constant_of(node.inputs[1])
    fill = node.inputs[2] if len(node.inputs) > 2 else None
    axes = node.inputs[3] if len(node.inputs) > 3 else None
    filled = fill is not None and not _is_zero(constant_of(fill))
    if filled and string_of(node, "mode", "constant") == "constant":
        return "Pad with values other than 0 is not positively homogeneous"
    # Padding of selected axes, from opset 18 on, is rare in convolutional networks and not followed.
    if pads is None or axes is not None:
        return "the extent of Pad is not known"
    ends = pads.reshape(2, -1)
    # Added channels would have no factor.
    return channels if not ends[:, channels.axis].any() else "Pad adds channels"


def _is_zero(constant: np.ndarray | None) -> bool:
    return constant is not None and not constant.any()


def _flatten(node: ir.Node, channels: Channels) -> Channels | str:
    if channels.axis == 1 and int_of(node, "axis", 1) == 1:
        return replace(channels, flattened=True)
    return "Flatten mixes the channels with the batch"


def _reshape(node: ir.Node, channels: Channels) -> Channels | str:
    """``(N, C, ...) -> (N, C * ...)`` is a Flatten; the lengths must be known to prove it."""
    before, after = _lengths(node.inputs[0]), _lengths(node.outputs[0])
    if before is None or after is None or channels.axis != 1 or len(after) != 2:
        return "Reshape does more than flatten each sample"
    inner = before[1:]
    if after[1] is None or None in inner or after[1] != math.prod(length for length in inner if length is not None):
        return "Reshape does more than flatten each sample"
    return replace(channels, flattened=True)


def _transpose(node: ir.Node, channels: Channels) -> Channels | str:
    order = node.attributes.get("perm")
    if order is None:
        return "Transpose has no attribute perm"
    return replace(channels, axis=list(order.as_ints()).index(channels.axis))


def _reduce(node: ir.Node, channels: Channels) -> Channels | str:
    """Means, sums and extremes over other axes than that of the channels."""
    before = _lengths(node.inputs[0])
    axes = _axes(node)
    if before is None or not axes:
        return f"the axes of {node.op_type} are not known"
    # No axes at all would mean every axis, the channels included.
    reduced = {axis % len(before) for axis in axes}
    if channels.axis in reduced:
        return f"{node.op_type} runs over the channels"
    if int_of(node, "keepdims", 1):
        return channels
    return replace(channels, axis=channels.axis - sum(axis < channels.axis for axis in reduced))


def _squeeze(node: ir.Node, channels: Channels) -> Channels | str:
    before = _lengths(node.inputs[0])
    axes = _axes(node)
    if before is None or not axes:
        return "the axes of Squeeze are not known"
    removed = {axis % len(before) for axis in axes}
    if channels.axis in removed:
        return "Squeeze removes the channels"
    return replace(channels, axis=channels.axis - sum(axis < channels.axis for axis in removed))


def _axes(node: ir.Node) -> tuple[int, ...]:
    """Return the axes a node names, in an attribute or a constant input; none where they are not known or all."""
    attribute = node.attributes.get("axes")
    if attribute is not None and not attribute.is_ref():
        return tuple(attribute.as_ints())
    constant = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    return () if constant is None else tuple(int(axis) for axis in constant.reshape(-1))


def _resize(node: ir.Node, channels: Channels) -> Channels | str:
    """Interpolation is linear; outside the image it may put a constant in, which is not."""
    before, after = _lengths(node.inputs[0]), _lengths(node.outputs[0])
    outside = string_of(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    if outside and float_of(node, "extrapolation_value", 0.0) != 0.0:
        return "Resize with values other than 0 outside is not positively homogeneous"
    if channels != Channels(1) or before is None or after is None or before[1] is None or before[1] != after[1]:
        return "Resize may run over the channels"
    return channels


def _lengths(value: ir.Value | None) -> tuple[int | None, ...] | None:
    if value is None or value.shape is None:
        return None
    return tuple(length if isinstance(length, int) else None for length in value.shape)


_REDUCING = (Family.SELECTION, Family.AVERAGE, Family.REDUCTION)
_RULES: dict[str, Rule] = {
    **dict.fromkeys(operators_where(lambda row: row.homogeneous and row.operands), _unchanged),
    **dict.fromkeys(operators_where(lambda row: row.homogeneous and row.pools), _pool),
    **dict.fromkeys(
        operators_where(lambda row: row.homogeneous and not row.pools and row.family in _REDUCING), _reduce
    ),
    # These come last: Clip, for example, is also an elementwise function, but not with every bound.
    "Clip": _clip,
    "Pad": _pad,
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Resize": _resize,
}
