"""The layers that must agree on the order of a tensor's channels.

::

    Conv -> Relu -> depthwise Conv -> Conv        made by one layer, carried by one, read by one
    Conv -> Add -> Conv                           made by both layers before the Add: one order for both
    Conv -> Concat -> Conv                        part of what is read
    Conv -> Add -> output of the model            no class: the order is seen from outside

The channels of a class may be put in any order, or some of them be made twice, if every layer that makes, carries or
reads them does the same.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from quantry.equalize.linear_layer import LinearLayer, linear_layer
from quantry.equalize.passage import Channels, passage
from quantry.graph.edit import constant_of
from quantry.graph.operators import LINEAR, Family, operators_where

Layers = Mapping[ir.Node, LinearLayer | str]
"""Every linear node, as a layer or as the reason why it is none."""

FUNCTIONS = operators_where(lambda row: row.operands == 1)
"""Functions of each element of their first input alone."""

_COMBINATIONS = operators_where(lambda row: row.operands > 1)
_SAME_PLACE = operators_where(lambda row: row.pools or row.family in (Family.PADDING, Family.RESIZE))


@dataclass(frozen=True)
class Place:
    """Where a tensor has the channels of a class.

    Attributes:
        axis: The axis that counts them.
        start: The first of them on that axis.
        flattened: Whether that axis counts positions inside each channel as well.
    """

    axis: int
    start: int = 0
    flattened: bool = False


@dataclass(frozen=True, eq=False)
class Reader:
    """A layer that reads the channels.

    Attributes:
        layer: The layer.
        place: Where its input has them.
    """

    layer: LinearLayer
    place: Place


@dataclass(frozen=True, eq=False)
class ChannelClass:
    """All that must agree on the order of some channels.

    Attributes:
        count: Number of channels.
        makers: Layers whose output channels they are.
        carriers: Depthwise layers that they go through.
        readers: Layers that read them.
        places: Every tensor that has them.
        rigid: Why their number cannot change, or an empty string.
    """

    count: int
    makers: tuple[LinearLayer, ...]
    carriers: tuple[LinearLayer, ...]
    readers: tuple[Reader, ...]
    places: Mapping[ir.Value, Place]
    rigid: str


def linear_layers(model: ir.Model) -> Layers:
    """Return the linear nodes of the main graph, in its order."""
    return {node: linear_layer(node) for node in model.graph if node.op_type in LINEAR and node.domain == ""}


def channel_class(layer: LinearLayer, layers: Layers) -> ChannelClass | str:
    """Return the class of a layer's output channels, or why there is none.

    Args:
        layer: The layer.
        layers: All linear nodes of the model.
    """
    results = {found.output: found for found in layers.values() if isinstance(found, LinearLayer)}
    walk = _Walk(layer, layers, results)
    reason = walk.run()
    if reason:
        return reason
    if not walk.readers:
        return "no layer reads its result"
    makers = tuple(walk.makers[node] for node in layers if node in walk.makers)
    carriers = tuple(walk.carriers[node] for node in layers if node in walk.carriers)
    return ChannelClass(layer.layout.outputs, makers, carriers, tuple(walk.readers), walk.places, walk.rigid)


@dataclass
class _Walk:
    """Follows channels in both directions until all ends are layers."""

    start: LinearLayer
    layers: Layers
    results: Mapping[ir.Value, LinearLayer]
    makers: dict[ir.Node, LinearLayer] = field(default_factory=dict)
    carriers: dict[ir.Node, LinearLayer] = field(default_factory=dict)
    readers: list[Reader] = field(default_factory=list)
    places: dict[ir.Value, Place] = field(default_factory=dict)
    rigid: str = ""
    _open: deque[ir.Value] = field(default_factory=deque)

    def run(self) -> str:
        reason = self._reach(self.start.output, Place(self.start.output_axis))
        while self._open and not reason:
            value = self._open.popleft()
            reason = self._before(value, self.places[value]) or self._behind(value, self.places[value])
        return reason

    def _reach(self, value: ir.Value, place: Place) -> str:
        if value in self.places:
            return "" if self.places[value] == place else "its channels are at two places of one tensor"
        if value.is_graph_output() or value.is_graph_input():
            return "its channels are an input or output of the model"
        if value.producer() is None or value.shape is None:
            return "its channels are combined with a constant, or with a tensor of unknown rank"
        self.places[value] = place
        self._open.append(value)
        return ""

    def _whole(self, value: ir.Value, place: Place) -> bool:
        """Whether a tensor has just these channels on their axis."""
        shape = value.shape
        known = shape is not None and place.axis < len(shape) and shape[place.axis] == self.start.layout.outputs
        return known and place.start == 0 and not place.flattened

    def _before(self, value: ir.Value, place: Place) -> str:
        """Take in what makes a tensor."""
        made = self.results.get(value)
        node = value.producer()
        assert node is not None
        if made is not None:
            return self._made(made, place)
        if node.graph is not self.start.node.graph:
            return "its channels come from another graph"
        if node.op_type in _COMBINATIONS:
            return self._combined(node, place)
        source = node.inputs[0] if node.inputs else None
        if source is None or node.domain != "":
            return f"{node.op_type} makes its channels"
        if node.op_type in FUNCTIONS or (node.op_type in _SAME_PLACE and self._whole(value, place)):
            return self._reach(source, place)
        # What has channels of its own somewhere else was come upon from its input.
        if any(part in self.places for part in node.inputs if part is not None):
            return ""
        return f"{node.op_type} makes or moves its channels"

    def _made(self, layer: LinearLayer, place: Place) -> str:
        if place != Place(layer.output_axis) or layer.layout.outputs != self.start.layout.outputs:
            return f"{layer.node.op_type} makes channels along another axis"
        if layer.layout.is_depthwise and layer.layout.groups > 1:
            self.carriers[layer.node] = layer
            source = layer.node.inputs[0]
            assert source is not None
            return self._reach(source, Place(layer.input_axis))
        if layer.layout.groups > 1:
            return "a convolution with groups mixes its channels by their order"
        self.makers[layer.node] = layer
        return ""

    def _combined(self, node: ir.Node, place: Place) -> str:
        output = node.outputs[0]
        if not self._whole(output, place):
            return f"{node.op_type} combines it with a part of a tensor"
        rank = 0 if output.shape is None else len(output.shape)
        for operand in node.inputs:
            constant = constant_of(operand)
            if constant is not None and constant.size == 1:
                continue
            if operand is None or operand.shape is None or len(operand.shape) != rank:
                return f"{node.op_type} combines it with a tensor of another rank"
            if not self._whole(operand, place):
                if operand.shape[place.axis] == 1:
                    continue
                return f"{node.op_type} combines it with a tensor of other channels"
            reason = self._reach(operand, place)
            if reason:
                return reason
        return ""

    def _behind(self, value: ir.Value, place: Place) -> str:
        """Take in what reads a tensor."""
        for node, index in value.uses():
            reason = self._read(node, index, value, place)
            if reason:
                return reason
        return ""

    def _read(self, node: ir.Node, index: int, value: ir.Value, place: Place) -> str:
        if node.graph is not self.start.node.graph or node.domain != "":
            return f"{node.op_type} needs the order of its channels"
        if node in self.layers:
            return self._read_by_layer(node, index, value, place)
        if node.op_type in _COMBINATIONS or (node.op_type in FUNCTIONS and index == 0):
            return self._reach(node.outputs[0], place)
        if node.op_type == "Concat":
            return self._joined(node, index, place)
        if index != 0:
            return f"{node.op_type} needs the order of its channels"
        passed = passage(node, Channels(place.axis, place.flattened))
        if isinstance(passed, str):
            return f"{node.op_type} needs the order of its channels"
        if passed.flattened and place.start:
            return f"{node.op_type} flattens them with other channels"
        if node.op_type == "Reshape" or (node.op_type == "Resize" and len(node.inputs) > 3):
            self.rigid = f"{node.op_type} is told their number"
        return self._reach(node.outputs[0], replace(place, axis=passed.axis, flattened=passed.flattened))

    def _read_by_layer(self, node: ir.Node, index: int, value: ir.Value, place: Place) -> str:
        layer = self.layers[node]
        if isinstance(layer, str):
            return f"of a layer behind it: {layer}"
        if index != 0 or place.axis != layer.input_axis:
            return f"{node.op_type} reads its channels along another axis"
        if layer.layout.is_depthwise and layer.layout.groups > 1:
            if not self._whole(value, place):
                return "a depthwise convolution reads them with other channels"
            self.carriers[node] = layer
            return self._reach(layer.output, Place(layer.output_axis))
        if layer.layout.groups > 1:
            return "a convolution with groups reads its channels by their order"
        count = self.start.layout.outputs
        if place.flattened and (layer.layout.inputs % count or place.start):
            return f"{node.op_type} reads its channels along another axis"
        self.readers.append(Reader(layer, place))
        return ""

    def _joined(self, node: ir.Node, index: int, place: Place) -> str:
        output = node.outputs[0]
        rank = 0 if output.shape is None else len(output.shape)
        if not rank or node.attributes["axis"].as_int() % rank != place.axis or place.flattened:
            return "Concat joins along another axis than the channels'"
        before = [part.shape[place.axis] if part is not None and part.shape else None for part in node.inputs[:index]]
        if not all(isinstance(length, int) for length in before):
            return "the parts of Concat are not known"
        start = sum(length for length in before if isinstance(length, int))
        if len(node.inputs) == 1:
            return "Concat joins nothing"
        return self._reach(output, replace(place, start=place.start + start))
