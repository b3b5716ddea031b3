"""Residual streams: the sums that normalizations over channels read, with everything that writes and reads them.

::

    Gather(table) -> Add(positions) -+-> Add -+-> Add -> LayerNormalization -> ...
                                     |    ^   |    ^
                    LayerNormalization -> layers   LayerNormalization -> layers

All tensors that sums and movements of data tie together have the same basis of channels. What a normalization returns
is outside: it is in the basis of the stream that it reads, wherever its result goes.
"""

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from quantry.equalize.channels import ChannelAxis, axis_after, axis_before
from quantry.equalize.linear_layer import LinearLayer, layer_of, linear_layer
from quantry.equalize.normalization import NORMALIZATIONS, Normalization, normalization
from quantry.facts.operators import LINEAR, Family, facts
from quantry.graph.edit import constant_of

Use = tuple[ir.Node, int]
"""A node and the index of one of its inputs."""


@dataclass(eq=False)
class ResidualStream:
    """One residual stream.

    Attributes:
        channels: Number of channels.
        values: Its tensors, and the axis of each that counts channels.
        writers: Layers whose results are part of it.
        readers: Layers that read it directly.
        scales: Products of a writer's result with one constant factor per channel (LayerScale), and the writer.
        constants: Constants that are added or joined, by use: the axis of the channels.
        entries: Uses of results of normalizations that are added or joined.
        norms: Normalizations that read it.
        outputs: Tensors of it that are outputs of the model.
        sums: Number of sums of computed tensors.
    """

    channels: int
    values: dict[ir.Value, int] = field(default_factory=dict)
    writers: dict[LinearLayer, None] = field(default_factory=dict)
    readers: dict[LinearLayer, None] = field(default_factory=dict)
    scales: dict[ir.Node, LinearLayer] = field(default_factory=dict)
    constants: dict[Use, int] = field(default_factory=dict)
    entries: dict[Use, ir.Node] = field(default_factory=dict)
    norms: dict[ir.Node, Normalization] = field(default_factory=dict)
    outputs: list[ir.Value] = field(default_factory=list)
    sums: int = 0


class _Declined(Exception):  # noqa: N818  # ends the walk, which may be many calls deep
    pass


def residual_stream(start: Normalization) -> ResidualStream | str:
    """Return the stream that a normalization reads, or why it cannot be followed."""
    value = start.node.inputs[0]
    length = None if value is None or value.shape is None else value.shape[-1]
    if not isinstance(length, int):
        return _UNKNOWN
    walk = _Walk(ResidualStream(length), start.node.graph)
    try:
        walk.run(start)
    except _Declined as declined:
        return str(declined)
    return walk.stream if walk.stream.sums else "it has no residual sum"


_UNKNOWN = "a tensor of it has an unknown shape, or is not float32"


class _Walk:
    """Visits all tensors that must have the same basis."""

    def __init__(self, stream: ResidualStream, graph: ir.Graph | ir.Function | None) -> None:
        self.stream = stream
        self._graph = graph
        self._open: list[ir.Value] = []

    def run(self, start: Normalization) -> None:
        """Follow the stream in both directions, beginning with what a normalization reads."""
        self._norm(start.node, 0, _rank(start.node.inputs[0]) - 1)
        for index in start.data:
            self._operand(start.node, index, _rank(start.node.inputs[index]) - 1)
        while self._open:
            value = self._open.pop()
            axis = self.stream.values[value]
            self._backward(value, axis)
            if value.is_graph_output():
                if axis != _rank(value) - 1:
                    raise _Declined("an output of the model has its channels on another axis than the last")
                self.stream.outputs.append(value)
            for node, index in value.uses():
                self._forward(node, index, axis)

    def _visit(self, value: ir.Value, axis: int) -> None:
        visited_axis = self.stream.values.get(value)
        if visited_axis == axis:
            return
        if visited_axis is not None:
            raise _Declined("its channels are on two axes of a tensor")
        if value.dtype != ir.DataType.FLOAT or not self._has_channels(value, axis):
            raise _Declined(_UNKNOWN)
        self.stream.values[value] = axis
        self._open.append(value)

    def _has_channels(self, value: ir.Value, axis: int) -> bool:
        # Operands of lower rank than the result have no such axis.
        return value.shape is not None and 0 <= axis < len(value.shape) and value.shape[axis] == self.stream.channels

    def _operand(self, node: ir.Node, index: int, axis: int) -> bool:
        """Visit an input of a node; return whether it is computed."""
        value = node.inputs[index]
        if value is None or value.is_graph_input():
            raise _Declined("an input of the model is part of it")
        constant = constant_of(value)
        if constant is not None:
            if constant.dtype != np.float32 or not self._has_channels(value, axis):
                raise _Declined(_UNKNOWN)
            self.stream.constants[node, index] = axis
            return False
        producer = value.producer()
        if producer is None or producer.graph is not self._graph:
            raise _Declined("a node outside its graph writes it")
        if producer.op_type in NORMALIZATIONS and value is producer.outputs[0]:
            # It is moved into the basis by a product along its last axis.
            if axis != _rank(value) - 1 or not self._has_channels(value, axis):
                raise _Declined(f"{producer.op_type} runs over another axis")
            self.stream.entries[node, index] = producer
        else:
            self._visit(value, axis)
        return True

    def _backward(self, value: ir.Value, axis: int) -> None:
        producer = value.producer()
        if producer is None:
            raise _Declined("an input of the model is part of it")
        scaled = _scaled_layer(value)
        layer = layer_of(value) or scaled
        if layer is not None:
            self._writer(layer, axis)
            if layer is scaled:
                self.stream.scales[producer] = layer
        elif isinstance(normalized := normalization(producer), Normalization) and value is normalized.sum:
            self._add(producer, normalized.data, value)
        elif producer.op_type in ("Add", "Sub") and producer.domain == "":
            self._add(producer, (0, 1), value)
        elif producer.op_type in LINEAR and producer.domain == "":
            raise _Declined(f"about {producer.op_type}, which writes it: {linear_layer(producer)}")
        elif (operand := _scaled(producer)) is not None:
            self._operand(producer, operand, axis - _rank(value) + _rank(producer.inputs[operand]))
        else:
            source_axis = axis_before(producer, axis, value) if _moved(producer) else _reads(producer)
            if isinstance(source_axis, str):
                raise _Declined(source_axis)
            for index in _moved(producer):
                self._operand(producer, index, source_axis)

    def _add(self, node: ir.Node, indices: tuple[int, ...], like: ir.Value | None) -> None:
        """Visit the operands of a sum, which are aligned at their last axes."""
        assert like is not None
        # What a normalization adds may come from another one, and is then not part of the stream.
        from_end = self.stream.values.get(like, _rank(like) - 1) - _rank(like)
        computed = 0
        for index in indices:
            constant = constant_of(node.inputs[index])
            rank = _rank(node.inputs[index])
            # The vector of ones does not change, so what is added to all channels alike stays as it is.
            if constant is not None and (rank < -from_end or constant.shape[from_end] == 1):
                continue
            if rank < -from_end:
                raise _Declined(f"{node.op_type} spreads a number over the channels")
            computed += self._operand(node, index, from_end + rank)
        self.stream.sums += computed > 1

    def _writer(self, layer: LinearLayer, axis: int) -> None:
        if layer.output_axis != axis or layer.layout.groups != 1:
            raise _Declined(f"{layer.node.op_type} writes it in groups, or along another axis")
        self.stream.writers[layer] = None

    def _forward(self, node: ir.Node, index: int, axis: int) -> None:
        if node.graph is not self._graph:
            raise _Declined("a node inside control flow reads it")
        if node.op_type == "Shape" or node in self.stream.norms:
            return
        if node.op_type in NORMALIZATIONS:
            self._norm(node, index, axis)
        elif node.op_type in LINEAR and node.domain == "":
            self._reader(node, index, axis)
        elif (node.op_type in ("Add", "Sub") and node.domain == "") or _scaled(node) == index:
            self._visit(node.outputs[0], axis - _rank(node.inputs[index]) + _rank(node.outputs[0]))
        else:
            for output in filter(_is_read, node.outputs):
                position = axis_after(node, ChannelAxis(axis), output) if index in _moved(node) else _reads(node)
                if isinstance(position, str) or position.flattened:
                    raise _Declined(position if isinstance(position, str) else f"{node.op_type} mixes its channels")
                self._visit(output, position.axis)

    def _norm(self, node: ir.Node, index: int, axis: int) -> None:
        normalized = normalization(node)
        if not isinstance(normalized, Normalization):
            raise _Declined(normalized or _reads(node))
        if index not in normalized.data or axis != _rank(node.inputs[index]) - 1:
            raise _Declined(f"{node.op_type} runs over another axis")
        self.stream.norms[node] = normalized
        if len(normalized.data) > 1:
            if normalized.sum is not None and _is_read(normalized.sum):
                self._visit(normalized.sum, axis)
            self._add(node, normalized.data, node.inputs[0])

    def _reader(self, node: ir.Node, index: int, axis: int) -> None:
        layer = linear_layer(node) if index == 0 else _reads(node)
        if isinstance(layer, str):
            raise _Declined(f"about {node.op_type}, which reads it: {layer}")
        if layer.input_axis != axis or layer.layout.groups != 1:
            raise _Declined(f"{node.op_type} reads it in groups, or along another axis")
        self.stream.readers[layer] = None


def layers_after(use: Use, axis: int) -> list[LinearLayer] | None:
    """Return the layers that read a tensor, directly or moved, through one use; None if anything else reads it.

    Args:
        use: A reader of the tensor.
        axis: The axis of the tensor that counts channels.
    """
    node, index = use
    if node.op_type == "Shape":
        return []
    source = node.inputs[index]
    producer = None if source is None else source.producer()
    if producer is None or producer.graph is not node.graph:  # inside control flow, whose weights are its own
        return None
    if node.op_type in LINEAR and node.domain == "":
        layer = linear_layer(node) if index == 0 else ""
        fits = isinstance(layer, LinearLayer) and layer.input_axis == axis and layer.layout.groups == 1
        return [layer] if fits and isinstance(layer, LinearLayer) else None
    if index not in _moved(node) or node.op_type == "Concat":
        return None
    layers: list[LinearLayer] = []
    for output in filter(_is_read, node.outputs):
        position = axis_after(node, ChannelAxis(axis), output)
        if isinstance(position, str) or position.flattened:
            return None
        branches = [layers_after(use, position.axis) for use in output.uses()]
        if output.is_graph_output() or any(branch is None for branch in branches):
            return None
        layers += [layer for branch in branches if branch is not None for layer in branch]
    return layers


def _scaled(node: ir.Node) -> int | None:
    """Return the index of the operand that a node multiplies with, or divides by, a constant number; else None."""
    if node.op_type not in ("Mul", "Div") or node.domain != "":
        return None
    for index, factor_index in ((0, 1), (1, 0)):
        constant = constant_of(node.inputs[factor_index])
        if constant is not None and constant.size == 1 and (index == 0 or node.op_type == "Mul"):
            return index
    return None


def _scaled_layer(value: ir.Value) -> LinearLayer | None:
    """Return the layer whose result a Mul multiplies with one constant factor per channel, the last axis; else None."""
    node = value.producer()
    if node is None or node.op_type != "Mul" or node.domain != "" or value.is_graph_output():
        return None
    operands = [operand for operand in node.inputs if operand is not None]
    factors = [factor for operand in operands if (factor := constant_of(operand)) is not None]
    computed = [operand for operand in operands if constant_of(operand) is None]
    if len(factors) != 1 or len(computed) != 1 or len(computed[0].uses()) != 1 or computed[0].is_graph_output():
        return None
    layer = layer_of(computed[0])
    if layer is None or layer.output_axis != _rank(value) - 1:
        return None
    channels = layer.layout.outputs
    return layer if factors[0].size == channels == factors[0].shape[-1] else None


def _moved(node: ir.Node) -> range:
    """Return the indices of inputs whose positions a node copies, joins or averages, which every matrix passes."""
    row = facts(node)
    if row.family is Family.JOIN:
        return range(len(node.inputs))
    return range(1) if row.copies is not None or row.family is Family.AVERAGE else range(0)


def _reads(node: ir.Node) -> str:
    return f"{node.op_type} reads or writes it"


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _rank(value: ir.Value | None) -> int:
    return 0 if value is None or value.shape is None else len(value.shape)
