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
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantry.equalize.channels import MOST_LABELS, Labels, UnfollowedError, fit, moved, not_homogeneous
from quantry.equalize.gates import Gate, is_self_gating
from quantry.equalize.linear_layer import LinearLayer, linear_layer
from quantry.facts.operators import LINEAR, STANDARD_DOMAINS, Family, facts
from quantry.graph.edit import bounds_of, constant_of
from quantry.graph.segments import values_used

_SUMS = ("Add", "Sub", "Sum", "Max", "Min", "Mean")
"""Operators whose result has the factor of their operands, if all have the same."""

_UNBOUNDED = float(np.finfo(np.float32).max) / 4
"""Bounds beyond this are how exporters write infinity."""

_FIXED = 0


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
    """A constant operand of a sum, or a bound of a Clip, which takes the factors of the channels.

    Attributes:
        node: The node that reads it.
        index: Index of the constant among its inputs.
        labels: Labels of the result.
        inverse: Whether it multiplies what a function reads, and takes the inverse of the factors (`gates`).
    """

    node: ir.Node
    index: int
    labels: Labels
    inverse: bool = False


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
        per_tensor: Whether all channels of a tensor have the same label. No gate is followed then, because that needs a
            multiplication, unless there is one; and constants take any factor, bounds of Clip included.

    Attributes:
        of: Labels of every tensor of a known rank.
        layers: Layers in the order of the graph.
        constants: Constants that take factors.
        clips: Clips with an upper bound. Channels that reach it are not joined here, because that needs statistics.
        gates: Functions whose results are multiplied with their inputs; they must read them without factors.
        reasons: Number of nodes that no factor passes, by reason.
    """

    def __init__(self, model: ir.Model, *, per_tensor: bool = False) -> None:
        self._per_tensor = per_tensor
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
        firsts, seconds = (
            labels.reshape(-1) for labels in np.broadcast_arrays(self._roots(first), self._roots(second))
        )
        while (apart := firsts != seconds).any():
            high, low = np.maximum(firsts, seconds)[apart], np.minimum(firsts, seconds)[apart]
            # The smaller number wins, so that label 0 stays the root of all factors of 1.
            joined, indices = np.unique(high, return_inverse=True)
            lowest = joined.copy()
            np.minimum.at(lowest, indices.reshape(-1), low)
            for label, lower in zip(joined.tolist(), lowest.tolist(), strict=True):
                self._parents[label] = lower
            firsts, seconds = self._roots(high), self._roots(low)

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
        different, indices = np.unique(labels, return_inverse=True)
        roots = np.array([self._root(label) for label in different.tolist()], dtype=np.int64)
        return roots[indices.reshape(labels.shape)]

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
        except UnfollowedError as reason:
            self.reasons[str(reason) or f"{node.op_type} does not pass factors on"] += 1
            for value in values_used(node):
                self._fix(value)
            for value in node.outputs:
                self._set_fixed(value)

    def _follow(self, node: ir.Node) -> None:
        """Label the outputs of a node.

        Raises:
            UnfollowedError: No factor passes it.
        """
        has_graph = any(
            attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
            for attribute in node.attributes.values()
        )
        if node.domain not in STANDARD_DOMAINS or has_graph:
            raise UnfollowedError
        if node.op_type in LINEAR and isinstance(layer := linear_layer(node), LinearLayer):
            self._follow_layer(layer)
            return
        if self._follow_gate(node):
            return
        rule = _RULES.get(node.op_type)
        if rule is not None:
            labels = rule(self, node)
            if not fit(labels, node.outputs[0]):
                raise UnfollowedError(f"the shape of what {node.op_type} computes is not known")
            results = [labels]
        else:
            results = self._moved(node)
        self.of.update(zip(node.outputs, results, strict=False))

    def _moved(self, node: ir.Node) -> list[Labels]:
        row, reason = facts(node), not_homogeneous(node)
        if reason or not (row.homogeneous or row.family is Family.JOIN):
            raise UnfollowedError(reason)
        if row.family is Family.JOIN:
            return [self.follow_sum(node)] if self._per_tensor else moved(node, [*map(self._labels, node.inputs)])
        labels = self._labels(node.inputs[0])
        if not self._per_tensor:
            return moved(node, [labels])
        # One factor for all channels passes wherever the channels go.
        for value in node.inputs[1:]:
            if value is not None:
                self._fix(value)
        if any(value.shape is None for value in node.outputs):
            raise UnfollowedError(f"the shape of what {node.op_type} computes is not known")
        return [labels.reshape((1,) * len(value.shape)) for value in node.outputs if value.shape is not None]

    def _follow_gate(self, node: ir.Node) -> bool:
        """Label the output of a node if it is a gate, and return whether it is one."""
        source = node.inputs[0] if node.inputs else None
        axis = None if source is None else self.axis_of(source)
        if source is None or axis is None or self.are_fixed(self.of[source]).any():
            return False
        gate = Gate(node, self.of[source].reshape(-1), axis)
        if node.op_type == "HardSwish":
            self.of[node.outputs[0]] = self.of[source]
        elif is_self_gating(node, lambda value: value in self.of and np.array_equal(self.of[value], self.of[source])):
            self._set_fixed(node.outputs[0])
        else:
            return False
        self.gates.append(gate)
        return True

    def _labels(self, value: ir.Value | None) -> Labels:
        """Return the labels of a tensor that is not a constant."""
        if value is None or value not in self.of:
            raise UnfollowedError
        return self.of[value]

    def _follow_layer(self, layer: LinearLayer) -> None:
        labels = self._labels(layer.node.inputs[0])
        expected_shape = [1] * labels.ndim
        expected_shape[layer.input_axis] = labels.shape[layer.input_axis]
        if list(labels.shape) != expected_shape or expected_shape[layer.input_axis] not in (1, layer.layout.inputs):
            raise UnfollowedError(f"{layer.node.op_type} reads channels along another axis")
        if layer.output.shape is None:
            raise UnfollowedError
        inputs = np.broadcast_to(labels.reshape(-1), (layer.layout.inputs,))
        outputs = self._fresh(1 if self._per_tensor else layer.layout.outputs)
        self.layers.append(LabelledLayer(layer, inputs, outputs))
        # Counted from the end, because a bias of higher rank adds axes in front of those of a MatMul.
        inner_axes = len(layer.output.shape) - 1 - layer.output_axis
        for value in (layer.node.outputs[0], layer.output):
            rank = 0 if value.shape is None else len(value.shape)
            self.of[value] = outputs.reshape([1] * (rank - 1 - inner_axes) + [-1] + [1] * inner_axes)
        bias_sum = layer.output.producer()
        if bias_sum is not None and bias_sum is not layer.node:
            self._added_biases.add(bias_sum)

    def follow_sum(self, node: ir.Node) -> Labels:
        """Join the labels of all operands; constants take the factors of the result."""
        shape_of_result = node.outputs[0].shape
        if shape_of_result is None:
            raise UnfollowedError
        rank = len(shape_of_result)
        computed = [self._labels(value) for value in node.inputs if constant_of(value) is None]
        if not computed:
            raise UnfollowedError
        aligned = [labels.reshape((1,) * (rank - labels.ndim) + labels.shape) for labels in computed]
        try:
            shape = np.broadcast_shapes(*(labels.shape for labels in aligned))
        except ValueError:
            raise UnfollowedError from None
        if math.prod(shape) > MOST_LABELS:
            raise UnfollowedError(f"{node.op_type} spreads channels over several axes")
        result = np.broadcast_to(aligned[0], shape)
        for labels in aligned[1:]:
            self.join(result, labels)
        for index, value in enumerate(node.inputs):
            constant = constant_of(value)
            if constant is None:
                continue
            spread = math.prod(np.broadcast_shapes(result.shape, constant.shape))
            if constant.any() and (constant.size == 1 or spread > max(constant.size, MOST_LABELS)):
                # One number stays one number, and a map of positions does not become one for each channel if that is
                # large: all channels that it is added to share a factor.
                self.join(result, result.reshape(-1)[0])
            if constant.any():
                self.constants.append(LabelledConstant(node, index, result))
        return result

    def follow_product(self, node: ir.Node) -> Labels:
        """Pass the labels of one operand on; the other one is a constant or has the factor 1."""
        constants = [constant_of(value) is not None for value in node.inputs]
        if all(constants) or (node.op_type == "Div" and not constants[1]):
            raise UnfollowedError
        computed = [self._labels(value) for value, fixed in zip(node.inputs, constants, strict=True) if not fixed]
        free = [labels for labels in computed if not self.are_fixed(labels).all()]
        if len(free) > 1:
            raise UnfollowedError("Mul of two computed tensors does not pass factors on")
        rank = len(node.outputs[0].shape) if node.outputs[0].shape is not None else 0
        labels = (free or computed)[0]
        if self._per_tensor and node.op_type == "Mul" and len(computed) == 1 and _feeds_functions(node):
            self.constants.append(LabelledConstant(node, constants.index(True), labels, inverse=True))
            return np.full((1,) * rank, _FIXED)
        return labels.reshape((1,) * (rank - labels.ndim) + labels.shape)

    def follow_clip(self, node: ir.Node) -> Labels:
        """Pass labels on if the lower bound is 0 or missing; an upper bound is remembered."""
        labels, bounds = self._labels(node.inputs[0]), bounds_of(node)
        if self._per_tensor and bounds is not None:
            finite = [index for index, bound in enumerate(bounds, 1) if abs(bound) < _UNBOUNDED]
            self.constants += [LabelledConstant(node, index, labels) for index in finite]
            return labels
        if bounds is None or bounds[0] not in (0.0, -np.inf) or bounds[1] <= 0:
            raise UnfollowedError("Clip with such bounds does not pass factors on")
        if bounds[1] < _UNBOUNDED:
            self.clips.append(LabelledClip(node, bounds[1], labels))
        return labels


_RULES: dict[str, Callable[[ChannelLabels, ir.Node], Labels]] = {
    **dict.fromkeys(_SUMS, ChannelLabels.follow_sum),
    **dict.fromkeys(("Mul", "Div"), ChannelLabels.follow_product),
    "Clip": ChannelLabels.follow_clip,
}


def _feeds_functions(node: ir.Node) -> bool:
    """Whether only functions of single elements read a product, so that its constant can undo a factor.

    Joint equalization writes such products in front of the functions of gates.
    """
    readers = [use.node for use in node.outputs[0].uses()]
    return (
        bool(readers)
        and not node.outputs[0].is_graph_output()
        and all(facts(reader).scalar is not None and not facts(reader).homogeneous for reader in readers)
    )
