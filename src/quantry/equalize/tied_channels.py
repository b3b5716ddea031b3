"""Layers that must agree on the order of a tensor's channels, and how to reorder these channels.

::

    Conv -> Relu -> depthwise Conv -> Conv        computed by one layer, passed on by one, read by one
    Conv -> Add -> Conv                           computed by both layers in front of the Add: one order for both
    Conv -> Concat -> Conv                        a part of what is read
    Conv -> Add -> output of the model            no class: the user sees the order

The channels of a class can be put in any order if every layer that computes them, passes them on or reads them does the
same.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from quantry.equalize.channels import ChannelAxis, axis_after
from quantry.equalize.linear_layer import LinearLayer, array_of, linear_layer, store_array, taken_bias
from quantry.facts.operators import LINEAR, Family, operators_where
from quantry.graph.edit import constant_of

Layers = Mapping[ir.Node, LinearLayer | str]
"""Every linear node, as a layer or as the reason why its channels cannot be changed."""

FUNCTIONS = operators_where(lambda row: row.operands == 1)
"""Functions of single elements of their first input."""

_COMBINATIONS = operators_where(lambda row: row.operands > 1)
_SAME_PLACE = operators_where(lambda row: row.pools or row.family in (Family.PADDING, Family.RESIZE))


@dataclass(frozen=True)
class ChannelPosition:
    """Where a tensor has the channels of a class.

    Attributes:
        axis: The axis that counts them.
        start: Index of the first of them on that axis.
        flattened: Whether that axis also counts the elements inside each channel.
    """

    axis: int
    start: int = 0
    flattened: bool = False


@dataclass(frozen=True, eq=False)
class Reader:
    """A layer that reads the channels.

    Attributes:
        layer: The layer.
        position: Where its input has them.
    """

    layer: LinearLayer
    position: ChannelPosition


@dataclass(frozen=True, eq=False)
class TiedChannels:
    """Everything that must agree on the order of some channels.

    Attributes:
        count: Number of channels.
        makers: Layers that compute them.
        carriers: Depthwise layers that pass them on.
        readers: Layers that read them.
    """

    count: int
    makers: tuple[LinearLayer, ...]
    carriers: tuple[LinearLayer, ...]
    readers: tuple[Reader, ...]


def linear_layers(model: ir.Model) -> Layers:
    """Return the linear nodes of the main graph, in its order."""
    return {node: linear_layer(node) for node in model.graph if node.op_type in LINEAR and node.domain == ""}


def tied_channels(layer: LinearLayer, layers: Layers) -> TiedChannels | str:
    """Return the class of a layer's output channels, or why they cannot be reordered.

    Args:
        layer: The layer.
        layers: All linear nodes of the model.
    """
    results = {result.output: result for result in layers.values() if isinstance(result, LinearLayer)}
    walk = _Walk(layer, layers, results)
    reason = walk.run()
    if reason:
        return reason
    if not walk.readers:
        return "no layer reads its result"
    makers = tuple(walk.makers[node] for node in layers if node in walk.makers)
    carriers = tuple(walk.carriers[node] for node in layers if node in walk.carriers)
    return TiedChannels(layer.layout.outputs, makers, carriers, tuple(walk.readers))


@dataclass
class _Walk:
    """Follows channels in both directions until every end is a layer."""

    start: LinearLayer
    layers: Layers
    results: Mapping[ir.Value, LinearLayer]
    makers: dict[ir.Node, LinearLayer] = field(default_factory=dict)
    carriers: dict[ir.Node, LinearLayer] = field(default_factory=dict)
    readers: list[Reader] = field(default_factory=list)
    positions: dict[ir.Value, ChannelPosition] = field(default_factory=dict)
    _open: deque[ir.Value] = field(default_factory=deque)

    def run(self) -> str:
        reason = self._reach(self.start.output, ChannelPosition(self.start.output_axis))
        while self._open and not reason:
            value = self._open.popleft()
            position = self.positions[value]
            reason = self._visit_producer(value, position)
            for node, index in value.uses():
                reason = reason or self._read(node, index, value, position)
        return reason

    def _reach(self, value: ir.Value, position: ChannelPosition) -> str:
        if value in self.positions:
            return "" if self.positions[value] == position else "one tensor has its channels at two positions"
        if value.is_graph_output() or value.is_graph_input():
            return "its channels are an input or output of the model"
        if value.producer() is None or value.shape is None:
            return "its channels are combined with a constant, or with a tensor of unknown rank"
        self.positions[value] = position
        self._open.append(value)
        return ""

    def _whole(self, value: ir.Value, position: ChannelPosition) -> bool:
        """Whether a tensor has these channels and no others on their axis."""
        shape = value.shape
        is_full = shape is not None and position.axis < len(shape) and shape[position.axis] == self.start.layout.outputs
        return is_full and position.start == 0 and not position.flattened

    def _visit_producer(self, value: ir.Value, position: ChannelPosition) -> str:
        """Add what computes a tensor to the class."""
        layer = self.results.get(value)
        node = value.producer()
        assert node is not None
        if layer is not None:
            return self._made(layer, position)
        if node.graph is not self.start.node.graph:
            return "its channels come from another graph"
        if node.op_type in _COMBINATIONS:
            return self._combined(node, position)
        source = node.inputs[0] if node.inputs else None
        if source is None or node.domain != "":
            return f"{node.op_type} computes its channels"
        if node.op_type in FUNCTIONS or (node.op_type in _SAME_PLACE and self._whole(value, position)):
            return self._reach(source, position)
        # The walk reached this tensor from an input of the node, so the node is part of the class already.
        if any(operand in self.positions for operand in node.inputs if operand is not None):
            return ""
        return f"{node.op_type} computes or moves its channels"

    def _made(self, layer: LinearLayer, position: ChannelPosition) -> str:
        if position != ChannelPosition(layer.output_axis) or layer.layout.outputs != self.start.layout.outputs:
            return f"{layer.node.op_type} computes channels along another axis"
        # A depthwise layer keeps the order of its channels, so the walk continues in front of it.
        if layer.layout.is_depthwise and layer.layout.groups > 1:
            self.carriers[layer.node] = layer
            source = layer.node.inputs[0]
            assert source is not None
            return self._reach(source, ChannelPosition(layer.input_axis))
        if layer.layout.groups > 1:
            return "a convolution with groups mixes its channels by their order"
        self.makers[layer.node] = layer
        return ""

    def _combined(self, node: ir.Node, position: ChannelPosition) -> str:
        output = node.outputs[0]
        if not self._whole(output, position):
            return f"{node.op_type} combines it with a part of a tensor"
        rank = 0 if output.shape is None else len(output.shape)
        for operand in node.inputs:
            # A scalar constant does not depend on the order of channels.
            constant = constant_of(operand)
            if constant is not None and constant.size == 1:
                continue
            if operand is None or operand.shape is None or len(operand.shape) != rank:
                return f"{node.op_type} combines it with a tensor of another rank"
            if not self._whole(operand, position):
                # Broadcast over the channels, so it has none of its own.
                if operand.shape[position.axis] == 1:
                    continue
                return f"{node.op_type} combines it with a tensor of other channels"
            reason = self._reach(operand, position)
            if reason:
                return reason
        return ""

    def _read(self, node: ir.Node, index: int, value: ir.Value, position: ChannelPosition) -> str:
        """Add what reads a tensor to the class."""
        if node.graph is not self.start.node.graph or node.domain != "":
            return f"{node.op_type} needs the order of its channels"
        if node in self.layers:
            return self._read_by_layer(node, index, value, position)
        if node.op_type in _COMBINATIONS or (node.op_type in FUNCTIONS and index == 0):
            return self._reach(node.outputs[0], position)
        if node.op_type == "Concat":
            return self._joined(node, index, position)
        if index != 0:
            return f"{node.op_type} needs the order of its channels"
        passed = axis_after(node, ChannelAxis(position.axis, position.flattened))
        if isinstance(passed, str):
            return f"{node.op_type} needs the order of its channels"
        if passed.flattened and position.start:
            return f"{node.op_type} flattens them with other channels"
        return self._reach(node.outputs[0], replace(position, axis=passed.axis, flattened=passed.flattened))

    def _read_by_layer(self, node: ir.Node, index: int, value: ir.Value, position: ChannelPosition) -> str:
        layer = self.layers[node]
        if isinstance(layer, str):
            return f"about a layer after it: {layer}"
        if index != 0 or position.axis != layer.input_axis:
            return f"{node.op_type} reads its channels along another axis"
        if layer.layout.is_depthwise and layer.layout.groups > 1:
            if not self._whole(value, position):
                return "a depthwise convolution reads them with other channels"
            self.carriers[node] = layer
            return self._reach(layer.output, ChannelPosition(layer.output_axis))
        if layer.layout.groups > 1:
            return "a convolution with groups reads its channels by their order"
        count = self.start.layout.outputs
        if position.flattened and (layer.layout.inputs % count or position.start):
            return f"{node.op_type} reads its channels along another axis"
        self.readers.append(Reader(layer, position))
        return ""

    def _joined(self, node: ir.Node, index: int, position: ChannelPosition) -> str:
        output = node.outputs[0]
        rank = 0 if output.shape is None else len(output.shape)
        if not rank or node.attributes["axis"].as_int() % rank != position.axis or position.flattened:
            return "Concat joins along another axis than that of the channels"
        lengths = [
            operand.shape[position.axis] if operand is not None and operand.shape else None
            for operand in node.inputs[:index]
        ]
        if not all(isinstance(length, int) for length in lengths):
            return "the parts of Concat are not known"
        start = sum(length for length in lengths if isinstance(length, int))
        # A Concat of one tensor is an identity that the prepare stage removes, unless an output needs it.
        if len(node.inputs) == 1:
            return "Concat joins nothing"
        return self._reach(output, replace(position, start=position.start + start))


def reorder(channels: TiedChannels, order: np.ndarray) -> None:
    """Reorder the channels of a class, by editing all its layers; the model computes the same.

    Args:
        channels: The class.
        order: (count,) old indices of the new channels.
    """
    for layer in (*channels.makers, *channels.carriers):
        store_array(layer.weight, layer.layout.taken(array_of(layer.weight), order, None))
        if layer.bias is not None:
            store_array(layer.bias, taken_bias(array_of(layer.bias), order, channels.count))
    for reader in channels.readers:
        layer = reader.layer
        inputs = _input_order(reader.position, order, layer.layout.inputs)
        store_array(layer.weight, layer.layout.taken(array_of(layer.weight), None, inputs))


def _input_order(position: ChannelPosition, order: np.ndarray, inputs: int) -> np.ndarray:
    """Return old indices of a reading layer's new inputs."""
    if position.flattened:
        inner = inputs // len(order)
        result: np.ndarray = (order[:, None] * inner + np.arange(inner)).reshape(-1)
        return result
    numbers = np.arange(inputs)
    numbers[position.start : position.start + len(order)] = position.start + order
    return numbers


def energies(channels: TiedChannels, maker: LinearLayer) -> np.ndarray:
    """Return which part of a channel's mean square reaches the layers that read it, (count,).

    Depthwise layers in between are assumed to be those that come later in the class.

    Args:
        channels: The class.
        maker: The layer that the channels come from, one of the makers or carriers.
    """
    total = np.zeros(channels.count)
    for reader in channels.readers:
        layout, position = reader.layer.layout, reader.position
        weight = layout.view(np.ascontiguousarray(array_of(reader.layer.weight)))[0].astype(np.float64)
        square = (weight**2).sum(axis=(0, 2))
        if not position.flattened:
            square = square[position.start : position.start + channels.count]
        total += square.reshape(channels.count, -1).sum(axis=1)
    later = channels.carriers
    if maker in later:
        later = later[later.index(maker) + 1 :]
    for carrier in later:
        weight = array_of(carrier.weight).astype(np.float64).reshape(channels.count, -1)
        total *= (weight**2).sum(axis=1)
    return total
