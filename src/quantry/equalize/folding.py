r"""Divides channels of a tensor by putting the factors into what makes it.

::

    Conv -> Relu -> y                         the Conv's output weights and bias
    LayerNormalization -> y                   its scale and bias
    Mul(a, constant) -> y                     the constant
    Mul(a, b) -> y                            whatever makes one of the two
    Conv -> x -> Sigmoid -> Mul(x, .) -> y    the Conv, and the Sigmoid reads x times the factors:

              x ----------> Mul -> y
               \-> Mul(s) -> Sigmoid -^

Every change keeps what the rest of the graph sees.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from quantry.equalize.channel_layout import scaled_bias
from quantry.equalize.linear_layer import LinearLayer, array_of, is_own, linear_layer
from quantry.equalize.passage import Channels, passage
from quantry.graph.edit import FreshNames
from quantry.graph.operators import LINEAR
from quantry.graph.weights import new_initializer, tensor_from_array

_DEEPEST = 12
"""Operators that are walked through at most."""


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
        _store(weight, self.layer.layout.scaled(array_of(weight), inverse, np.ones(self.layer.layout.inputs)))
        if bias is not None:
            _store(bias, scaled_bias(array_of(bias), inverse))


@dataclass(frozen=True, eq=False)
class ScaleConstant:
    """Divide a constant operand along an axis counted from its end."""

    value: ir.Value
    from_end: int
    channels: slice

    def apply(self, factors: np.ndarray) -> None:
        """Edit the constant; one that was the same for all channels gets a value for each."""
        part = factors[self.channels]
        array = array_of(self.value).astype(np.float64)
        shape = [1] * max(array.ndim, self.from_end)
        shape[-self.from_end] = len(part)
        _store(self.value, (array / part.reshape(shape)).astype(np.float32))


@dataclass(frozen=True, eq=False)
class Restore:
    """Multiply a tensor with the factors again for all but some of its readers."""

    value: ir.Value
    axis: int
    kept: frozenset[ir.Node]
    channels: slice

    @property
    def constants(self) -> tuple[ir.Value, ...]:
        """The operands of readers that multiply with one value for each channel already."""
        return tuple(constant for _, constant in self._readers() if constant is not None)

    @property
    def inserts(self) -> bool:
        """Whether some reader needs a multiplication of its own."""
        return any(constant is None for _, constant in self._readers())

    def apply(self, factors: np.ndarray, names: FreshNames) -> None:
        """Insert the multiplication, or let those that are there do it."""
        part = factors[self.channels]
        plain = []
        for node, constant in self._readers():
            if constant is None:
                plain.append(node)
                continue
            array = array_of(constant)
            _store(constant, (array * part.reshape(array.shape)).astype(array.dtype))
        if plain:
            insert_product(self.value, plain, part, self.axis, names)

    def _readers(self) -> list[tuple[ir.Node, ir.Value | None]]:
        nodes = [node for node in readers_of(self.value) if node not in self.kept]
        return [(node, self._constant(node)) for node in nodes]

    def _constant(self, node: ir.Node) -> ir.Value | None:
        """Return the constant that a node multiplies the channels with, one value for each."""
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


Edit = ScaleLayer | ScaleConstant | Restore


@dataclass(frozen=True, eq=False)
class Fold:
    """How a tensor is divided.

    Attributes:
        edits: What is edited.
        products: How many multiplications that inserts.
    """

    edits: tuple[Edit, ...]

    @property
    def products(self) -> int:
        """How many multiplications are inserted."""
        return sum(edit.inserts for edit in self.restored)

    @property
    def restored(self) -> tuple[Restore, ...]:
        """Where readers get their old values back by a multiplication."""
        return tuple(edit for edit in self.edits if isinstance(edit, Restore))

    @property
    def makers(self) -> tuple[ScaleLayer, ...]:
        """The layers that are divided."""
        return tuple(edit for edit in self.edits if isinstance(edit, ScaleLayer))

    def apply(self, factors: np.ndarray, names: FreshNames) -> None:
        """Divide by factors, one for each channel."""
        for edit in self.edits:
            if isinstance(edit, Restore):
                edit.apply(factors, names)
            else:
                edit.apply(factors)


@dataclass(frozen=True)
class _Place:
    """Where the channels of a tensor are: its axis and rank, their number and which of the factors are theirs."""

    axis: int
    rank: int
    channels: slice
    depth: int = 0

    @property
    def count(self) -> int:
        return int(self.channels.stop - self.channels.start)


def find_fold(value: ir.Value, readers: Collection[ir.Node], axis: int, count: int) -> Fold | str:
    """Return how what some nodes read of a tensor can be divided channel by channel, or why it cannot.

    Args:
        value: The tensor.
        readers: The nodes that are to read it divided.
        axis: Its channel axis.
        count: Number of channels.
    """
    if value.shape is None:
        return "the rank of its input is not known"
    return _fold(value, frozenset(readers), _Place(axis, len(value.shape), slice(0, count)))


def readers_of(value: ir.Value) -> list[ir.Node]:
    """Return the nodes that look at the values of a tensor, not only at its shape."""
    return [use.node for use in value.uses() if use.node.op_type not in ("Shape", "Size")]


def insert_product(
    value: ir.Value, readers: Collection[ir.Node], factors: np.ndarray, axis: int, names: FreshNames
) -> None:
    """Let some readers of a tensor read it times one factor for each channel.

    Args:
        value: The tensor.
        readers: Nodes in the same graph.
        factors: (channels,).
        axis: Channel axis of the tensor.
        names: Names that are free.
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
    if producer is not None:
        graph.insert_after(producer, node)
    else:
        graph.insert_before(graph[0], node)
    for use in uses:
        use.node.replace_input_with(use.idx, output)


def _fold(value: ir.Value, readers: frozenset[ir.Node], place: _Place) -> Fold | str:
    producer = value.producer()
    if producer is None:
        return "it reads an input of the model"
    if value.is_graph_output() or place.depth > _DEEPEST:
        return "its input is an output of the model" if value.is_graph_output() else "what makes its input is far"
    others = [node for node in readers_of(value) if node not in readers]
    if any(other.graph is not producer.graph for other in others):
        return "its input is read inside a subgraph"
    found = _fold_producer(value, producer, replace(place, depth=place.depth + 1))
    if isinstance(found, str) or not others:
        return found
    return Fold((*found.edits, Restore(value, place.axis, readers, place.channels)))


def _fold_producer(value: ir.Value, producer: ir.Node, place: _Place) -> Fold | str:
    layer = _layer_behind(value, producer)
    if layer is not None:
        fits = layer.output_axis == place.axis and layer.layout.outputs == place.count
        return Fold((ScaleLayer(layer, place.channels),)) if fits else f"{producer.op_type} counts other channels"
    if producer.domain != "":
        return f"{producer.op_type} combines or moves channels"
    if producer.op_type == "LayerNormalization":
        return _fold_normalization(producer, place)
    if producer.op_type == "Mul":
        return _fold_product(producer, place)
    if producer.op_type in ("Add", "Sub"):
        return _fold_sum(producer, place)
    if producer.op_type == "Concat":
        return _fold_join(producer, place)
    passed = passage(producer, Channels(place.axis))
    source = producer.inputs[0]
    if passed != Channels(place.axis) or source is None or source.shape is None or len(source.shape) != place.rank:
        return passed if isinstance(passed, str) else f"{producer.op_type} combines or moves channels"
    return _fold(source, frozenset([producer]), place)


def _layer_behind(value: ir.Value, producer: ir.Node) -> LinearLayer | None:
    """Return the layer whose result, bias included, a tensor is."""
    nodes = [producer]
    if producer.op_type == "Add":
        nodes = [made for source in producer.inputs if source is not None and (made := source.producer()) is not None]
    for node in nodes:
        if node.op_type in LINEAR and node.domain == "":
            layer = linear_layer(node)
            if isinstance(layer, LinearLayer) and layer.output is value:
                return layer
    return None


def _fold_normalization(node: ir.Node, place: _Place) -> Fold | str:
    constants = [value for value in node.inputs[1:] if value is not None]
    last = place.axis == place.rank - 1
    if not last or not all(is_own(value) and array_of(value).size == place.count for value in constants):
        return "LayerNormalization has no constants of its own with one value for each channel"
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        return "a second output of LayerNormalization is read"
    return Fold(tuple(ScaleConstant(value, 1, place.channels) for value in constants))


def _constant_operand(value: ir.Value | None, place: _Place) -> ScaleConstant | None:
    """Return a constant with one value for each channel, or one for all, that nobody else reads."""
    if value is None or not is_own(value):
        return None
    from_end = place.rank - place.axis
    shape = array_of(value).shape
    if len(shape) > place.rank:
        return None
    if len(shape) >= from_end and shape[-from_end] not in (1, place.count):
        return None
    return ScaleConstant(value, from_end, place.channels)


def _fold_product(node: ir.Node, place: _Place) -> Fold | str:
    """Either operand will do; a constant is best, then what needs the fewest multiplications."""
    for value in node.inputs:
        constant = _constant_operand(value, place)
        if constant is not None:
            return Fold((constant,))
    first, second = node.inputs
    if first is None or second is None or first is second:
        return "Mul combines channels"
    tried = [_operand_fold(value, node, place) for value in (first, second)]
    folds = [fold for fold in tried if isinstance(fold, Fold)]
    if not folds:
        return next(reason for reason in tried if isinstance(reason, str))
    return min(folds, key=lambda fold: fold.products)


def _operand_fold(value: ir.Value, node: ir.Node, place: _Place) -> Fold | str:
    if value.shape is None or len(value.shape) != place.rank or value.shape[place.axis] != place.count:
        return "Mul spreads an operand over the channels"
    return _fold(value, frozenset([node]), place)


def _fold_sum(node: ir.Node, place: _Place) -> Fold | str:
    """A constant summand is divided too; two computed ones would both have to be."""
    for constant, other in (node.inputs, node.inputs[::-1]):
        edit = _constant_operand(constant, place)
        if edit is not None and other is not None and other.shape is not None and len(other.shape) == place.rank:
            found = _fold(other, frozenset([node]), place)
            return found if isinstance(found, str) else Fold((edit, *found.edits))
    return f"{node.op_type} combines two computed tensors"


def _fold_join(node: ir.Node, place: _Place) -> Fold | str:
    axis = node.attributes["axis"].as_int() % place.rank
    if axis != place.axis:
        return "Concat joins along another axis than the channels'"
    edits: list[Edit] = []
    start = place.channels.start
    for value in node.inputs:
        length = None if value is None or value.shape is None else value.shape[axis]
        if value is None or not isinstance(length, int):
            return "the parts of Concat are not known"
        part = replace(place, channels=slice(start, start + length))
        found = _fold(value, frozenset([node]), part)
        if isinstance(found, str):
            return found
        edits += found.edits
        start = part.channels.stop
    edited = [edit.layer.weight if isinstance(edit, ScaleLayer) else edit.value for edit in edits]
    if len(set(edited)) < len(edited):
        return "Concat joins the same tensor twice"
    return Fold(tuple(edits))


def _store(value: ir.Value, array: np.ndarray) -> None:
    value.const_value = tensor_from_array(array, value.name or "")
    value.shape = ir.Shape(array.shape)
