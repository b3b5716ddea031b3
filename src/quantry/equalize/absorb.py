"""High-bias absorption, after Nagel et al. 2019 (https://arxiv.org/abs/1906.04721), section 4.1.3.

::

    x = W1 a + b1        always above c             x - c = W1 a + (b1 - c)
    y = W2 Relu(x) + b2                             y = W2 Relu(x - c) + (b2 + W2 c)

The paper takes ``c`` from the statistics of a BatchNormalization. Here it is the smallest value in the calibration
data.
"""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantry.equalize.linear_layer import LinearLayer, array_of, linear_layer, shifted_bias, store_array
from quantry.equalize.passage import Channels, gives_no_shift, shift_passage, takes_no_shift
from quantry.facts.operators import LINEAR
from quantry.graph.edit import FreshNames, bounds_of
from quantry.graph.float_model import FloatModel
from quantry.graph.weights import new_initializer, rebuilt
from quantry.memo import stage
from quantry.observe import Needs, Statistics
from quantry.recipe import BiasAbsorption
from quantry.runtime.environment import depends_on


@dataclass(frozen=True, eq=False)
class _Site:
    """A layer in front of a Relu, and the layers that read the result of the Relu."""

    head: LinearLayer
    tails: tuple[LinearLayer, ...]


def absorb_needs(model: FloatModel, options: BiasAbsorption) -> Needs:
    """Return the statistics of activations that absorption needs.

    Args:
        model: The model to change.
        options: Not used; every choice needs the same.
    """
    del options
    sites, _ = _find_sites(model.model)
    return Needs(tuple((site.head.output.name or "", site.head.output_axis) for site in sites))


@stage(name="absorb", version=1, environment=depends_on("onnx_ir", "numpy"))
def absorb(model: FloatModel, statistics: Statistics, options: BiasAbsorption) -> FloatModel:
    """Return a model with smaller activations around Relus that computes the same on the observed data.

    Args:
        model: The model; it is not modified.
        statistics: Its statistics, including what `absorb_needs` asks for.
        options: What to do.
    """
    copy = model.model.clone()
    names = FreshNames(copy)
    sites, reasons = _find_sites(copy)
    layers = channels = 0
    for site in sites:
        constants = _constants(site, statistics, options)
        if isinstance(constants, str):
            reasons[constants] += 1
            continue
        _shift(site.head, -constants, names)
        for tail in site.tails:
            _shift(tail, _absorbed(tail, constants), names)
        layers, channels = layers + 1, channels + int(np.count_nonzero(constants))
    summary = f"high-bias absorption moved constants of {channels} channels past {layers} layers"
    left = (f"no high-bias absorption after {count} layers: {reason}" for reason, count in sorted(reasons.items()))
    return FloatModel(rebuilt(copy) if layers else model.model, (summary, *left))


def _find_sites(model: ir.Model) -> tuple[list[_Site], Counter[str]]:
    """Return the layers whose constants can move to the next layers, and the number of other layers by reason."""
    sites, reasons = [], Counter[str]()
    for node in model.graph:
        if node.op_type not in LINEAR or node.domain != "":
            continue
        head = linear_layer(node)
        site = head if isinstance(head, str) else _site(head)
        if isinstance(site, str):
            reasons[site] += 1
        else:
            sites.append(site)
    return sites, reasons


def _site(head: LinearLayer) -> _Site | str:
    readers = [use.node for use in head.output.uses()]
    if head.output.is_graph_output():
        return "its result is an output of the model"
    if len(readers) != 1 or not _is_relu(readers[0]) or readers[0].graph is not head.node.graph:
        return "its result is not read by a single Relu"
    reason = gives_no_shift(head)
    if reason:
        return reason
    tails = _tails(readers[0].outputs[0], Channels(head.output_axis), head)
    return tails if isinstance(tails, str) else _Site(head, tails)


def _is_relu(node: ir.Node) -> bool:
    """Whether a node is a Relu, or a Clip(0, infinity)."""
    return bounds_of(node) == (0.0, math.inf)


def _tails(value: ir.Value, channels: Channels, head: LinearLayer) -> tuple[LinearLayer, ...] | str:
    """Return all layers that read a value, directly or through operators that pass constants on, or why not."""
    if value.is_graph_output():
        return "its result is an output of the model"
    found: list[LinearLayer] = []
    parts: tuple[LinearLayer, ...] | str
    for node, index in value.uses():
        if node.graph is not head.node.graph or index != 0:
            return f"{node.op_type} does not pass constants on"
        if node.op_type in LINEAR and node.domain == "":
            tail = linear_layer(node)
            if isinstance(tail, str):
                return f"about the layer after it: {tail}"
            parts = takes_no_shift(tail) or _fits(tail, channels, head) or (tail,)
        else:
            passed = shift_passage(node, channels)
            parts = passed if isinstance(passed, str) else _tails(node.outputs[0], passed, head)
        if isinstance(parts, str):
            return parts
        found += parts
    return tuple(found) if found else "nothing reads its result"


def _fits(tail: LinearLayer, channels: Channels, head: LinearLayer) -> str:
    inputs, outputs = tail.layout.inputs, head.layout.outputs
    fits = inputs % outputs == 0 if channels.flattened else inputs == outputs
    return "" if fits and channels.axis == tail.input_axis else f"{tail.node.op_type} reads along another axis"


def _constants(site: _Site, statistics: Statistics, options: BiasAbsorption) -> np.ndarray | str:
    """Return the constant of each channel, (outputs,), or why they all stay."""
    stats = statistics.tensors.get(site.head.output.name or "")
    if stats is None or stats.channels is None:
        return "there are no statistics of its result"
    low, high = stats.channels.minima.astype(np.float64), stats.channels.maxima.astype(np.float64)
    if len(low) != site.head.layout.outputs or not (np.isfinite(low).all() and np.isfinite(high).all()):
        return "there are no statistics of its result"
    # Values outside the calibration data may be lower than the lowest seen; the margin leaves room for them.
    constants: np.ndarray = np.maximum(0.0, low - options.margin * (high - low))
    if not constants.any():
        return "every channel reaches zero, or nearly"
    # The tensor has one scale, which the largest channel determines: shifting the others gains nothing.
    if not high.max() >= options.gain * (high - constants).max():
        return "the largest value is in a channel that reaches zero, so the range would not shrink enough"
    return constants


def _absorbed(tail: LinearLayer, constants: np.ndarray) -> np.ndarray:
    """Return what constants of the input channels add to each output channel, (outputs,)."""
    layout = tail.layout
    weight = layout.view(np.ascontiguousarray(array_of(tail.weight))).astype(np.float64).sum(axis=3)
    # After a Flatten several inputs belong to one channel, next to each other.
    spread = np.repeat(constants, layout.inputs // len(constants)).reshape(layout.groups, 1, -1)
    total: np.ndarray = (weight * spread).sum(axis=2).reshape(-1)
    return total


def _shift(layer: LinearLayer, constants: np.ndarray, names: FreshNames) -> None:
    """Add a constant to each output channel of a layer, in its bias."""
    if layer.bias is not None:
        shifted = shifted_bias(array_of(layer.bias), constants)
        store_array(layer.bias, shifted)
        return
    # A layer may come after one Relu and in front of another. If it got a bias from the first, only the node has it.
    node = layer.node
    present = node.inputs[2] if len(node.inputs) > 2 else None
    if present is not None:
        store_array(present, shifted_bias(array_of(present), constants))
        return
    array = constants.astype(array_of(layer.weight).dtype)
    bias = new_initializer(names.value(f"{layer.weight.name}_bias"), array)
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    graph.register_initializer(bias)
    node.resize_inputs(3)
    node.replace_input_with(2, bias)
