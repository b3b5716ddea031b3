"""Puts the channels of a class in another order, or makes some of them twice."""

import numpy as np
import onnx_ir as ir

from quantry.equalize.channel_class import ChannelClass, Place, Reader
from quantry.equalize.channel_layout import taken_bias
from quantry.equalize.linear_layer import LinearLayer, array_of
from quantry.graph.weights import tensor_from_array


def reindex(channels: ChannelClass, order: np.ndarray) -> None:
    """Give the channels of a class other numbers; edits all layers concerned and keeps the function.

    A channel that is named n times is made n times, and its readers take an n-th of each copy.

    Args:
        channels: The class.
        order: (new count,) old numbers of the new channels, each at least once.
    """
    shares = 1.0 / np.bincount(order, minlength=channels.count)[order]
    for layer in (*channels.makers, *channels.carriers):
        _store(layer.weight, layer.layout.taken(array_of(layer.weight), order, None))
        if layer.bias is not None:
            _store(layer.bias, taken_bias(array_of(layer.bias), order, channels.count))
        if layer in channels.carriers and len(order) != channels.count:
            layer.node.attributes["group"] = ir.AttrInt64("group", len(order))
    for reader in channels.readers:
        _reindex_reader(reader, order, shares, channels.count)
    if len(order) != channels.count:
        _resize_tensors(channels, len(order))


def _reindex_reader(reader: Reader, order: np.ndarray, shares: np.ndarray, count: int) -> None:
    layer = reader.layer
    inputs, factors = _input_order(reader.place, order, shares, count, layer.layout.inputs)
    weight = array_of(layer.weight)
    taken = layer.layout.taken(weight, None, inputs).astype(np.float64)
    spread = [1] * taken.ndim
    spread[0 if layer.layout.input_first else 1] = len(factors)
    _store(layer.weight, (taken * factors.reshape(spread)).astype(weight.dtype))


def _input_order(
    place: Place, order: np.ndarray, shares: np.ndarray, count: int, inputs: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return old numbers of a reading layer's new inputs, and what to multiply their weights by."""
    if place.flattened:
        inner = inputs // count
        return (order[:, None] * inner + np.arange(inner)).reshape(-1), np.repeat(shares, inner)
    head, tail = np.arange(place.start), np.arange(place.start + count, inputs)
    numbers = np.concatenate([head, place.start + order, tail])
    return numbers, np.concatenate([np.ones(len(head)), shares, np.ones(len(tail))])


def _resize_tensors(channels: ChannelClass, count: int) -> None:
    inner = [layer.node.outputs[0] for layer in channels.makers if layer.node.outputs[0] not in channels.places]
    places = {**channels.places, **{value: _last(value) for value in inner}}
    for value, place in places.items():
        assert value.shape is not None
        lengths = list(value.shape)
        old = lengths[place.axis]
        if isinstance(old, int):
            lengths[place.axis] = old // channels.count * count if place.flattened else old + count - channels.count
        value.shape = ir.Shape(lengths)


def _last(value: ir.Value) -> Place:
    """Return where the result of a MatMul has its channels before its bias is added."""
    assert value.shape is not None
    return Place(len(value.shape) - 1)


def _store(value: ir.Value, array: np.ndarray) -> None:
    value.const_value = tensor_from_array(array, value.name or "")
    value.shape = ir.Shape(array.shape)


def energies(channels: ChannelClass, maker: LinearLayer) -> np.ndarray:
    """Return how much of a channel's mean square reaches the layers that read it from a layer, (count,).

    Depthwise layers between are taken to be those that come later in the class.

    Args:
        channels: The class.
        maker: One of its makers or carriers.
    """
    total = np.zeros(channels.count)
    for reader in channels.readers:
        layout, place = reader.layer.layout, reader.place
        weight = layout.view(np.ascontiguousarray(array_of(reader.layer.weight)))[0].astype(np.float64)
        square = (weight**2).sum(axis=(0, 2))
        if not place.flattened:
            square = square[place.start : place.start + channels.count]
        total += square.reshape(channels.count, -1).sum(axis=1)
    for carrier in _later(channels, maker):
        weight = array_of(carrier.weight).astype(np.float64).reshape(channels.count, -1)
        total *= (weight**2).sum(axis=1)
    return total


def _later(channels: ChannelClass, maker: LinearLayer) -> tuple[LinearLayer, ...]:
    if maker in channels.carriers:
        return channels.carriers[channels.carriers.index(maker) + 1 :]
    return channels.carriers
