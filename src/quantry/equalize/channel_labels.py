"""Which channels of a model's tensors must have the same factor.

::

    y = W2 Relu(W1 x + b1)      =      y = (W2 / S) Relu(S W1 x + S b1)        for every diagonal S > 0

Every channel that a layer computes can be multiplied by a factor of its own, if what reads it divides by that factor.
Channels that meet must agree: those of both operands of an Add, or a channel and its copy after a Concat, a Split or a
shuffle. Every channel has a label here, a whole number, and labels that must agree are joined. Label 0 is the factor 1:
inputs and outputs of the model, and everything that meets an operator no factor passes.

The labels of a tensor are an array of its rank. An axis of length 1 means that the label does not depend on this axis.
Operators that move values move the labels in the same way, so a channel is found again after any of them.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantry.equalize.gates import Gate, is_gate
from quantry.equalize.linear_layer import LinearLayer, linear_layer
from quantry.equalize.reshaped_labels import Length, reshaped
from quantry.facts.operators import LINEAR, STANDARD_DOMAINS, Family, facts
from quantry.graph.edit import bounds_of, constant_of, int_of, string_of
from quantry.graph.segments import values_used

Labels = np.ndarray
"""int64, one axis for each axis of the tensor."""

_SUMS = ("Add", "Sub", "Sum", "Max", "Min", "Mean")
"""Operators whose result has the factor of their operands, if all have the same."""

# A tensor whose labels vary along several long axes is rare, and not worth the memory.
_MOST_LABELS = 1 << 22

_FIXED = 0


class _UnfollowedError(Exception):
    """The channels cannot be followed through a node."""


@dataclass(frozen=True, eq=False)
class LabelledLayer:
    """A layer with the labels of its channels.

    Attributes:
        layer: The layer.
        inputs: (inputs,) labels.
        outputs: (outputs,) labels.
    """

    layer: LinearLayer
    inputs: Labels
    outputs: Labels


@dataclass(frozen=True, eq=False)
class LabelledConstant:
    """A constant operand of a sum, which takes the factors of the sum's channels.

    Attributes:
        node: The sum.
        index: Place of the constant among its inputs.
        labels: Labels of the result.
    """

    node: ir.Node
    index: int
    labels: Labels


@dataclass(frozen=True, eq=False)
class LabelledClip:
    """A Clip with an upper bound.

    Attributes:
        node: The Clip; its lower bound is 0 or missing.
        bound: The upper bound.
        labels: Labels of its channels.
    """

    node: ir.Node
    bound: float
    labels: Labels


class ChannelLabels:
    """Labels of all channels of the main graph.

    Args:
        model: The model; its nodes are in topological order.

    Attributes:
        of: Labels of every tensor of a known rank.
        layers: Layers in the order of the graph.
        constants: Constant operands of sums.
        clips: Clips with an upper bound. Channels that reach it are not joined here, because that needs statistics.
        gates: Functions whose results are multiplied with their inputs; they must read them without factors.
        reasons: Number of nodes that no factor passes, by reason.
    """

    def __init__(self, model: ir.Model) -> None:
        self.of: dict[ir.Value, Labels] = {}
        self.layers: list[LabelledLayer] = []
        self.constants: list[LabelledConstant] = []
        self.clips: list[LabelledClip] = []
        self.gates: list[Gate] = []
        self.reasons: Counter[str] = Counter()
        self._parents = [_FIXED]
        self._added_biases: set[ir.Node] = set()
        for value in model.graph.inputs:
            self._set_fixed(value)
        for node in model.graph:
            self._visit(node)
        for value in model.graph.outputs:
            self._fix(value)

    def positions(self) -> Labels:
        """Return for every label the number of its factor; joined labels have the same, and 0 is the factor 1."""
        roots = np.array([self._root(label) for label in range(len(self._parents))])
        # Label 0 is its own root and the smallest one, so its number is 0.
        return np.unique(roots, return_inverse=True)[1].reshape(-1)

    def join(self, first: Labels, second: Labels) -> None:
        """Give the labels of two arrays, which are broadcast, the same factor element by element."""
        ones, others = (part.reshape(-1) for part in np.broadcast_arrays(self._roots(first), self._roots(second)))
        while (apart := ones != others).any():
            high, low = np.maximum(ones, others)[apart], np.minimum(ones, others)[apart]
            # The smaller number wins, so that label 0 stays the root of all factors of 1.
            joined, where = np.unique(high, return_inverse=True)
            lowest = joined.copy()
            np.minimum.at(lowest, where.reshape(-1), low)
            for one, other in zip(joined.tolist(), lowest.tolist(), strict=True):
                self._parents[one] = other
            ones, others = self._roots(high), self._roots(low)

    def are_fixed(self, labels: Labels) -> np.ndarray:
        """Return for each label of an array whether its factor is 1, bool in the same shape."""
        fixed: np.ndarray = self._roots(labels) == _FIXED
        return fixed

    def axis_of(self, value: ir.Value) -> int | None:
        """Return the only axis along which the labels of a tensor vary; None if there is none or more than one."""
        labels = self.of.get(value)
        axes = [] if labels is None else [axis for axis, length in enumerate(labels.shape) if length > 1]
        return axes[0] if len(axes) == 1 else None

    def _root(self, label: int) -> int:
        parents = self._parents
        while parents[label] != label:
            parents[label] = parents[parents[label]]
            label = parents[label]
        return label

    def _roots(self, labels: Labels) -> Labels:
        # Spread-out labels repeat a few of them very often.
        different, where = np.unique(labels, return_inverse=True)
        roots = np.array([self._root(label) for label in different.tolist()], dtype=np.int64)
        return roots[where.reshape(labels.shape)]

    def _fresh(self, count: int) -> Labels:
        first = len(self._parents)
        self._parents += range(first, first + count)
        return np.arange(first, first + count)

    def _set_fixed(self, value: ir.Value) -> None:
        if value.shape is not None:
            self.of[value] = np.full((1,) * len(value.shape), _FIXED)

    def _fix(self, value: ir.Value) -> None:
        labels = self.of.get(value)
        if labels is not None:
            self.join(labels, np.array(_FIXED))

    def _visit(self, node: ir.Node) -> None:
        if node in self._added_biases:
            return
        try:
            self._follow(node)
        except _UnfollowedError as reason:
            self.reasons[str(reason) or f"{node.op_type} does not pass factors on"] += 1
            for value in values_used(node):
                self._fix(value)
            for value in node.outputs:
                self._set_fixed(value)

    def _follow(self, node: ir.Node) -> None:
        """Label the outputs of a node.

        Raises:
            _UnfollowedError: No factor passes it.
        """
        has_graph = any(
            attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
            for attribute in node.attributes.values()
        )
        if node.domain not in STANDARD_DOMAINS or has_graph:
            raise _UnfollowedError
        if node.op_type in LINEAR and isinstance(layer := linear_layer(node), LinearLayer):
            self._follow_layer(layer)
            return
        if self._follow_gate(node):
            return
        row = facts(node)
        rule = _RULES.get(node.op_type)
        if rule is not None:
            results = rule(self, node)
        elif row.homogeneous and row.operands and all(constant_of(value) is not None for value in node.inputs[1:]):
            results = [self._labels(node.inputs[0])]
        elif row.homogeneous and row.pools:
            results = [self._along(node, range(2, self._labels(node.inputs[0]).ndim))]
        else:
            raise _UnfollowedError
        # For example the indices of MaxPool, which do not scale with the input.
        if any(output.uses() or output.is_graph_output() for output in node.outputs[len(results) :]):
            raise _UnfollowedError(f"a second output of {node.op_type} is read")
        for value, labels in zip(node.outputs, results, strict=False):
            if not _fit(labels, value) or labels.size > _MOST_LABELS:
                raise _UnfollowedError(f"the shape of what {node.op_type} computes is not known")
            self.of[value] = labels

    def _follow_gate(self, node: ir.Node) -> bool:
        """Label the output of a node if it is a gate, and return whether it is one."""
        source = node.inputs[0] if node.inputs else None
        axis = None if source is None else self.axis_of(source)
        if source is None or axis is None or self.are_fixed(self.of[source]).any():
            return False
        gate = Gate(node, self.of[source].reshape(-1), axis)
        if node.op_type == "HardSwish":
            self.of[node.outputs[0]] = self.of[source]
        elif is_gate(node, lambda value: value in self.of and np.array_equal(self.of[value], self.of[source])):
            self._set_fixed(node.outputs[0])
        else:
            return False
        self.gates.append(gate)
        return True

    def _labels(self, value: ir.Value | None) -> Labels:
        """Return the labels of a tensor that is not a constant."""
        if value is None or value not in self.of:
            raise _UnfollowedError
        return self.of[value]

    def _follow_layer(self, layer: LinearLayer) -> None:
        labels = self._labels(layer.node.inputs[0])
        wanted = [1] * labels.ndim
        wanted[layer.input_axis] = labels.shape[layer.input_axis]
        if list(labels.shape) != wanted or wanted[layer.input_axis] not in (1, layer.layout.inputs):
            raise _UnfollowedError(f"{layer.node.op_type} reads channels along another axis")
        if layer.output.shape is None:
            raise _UnfollowedError
        inputs = np.broadcast_to(labels.reshape(-1), (layer.layout.inputs,))
        outputs = self._fresh(layer.layout.outputs)
        self.layers.append(LabelledLayer(layer, inputs, outputs))
        # Counted from the end, because a bias of higher rank adds axes in front of those of a MatMul.
        after = len(layer.output.shape) - 1 - layer.output_axis
        for value in (layer.node.outputs[0], layer.output):
            rank = 0 if value.shape is None else len(value.shape)
            self.of[value] = outputs.reshape([1] * (rank - 1 - after) + [-1] + [1] * after)
        added = layer.output.producer()
        if added is not None and added is not layer.node:
            self._added_biases.add(added)

    def _along(self, node: ir.Node, axes: Iterable[int]) -> Labels:
        """Return the labels of the first input, which must not vary along axes that the node runs over."""
        labels = self._labels(node.inputs[0])
        if any(labels.shape[axis] > 1 for axis in axes):
            raise _UnfollowedError(f"{node.op_type} runs over the channels")
        return labels

    def follow_sum(self, node: ir.Node) -> list[Labels]:
        """Join the labels of all operands; constants take the factors of the result."""
        shape_of_result = node.outputs[0].shape
        if shape_of_result is None:
            raise _UnfollowedError
        rank = len(shape_of_result)
        computed = [self._labels(value) for value in node.inputs if constant_of(value) is None]
        if not computed:
            raise _UnfollowedError
        aligned = [labels.reshape((1,) * (rank - labels.ndim) + labels.shape) for labels in computed]
        try:
            shape = np.broadcast_shapes(*(labels.shape for labels in aligned))
        except ValueError:
            raise _UnfollowedError from None
        if math.prod(shape) > _MOST_LABELS:
            raise _UnfollowedError(f"{node.op_type} spreads channels over several axes")
        result = np.broadcast_to(aligned[0], shape)
        for labels in aligned[1:]:
            self.join(result, labels)
        for index, value in enumerate(node.inputs):
            constant = constant_of(value)
            if constant is None:
                continue
            spread = math.prod(np.broadcast_shapes(result.shape, constant.shape))
            if constant.any() and (constant.size == 1 or spread > max(constant.size, _MOST_LABELS)):
                # One number stays one number, and a map of positions does not become one for each channel if that is
                # large: all channels that it is added to share a factor.
                self.join(result, result.reshape(-1)[0])
            if constant.any():
                self.constants.append(LabelledConstant(node, index, result))
        return [result]

    def follow_product(self, node: ir.Node) -> list[Labels]:
        """Pass the labels of one operand on; the other one is a constant or has the factor 1."""
        constants = [constant_of(value) is not None for value in node.inputs]
        if all(constants) or (node.op_type == "Div" and not constants[1]):
            raise _UnfollowedError
        computed = [self._labels(value) for value, fixed in zip(node.inputs, constants, strict=True) if not fixed]
        free = [labels for labels in computed if not self.are_fixed(labels).all()]
        if len(free) > 1:
            raise _UnfollowedError("Mul of two computed tensors does not pass factors on")
        rank = len(node.outputs[0].shape) if node.outputs[0].shape is not None else 0
        labels = (free or computed)[0]
        return [labels.reshape((1,) * (rank - labels.ndim) + labels.shape)]

    def follow_clip(self, node: ir.Node) -> list[Labels]:
        """Pass labels on if the lower bound is 0 or missing; an upper bound is remembered."""
        labels, bounds = self._labels(node.inputs[0]), bounds_of(node)
        if bounds is None or bounds[0] not in (0.0, -np.inf) or bounds[1] <= 0:
            raise _UnfollowedError("Clip with such bounds does not pass factors on")
        if bounds[1] < np.finfo(np.float32).max / 4:
            self.clips.append(LabelledClip(node, bounds[1], labels))
        return [labels]

    def follow_concat(self, node: ir.Node) -> list[Labels]:
        """Join the labels along the axis of the Concat."""
        parts = [self._full(value, int_of(node, "axis", 0)) for value in node.inputs]
        axis = int_of(node, "axis", 0) % parts[0].ndim
        lengths = [part.shape[axis] for part in parts]
        around = np.broadcast_shapes(*(np.delete(part.shape, axis) for part in parts))
        shapes = [(*around[:axis], length, *around[axis:]) for length in lengths]
        if all(np.unique(part).size == 1 for part in parts) and all(part.flat[0] == parts[0].flat[0] for part in parts):
            return [parts[0].reshape(-1)[:1].reshape((1,) * parts[0].ndim)]
        return [np.concatenate([np.broadcast_to(part, shape) for part, shape in zip(parts, shapes, strict=True)], axis)]

    def follow_transpose(self, node: ir.Node) -> list[Labels]:
        """Permute the axes of the labels."""
        order = node.attributes.get("perm")
        labels = self._labels(node.inputs[0])
        return [labels.transpose(None if order is None else list(order.as_ints()))]

    def follow_reshape(self, node: ir.Node) -> list[Labels]:
        """Reshape the labels; covers Flatten, Squeeze and Unsqueeze."""
        labels, before, after = self._labels(node.inputs[0]), _axes(node.inputs[0]), _axes(node.outputs[0])
        if before is None or after is None:
            raise _UnfollowedError(f"the shape of what {node.op_type} computes is not known")
        result = reshaped(labels, before, after)
        if result is None:
            raise _UnfollowedError(f"{node.op_type} mixes channels with axes of unknown length")
        return [result]

    def follow_slice(self, node: ir.Node) -> list[Labels]:
        """Take the same part of the labels."""
        constants = [constant_of(value) for value in (*node.inputs[1:], None, None)[:4]]
        starts, ends = constants[:2]
        if starts is None or ends is None:
            raise _UnfollowedError("the part that Slice takes is not constant")
        given = [value is not None for value in (*node.inputs[1:], None, None)[2:4]]
        if any(known and constants[place + 2] is None for place, known in enumerate(given)):
            raise _UnfollowedError("the part that Slice takes is not constant")
        axes = np.arange(starts.size) if constants[2] is None else constants[2]
        steps = np.ones_like(starts) if constants[3] is None else constants[3]
        labels = self._labels(node.inputs[0])
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
            if labels.shape[int(axis)] == 1:
                continue
            length = labels.shape[int(axis)]
            # Backwards past the first element: ONNX writes a hugely negative end, Python writes None.
            stop = None if int(step) < 0 and int(end) < -length else int(end)
            part = np.arange(length)[int(start) : stop : int(step)]
            labels = np.take(labels, part, axis=int(axis))
        return [labels]

    def follow_split(self, node: ir.Node) -> list[Labels]:
        """Cut the labels into the same parts."""
        labels = self._labels(node.inputs[0])
        axis = int_of(node, "axis", 0) % labels.ndim
        if labels.shape[axis] == 1:
            return [labels] * len(node.outputs)
        lengths = [None if value.shape is None else value.shape[axis] for value in node.outputs]
        if not all(isinstance(length, int) for length in lengths):
            raise _UnfollowedError("the parts of Split are not known")
        return list(np.split(labels, np.cumsum([length for length in lengths if isinstance(length, int)])[:-1], axis))

    def follow_gather(self, node: ir.Node) -> list[Labels]:
        """Pick the same labels."""
        labels, indices = self._labels(node.inputs[0]), constant_of(node.inputs[1])
        if indices is None or indices.ndim > 1:
            raise _UnfollowedError("the indices of Gather are not constant")
        axis = int_of(node, "axis", 0) % labels.ndim
        if labels.shape[axis] == 1:
            return [labels if indices.ndim else np.squeeze(labels, axis)]
        return [np.take(labels, indices.astype(np.int64), axis=axis)]

    def follow_reduction(self, node: ir.Node) -> list[Labels]:
        """Remove axes along which the labels do not vary."""
        labels = self._labels(node.inputs[0])
        attribute = node.attributes.get("axes")
        given = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
        axes = list(attribute.as_ints()) if attribute is not None else [] if given is None else given.tolist()
        reduced = tuple(int(axis) % labels.ndim for axis in axes)
        if not reduced:
            raise _UnfollowedError(f"the axes of {node.op_type} are not known")
        self._along(node, reduced)
        return [labels if int_of(node, "keepdims", 1) else np.squeeze(labels, reduced)]

    def follow_resize(self, node: ir.Node) -> list[Labels]:
        """Interpolate over axes along which the labels do not vary."""
        before, after = _lengths(node.inputs[0]), _lengths(node.outputs[0])
        outside = string_of(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
        if before is None or after is None or outside:
            raise _UnfollowedError
        changed = [axis for axis, (old, new) in enumerate(zip(before, after, strict=True)) if old != new or old is None]
        return [self._along(node, changed)]

    def follow_pad(self, node: ir.Node) -> list[Labels]:
        """Add zeros, or copies of neighbours, along axes along which the labels do not vary."""
        pads = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
        fill = constant_of(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else np.zeros(())
        constant = string_of(node, "mode", "constant") == "constant"
        if pads is None or len(node.inputs) > 3 or (constant and (fill is None or fill.any())):
            raise _UnfollowedError("Pad with such values does not pass factors on")
        return [self._along(node, np.flatnonzero(pads.reshape(2, -1).any(axis=0)).tolist())]

    def _full(self, value: ir.Value | None, axis: int) -> Labels:
        """Return labels with the real length along one axis."""
        labels, lengths = self._labels(value), _lengths(value)
        assert lengths is not None
        length = lengths[axis]
        if length is None:
            raise _UnfollowedError("the parts of Concat are not known")
        shape = list(labels.shape)
        shape[axis] = length
        return np.broadcast_to(labels, shape)


def _lengths(value: ir.Value | None) -> list[int | None] | None:
    axes = _axes(value)
    return None if axes is None else [length if isinstance(length, int) else None for length in axes]


def _axes(value: ir.Value | None) -> list[Length] | None:
    if value is None or value.shape is None:
        return None
    return [length if isinstance(length, int) else length.value for length in value.shape]


def _fit(labels: Labels, value: ir.Value) -> bool:
    """Whether labels have the shape of a tensor, as far as it is known."""
    lengths = _lengths(value)
    if lengths is None or len(lengths) != labels.ndim:
        return False
    return all(own in (1, length) or length is None for own, length in zip(labels.shape, lengths, strict=True))


_REDUCING = (Family.SELECTION, Family.AVERAGE)
_RULES: dict[str, Callable[[ChannelLabels, ir.Node], list[Labels]]] = {
    **dict.fromkeys(_SUMS, ChannelLabels.follow_sum),
    **dict.fromkeys(("Mul", "Div"), ChannelLabels.follow_product),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), ChannelLabels.follow_reshape),
    **dict.fromkeys(("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum"), ChannelLabels.follow_reduction),
    "Clip": ChannelLabels.follow_clip,
    "Concat": ChannelLabels.follow_concat,
    "Transpose": ChannelLabels.follow_transpose,
    "Slice": ChannelLabels.follow_slice,
    "Split": ChannelLabels.follow_split,
    "Gather": ChannelLabels.follow_gather,
    "Resize": ChannelLabels.follow_resize,
    "Pad": ChannelLabels.follow_pad,
}
