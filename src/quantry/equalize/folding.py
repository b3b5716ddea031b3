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
        part = factors[self.channels]
        array = array_of(self.value).astype(np.float64)
        shape = [1] * max(array.ndim, self.from_end)
        shape[-self.from_end] = len(part)
        store_array(self.value, (array / part.reshape(shape)).astype(np.float32))


@dataclass(frozen=True, eq=False)
class Restore:
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
        part = factors[self.channels]
        plain = []
        for node, constant in self._readers():
            if constant is None:
                plain.append(node)
                continue
            array = array_of(constant)
            store_array(constant, (array * part.reshape(array.shape)).astype(array.dtype))
        if plain:
            insert_product(self.value, plain, part, self.axis, names)

    def _readers(self) -> list[tuple[ir.Node, ir.Value | None]]:
        nodes = [node for node in readers_of(self.value) if node not in self.kept]
        return [(node, self._constant(node)) for node in nodes]

    def _constant(self, node: ir.Node) -> ir.Value | None:
        """Return the constant with one value per channel that a node multiplies with, or None."""
        if node.op_type != "Mul" or node.domain != "":
            return None
        other = next((operand for operand in node.inputs if operand is not self.value), None)
        if other is None or not is_own(other):
            return None
        shape = array_of(other).shape
        count = self.channels.stop - self.channels.start
        rank = len(self.value.shape) if self.value.shape is not None else 0
        fits = len(shape) == rank and shape[self.axis] == count == array_of(other).size
        return other if fits else None


@dataclass(frozen=True, eq=False)
class WithinBound:
    """No edit: channels pass a Clip from 0 to a bound, so dividing them must not change which values it cuts off.

    Attributes:
        bound: The upper bound.
        channels: Which of the factors are for these channels.
    """

    bound: float
    channels: slice


Edit = ScaleLayer | ScaleConstant | Restore | WithinBound


@dataclass(frozen=True, eq=False)
class Fold:
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
    def restored(self) -> tuple[Restore, ...]:
        """Edits that give readers their old values back by a multiplication."""
        return tuple(edit for edit in self.edits if isinstance(edit, Restore))

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
            if isinstance(edit, Restore):
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


def find_fold(
    value: ir.Value, readers: Collection[ir.Node], axis: int, count: int, *, bounded: bool = False
) -> Fold | str:
    """Return how to divide a tensor channel by channel for some of its readers, or why that is not possible.

    Args:
        value: The tensor.
        readers: The nodes that read it divided.
        axis: Its channel axis.
        count: Number of channels.
        bounded: Whether factors may be limited by `Fold.bounds`, for which the caller must know the largest values.
    """
    if value.shape is None:
        return "the rank of its input is not known"
    part = _ChannelRange(axis, len(value.shape), slice(0, count), bounded=bounded)
    return _fold(value, frozenset(readers), part)


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
    wanted = frozenset(readers)
    uses = [use for use in value.uses() if use.node in wanted and use.node is not node]
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


def _fold(value: ir.Value, readers: frozenset[ir.Node], part: _ChannelRange) -> Fold | str:
    producer = value.producer()
    if producer is None:
        return "it reads an input of the model"
    if value.is_graph_output() or part.depth > _DEEPEST:
        return (
            "its input is an output of the model"
            if value.is_graph_output()
            else "the operators that compute its input are too many"
        )
    others = [node for node in readers_of(value) if node not in readers]
    if any(other.graph is not producer.graph for other in others):
        return "its input is read inside a subgraph"
    found = _fold_producer(value, producer, replace(part, depth=part.depth + 1))
    if isinstance(found, str) or not others:
        return found
    return Fold((*found.edits, Restore(value, part.axis, readers, part.channels)))


def _fold_producer(value: ir.Value, producer: ir.Node, part: _ChannelRange) -> Fold | str:
    layer = layer_of(value)
    if layer is not None:
        fits = layer.output_axis == part.axis and layer.layout.outputs == part.count
        return Fold((ScaleLayer(layer, part.channels),)) if fits else f"{producer.op_type} counts other channels"
    normalized = normalization(producer)
    if isinstance(normalized, str) or (normalized is not None and value is normalized.result):
        return normalized if isinstance(normalized, str) else _fold_normalization(normalized, part)
    if producer.domain != "":
        return f"{producer.op_type} combines or moves channels"
    if producer.op_type in _FOLDS:
        return _FOLDS[producer.op_type](producer, part)
    bounds = bounds_of(producer)
    if part.bounded and bounds is not None and producer.op_type == "Clip" and bounds[0] == 0 < bounds[1] < math.inf:
        return _fold_clip(producer, bounds[1], part)
    if producer.op_type not in ("Pad", "MaxPool"):
        part = replace(part, bounded=False)
    passed = propagate_factor(producer, ChannelAxis(part.axis))
    source = producer.inputs[0]
    if passed != ChannelAxis(part.axis) or source is None or source.shape is None or len(source.shape) != part.rank:
        return passed if isinstance(passed, str) else f"{producer.op_type} combines or moves channels"
    return _fold(source, frozenset([producer]), part)


def _fold_clip(node: ir.Node, bound: float, part: _ChannelRange) -> Fold | str:
    """Divide what a Clip reads, within its bound."""
    source = node.inputs[0]
    assert source is not None
    fold = _fold(source, frozenset([node]), replace(part, bounded=False))
    return fold if isinstance(fold, str) else Fold((*fold.edits, WithinBound(bound, part.channels)))


def _fold_normalization(normalized: Normalization, part: _ChannelRange) -> Fold | str:
    """Divide what a normalization returns; the sum that a `Skip` operator returns as well is not changed."""
    constants = normalized.constants
    last = part.axis == part.rank - 1
    if not last or not all(is_own(value) and array_of(value).size == part.count for value in constants):
        return f"{normalized.node.op_type} has no constants of its own with one value per channel"
    return Fold(tuple(ScaleConstant(value, 1, part.channels) for value in constants))


def _constant_operand(node: ir.Node, value: ir.Value | None, part: _ChannelRange) -> ScaleConstant | None:
    """Return a constant with one value per channel, or one for all, that has no other reader."""
    if value is None or not is_own(value):
        return None
    from_end = part.rank - part.axis
    shape = array_of(value).shape
    if len(shape) > part.rank:
        return None
    if len(shape) >= from_end and shape[-from_end] not in (1, part.count):
        return None
    return ScaleConstant(value, from_end, part.channels, node)


def _fold_product(node: ir.Node, part: _ChannelRange) -> Fold | str:
    """Divide one operand, if possible a computed one that needs no multiplication."""
    part = replace(part, bounded=False)
    for value, other in (node.inputs, node.inputs[::-1]):
        constant = _constant_operand(node, value, part)
        if constant is None:
            continue
        # Divided, the constant needs one scale for very different channels. So it stays as it is if the other operand
        # can be divided; for an NPU it may even be a part of that operand.
        found = "" if other is None else _operand_fold(other, node, part)
        return found if isinstance(found, Fold) and not found.products else Fold((constant,))
    first, second = node.inputs
    if first is None or second is None or first is second:
        return "Mul combines channels"
    tried = [_operand_fold(value, node, part) for value in (first, second)]
    folds = [fold for fold in tried if isinstance(fold, Fold)]
    if not folds:
        return next(reason for reason in tried if isinstance(reason, str))
    # Every multiplication costs time in the deployed model.
    return min(folds, key=lambda fold: fold.products)


def _operand_fold(value: ir.Value, node: ir.Node, part: _ChannelRange) -> Fold | str:
    if value.shape is None or len(value.shape) != part.rank or value.shape[part.axis] != part.count:
        return "Mul broadcasts an operand over the channels"
    return _fold(value, frozenset([node]), part)


def _fold_sum(node: ir.Node, part: _ChannelRange) -> Fold | str:
    """Divide a computed operand and a constant one; two computed operands would both have to be divided."""
    part = replace(part, bounded=False)
    for constant, other in (node.inputs, node.inputs[::-1]):
        edit = _constant_operand(node, constant, part)
        if edit is not None and other is not None and other.shape is not None and len(other.shape) == part.rank:
            found = _fold(other, frozenset([node]), part)
            return found if isinstance(found, str) else Fold((edit, *found.edits))
    return f"{node.op_type} combines two computed tensors"


def _fold_join(node: ir.Node, whole: _ChannelRange) -> Fold | str:
    axis = node.attributes["axis"].as_int() % whole.rank
    if axis != whole.axis:
        return "Concat joins along another axis than that of the channels"
    edits: list[Edit] = []
    start = whole.channels.start
    for value in node.inputs:
        length = None if value is None or value.shape is None else value.shape[axis]
        if value is None or not isinstance(length, int):
            return "the parts of Concat are not known"
        part = replace(whole, channels=slice(start, start + length))
        found = _fold(value, frozenset([node]), part)
        if isinstance(found, str):
            return found
        edits += found.edits
        start = part.channels.stop
    changes = [edit for edit in edits if not isinstance(edit, WithinBound)]
    edited = [edit.layer.weight if isinstance(edit, ScaleLayer) else edit.value for edit in changes]
    # Its channels would be divided by two different sets of factors.
    if len(set(edited)) < len(edited):
        return "Concat joins the same tensor twice"
    return Fold(tuple(edits))


_FOLDS: dict[str, Callable[[ir.Node, _ChannelRange], Fold | str]] = {
    "Mul": _fold_product,
    "Add": _fold_sum,
    "Sub": _fold_sum,
    "Concat": _fold_join,
}
