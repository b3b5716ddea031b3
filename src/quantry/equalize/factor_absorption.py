r"""Divides channels of a tensor by moving the factors into the constants that compute it.

::

    Conv -> Relu -> y                         output weights and bias of the Conv
    LayerNormalization -> y                   its scale and bias
    Mul(a, constant) -> y                     what computes a, else the constant
    Mul(a, b) -> y                            what computes one of the two
    Conv -> x -> Sigmoid -> Mul(x, .) -> y    the Conv, and the Sigmoid reads x times the factors:

              x ----------> Mul -> y
               \-> Mul(s) -> Sigmoid -^

No other reader in the graph sees a change.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from quantry.equalize.channels import ChannelAxis, propagate_factor
from quantry.equalize.linear_layer import LinearLayer, array_of, is_own, layer_of, scaled_bias, store_array
from quantry.equalize.normalization import Normalization, normalization
from quantry.graph.edit import FreshNames, bounds_of
from quantry.graph.weights import new_initializer

_DEEPEST = 12
"""Longest path of operators that is followed; longer ones cost time and never occurred."""


@dataclass(frozen=True, eq=False)
class ScaleLayer:
    """Divide the output channels of a layer."""

    layer: LinearLayer
    channels: slice

    def apply(self, factors: np.ndarray) -> None:
        """Edit weight and bias."""
        inverse = np.ones(self.layer.layout.outputs)
        inverse[:] = 1.0 / factors[self.channels]
        weight, bias = self.layer.weight, self.layer.bias
        store_array(weight, self.layer.layout.scaled(array_of(weight), inverse, np.ones(self.layer.layout.inputs)))
        if bias is not None:
            store_array(bias, scaled_bias(array_of(bias), inverse))


@dataclass(frozen=True, eq=False)
class ScaleConstant:
    """Divide a constant along an axis, which is counted from its last one.

    Attributes:
        value: The constant.
        from_end: The axis, 1 for the last one.
        channels: Which of the factors are for this constant.
        reader: The Mul or Add that reads it with the type of activations; None where it stays float.
    """

    value: ir.Value
    from_end: int
    channels: slice
    reader: ir.Node | None = None

    def apply(self, factors: np.ndarray) -> None:
        """Edit the constant; a single number becomes one value per channel."""
        divisors = factors[self.channels]
        array = array_of(self.value).astype(np.float64)
        shape = [1] * max(array.ndim, self.from_end)
        shape[-self.from_end] = len(divisors)
        store_array(self.value, (array / divisors.reshape(shape)).astype(np.float32))


@dataclass(frozen=True, eq=False)
class CompensatingMul:
    """Multiply a tensor with the factors again for those of its readers that must not see it divided."""

    value: ir.Value
    axis: int
    kept: frozenset[ir.Node]
    channels: slice

    @property
    def constants(self) -> tuple[ir.Value, ...]:
        """Constants of readers that already multiply with one value per channel."""
        return tuple(constant for _, constant in self._readers() if constant is not None)

    @property
    def inserts(self) -> bool:
        """Whether a multiplication must be inserted."""
        return any(constant is None for _, constant in self._readers())

    def apply(self, factors: np.ndarray, names: FreshNames) -> None:
        """Insert a multiplication, or put the factors into those that are already there."""
        multipliers = factors[self.channels]
        plain = []
        for node, constant in self._readers():
            if constant is None:
                plain.append(node)
                continue
            array = array_of(constant)
            store_array(constant, (array * multipliers.reshape(array.shape)).astype(array.dtype))
        if plain:
            insert_product(self.value, plain, multipliers, self.axis, names)

    def _readers(self) -> list[tuple[ir.Node, ir.Value | None]]:
        nodes = [node for node in readers_of(self.value) if node not in self.kept]
        return [(node, self._constant(node)) for node in nodes]

    def _constant(self, node: ir.Node) -> ir.Value | None:
        """Return the constant with one value per channel that a node multiplies with, or None."""
        if node.op_type != "Mul" or node.domain != "":
            return None
        factor = next((operand for operand in node.inputs if operand is not self.value), None)
        if factor is None or not is_own(factor):
            return None
        shape = array_of(factor).shape
        count = self.channels.stop - self.channels.start
        rank = len(self.value.shape) if self.value.shape is not None else 0
        fits = len(shape) == rank and shape[self.axis] == count == array_of(factor).size
        return factor if fits else None


@dataclass(frozen=True, eq=False)
class WithinBound:
    """No edit: channels pass a Clip from 0 to a bound, so dividing them must not change which values it cuts off.

    Attributes:
        bound: The upper bound.
        channels: Which of the factors are for these channels.
    """

    bound: float
    channels: slice


Edit = ScaleLayer | ScaleConstant | CompensatingMul | WithinBound


@dataclass(frozen=True, eq=False)
class FactorAbsorption:
    """The edits that divide the channels of a tensor.

    Attributes:
        edits: The edits.
    """

    edits: tuple[Edit, ...]

    @property
    def products(self) -> int:
        """Number of multiplications that are inserted."""
        return sum(edit.inserts for edit in self.restored)

    @property
    def restored(self) -> tuple[CompensatingMul, ...]:
        """Edits that give readers their old values back by a multiplication."""
        return tuple(edit for edit in self.edits if isinstance(edit, CompensatingMul))

    @property
    def rounded(self) -> tuple[ScaleConstant, ...]:
        """Constants that are divided and have one scale for all channels."""
        return tuple(edit for edit in self.edits if isinstance(edit, ScaleConstant) and edit.reader is not None)

    @property
    def makers(self) -> tuple[ScaleLayer, ...]:
        """The layers that are divided."""
        return tuple(edit for edit in self.edits if isinstance(edit, ScaleLayer))

    @property
    def bounds(self) -> tuple[WithinBound, ...]:
        """Bounds on the divided channels."""
        return tuple(edit for edit in self.edits if isinstance(edit, WithinBound))

    def apply(self, factors: np.ndarray, names: FreshNames) -> None:
        """Divide by one factor per channel."""
        for edit in self.edits:
            if isinstance(edit, CompensatingMul):
                edit.apply(factors, names)
            elif not isinstance(edit, WithinBound):
                edit.apply(factors)


@dataclass(frozen=True)
class _ChannelRange:
    """Channels of one tensor: its channel axis and rank, and which of the factors are for these channels.

    Values that a Clip has bounded may pass it divided if `bounded` is set. It is cleared where channels change their
    largest value on the way.
    """

    axis: int
    rank: int
    channels: slice
    depth: int = 0
    bounded: bool = False

    @property
    def count(self) -> int:
        return int(self.channels.stop - self.channels.start)


def absorb_factors(
    value: ir.Value, readers: Collection[ir.Node], axis: int, count: int, *, bounded: bool = False
) -> FactorAbsorption | str:
    """Return how to divide a tensor channel by channel for some of its readers, or why that is not possible.

    Args:
        value: The tensor.
        readers: The nodes that read it divided.
        axis: Its channel axis.
        count: Number of channels.
        bounded: Whether `FactorAbsorption.bounds` may limit factors, for which the caller must know the largest values.
    """
    if value.shape is None:
        return "the rank of its input is not known"
    channels = _ChannelRange(axis, len(value.shape), slice(0, count), bounded=bounded)
    return _fold(value, frozenset(readers), channels)


def readers_of(value: ir.Value) -> list[ir.Node]:
    """Return the nodes that read the values of a tensor, not only its shape."""
    return [use.node for use in value.uses() if use.node.op_type not in ("Shape", "Size")]


def insert_product(
    value: ir.Value, readers: Collection[ir.Node], factors: np.ndarray, axis: int, names: FreshNames
) -> None:
    """Insert a multiplication with one factor per channel between a tensor and some of its readers.

    Args:
        value: The tensor.
        readers: Nodes in the same graph.
        factors: (channels,).
        axis: Channel axis of the tensor.
        names: Unused names.
    """
    assert value.shape is not None
    shape = [1] * len(value.shape)
    shape[axis] = len(factors)
    constant = new_initializer(names.value(f"{value.name}_factors"), factors.astype(np.float32).reshape(shape))
    output = ir.Value(name=names.value(f"{value.name}_scaled"), type=value.type, shape=value.shape)
    node = ir.Node("", "Mul", [value, constant], outputs=[output], name=names.node(f"{value.name}_scale"))
    selected = frozenset(readers)
    uses = [use for use in value.uses() if use.node in selected and use.node is not node]
    graph = uses[0].node.graph
    assert isinstance(graph, ir.Graph)
    graph.register_initializer(constant)
    producer = value.producer()
    # Directly after the producer, so that every reader comes later.
    if producer is not None:
        graph.insert_after(producer, node)
    else:
        graph.insert_before(graph[0], node)
    for use in uses:
        use.node.replace_input_with(use.idx, output)


def _fold(value: ir.Value, readers: frozenset[ir.Node], channels: _ChannelRange) -> FactorAbsorption | str:
    producer = value.producer()
    if producer is None:
        return "it reads an input of the model"
    if value.is_graph_output() or channels.depth > _DEEPEST:
        return (
            "its input is an output of the model"
            if value.is_graph_output()
            else "the operators that compute its input are too many"
        )
    unscaled = [node for node in readers_of(value) if node not in readers]
    if any(reader.graph is not producer.graph for reader in unscaled):
        return "its input is read inside a subgraph"
    fold = _fold_producer(value, producer, replace(channels, depth=channels.depth + 1))
    if isinstance(fold, str) or not unscaled:
        return fold
    return FactorAbsorption((*fold.edits, CompensatingMul(value, channels.axis, readers, channels.channels)))


def _fold_producer(value: ir.Value, producer: ir.Node, channels: _ChannelRange) -> FactorAbsorption | str:
    layer = layer_of(value)
    if layer is not None:
        fits = layer.output_axis == channels.axis and layer.layout.outputs == channels.count
        return (
            FactorAbsorption((ScaleLayer(layer, channels.channels),))
            if fits
            else f"{producer.op_type} counts other channels"
        )
    normalized = normalization(producer)
    if isinstance(normalized, str) or (normalized is not None and value is normalized.result):
        return normalized if isinstance(normalized, str) else _fold_normalization(normalized, channels)
    if producer.domain != "":
        return f"{producer.op_type} combines or moves channels"
    if producer.op_type in _FOLDS:
        return _FOLDS[producer.op_type](producer, channels)
    bounds = bounds_of(producer)
    if channels.bounded and bounds is not None and producer.op_type == "Clip" and bounds[0] == 0 < bounds[1] < math.inf:
        return _fold_clip(producer, bounds[1], channels)
    if producer.op_type not in ("Pad", "MaxPool"):
        channels = replace(channels, bounded=False)
    passed = propagate_factor(producer, ChannelAxis(channels.axis))
    source = producer.inputs[0]
    if (
        passed != ChannelAxis(channels.axis)
        or source is None
        or source.shape is None
        or len(source.shape) != channels.rank
    ):
        return passed if isinstance(passed, str) else f"{producer.op_type} combines or moves channels"
    return _fold(source, frozenset([producer]), channels)


def _fold_clip(node: ir.Node, bound: float, channels: _ChannelRange) -> FactorAbsorption | str:
    """Divide what a Clip reads, within its bound."""
    source = node.inputs[0]
    assert source is not None
    fold = _fold(source, frozenset([node]), replace(channels, bounded=False))
    return fold if isinstance(fold, str) else FactorAbsorption((*fold.edits, WithinBound(bound, channels.channels)))


def _fold_normalization(normalized: Normalization, channels: _ChannelRange) -> FactorAbsorption | str:
    """Divide what a normalization returns; the sum that a `Skip` operator returns as well is not changed."""
    constants = normalized.constants
    last = channels.axis == channels.rank - 1
    if not last or not all(is_own(value) and array_of(value).size == channels.count for value in constants):
        return f"{normalized.node.op_type} has no constants of its own with one value per channel"
    return FactorAbsorption(tuple(ScaleConstant(value, 1, channels.channels) for value in constants))


def _constant_operand(node: ir.Node, value: ir.Value | None, channels: _ChannelRange) -> ScaleConstant | None:
    """Return a constant with one value per channel, or one for all, that has no other reader."""
    if value is None or not is_own(value):
        return None
    from_end = channels.rank - channels.axis
    shape = array_of(value).shape
    if len(shape) > channels.rank:
        return None
    if len(shape) >= from_end and shape[-from_end] not in (1, channels.count):
        return None
    return ScaleConstant(value, from_end, channels.channels, node)


def _fold_product(node: ir.Node, channels: _ChannelRange) -> FactorAbsorption | str:
    """Divide one operand, if possible a computed one that needs no multiplication."""
    channels = replace(channels, bounded=False)
    for value, computed in (node.inputs, node.inputs[::-1]):
        constant = _constant_operand(node, value, channels)
        if constant is None:
            continue
        # Divided, the constant needs one scale for very different channels. So it stays as it is if the other operand
        # can be divided; for an NPU it may even be a part of that operand.
        absorption = "" if computed is None else _operand_fold(computed, node, channels)
        is_free = isinstance(absorption, FactorAbsorption) and not absorption.products
        return absorption if is_free else FactorAbsorption((constant,))
    first, second = node.inputs
    if first is None or second is None or first is second:
        return "Mul combines channels"
    tried = [_operand_fold(value, node, channels) for value in (first, second)]
    folds = [fold for fold in tried if isinstance(fold, FactorAbsorption)]
    if not folds:
        return next(reason for reason in tried if isinstance(reason, str))
    # Every multiplication costs time in the deployed model.
    return min(folds, key=lambda fold: fold.products)


def _operand_fold(value: ir.Value, node: ir.Node, channels: _ChannelRange) -> FactorAbsorption | str:
    if value.shape is None or len(value.shape) != channels.rank or value.shape[channels.axis] != channels.count:
        return "Mul broadcasts an operand over the channels"
    return _fold(value, frozenset([node]), channels)


def _fold_sum(node: ir.Node, channels: _ChannelRange) -> FactorAbsorption | str:
    """Divide a computed operand and a constant one; two computed operands would both have to be divided."""
    channels = replace(channels, bounded=False)
    for constant, computed in (node.inputs, node.inputs[::-1]):
        edit = _constant_operand(node, constant, channels)
        if (
            edit is not None
            and computed is not None
            and computed.shape is not None
            and len(computed.shape) == channels.rank
        ):
            fold = _fold(computed, frozenset([node]), channels)
            return fold if isinstance(fold, str) else FactorAbsorption((edit, *fold.edits))
    return f"{node.op_type} combines two computed tensors"


def _fold_join(node: ir.Node, joined: _ChannelRange) -> FactorAbsorption | str:
    axis = node.attributes["axis"].as_int() % joined.rank
    if axis != joined.axis:
        return "Concat joins along another axis than that of the channels"
    edits: list[Edit] = []
    start = joined.channels.start
    for value in node.inputs:
        length = None if value is None or value.shape is None else value.shape[axis]
        if value is None or not isinstance(length, int):
            return "the parts of Concat are not known"
        channels = replace(joined, channels=slice(start, start + length))
        fold = _fold(value, frozenset([node]), channels)
        if isinstance(fold, str):
            return fold
        edits += fold.edits
        start = channels.channels.stop
    changes = [edit for edit in edits if not isinstance(edit, WithinBound)]
    edited = [edit.layer.weight if isinstance(edit, ScaleLayer) else edit.value for edit in changes]
    # Its channels would be divided by two different sets of factors.
    if len(set(edited)) < len(edited):
        return "Concat joins the same tensor twice"
    return FactorAbsorption(tuple(edits))


_FOLDS: dict[str, Callable[[ir.Node, _ChannelRange], FactorAbsorption | str]] = {
    "Mul": _fold_product,
    "Add": _fold_sum,
    "Sub": _fold_sum,
    "Concat": _fold_join,
}
