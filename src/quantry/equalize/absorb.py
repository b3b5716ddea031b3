"""High-bias absorption, after Nagel et al. 2019 (https://arxiv.org/abs/1906.04721), section 4.1.3.

::

    x = W1 a + b1        never below c              x - c = W1 a + (b1 - c)
    y = W2 Relu(x) + b2                             y = W2 Relu(x - c) + (b2 + W2 c)

The paper takes ``c`` from the statistics of a BatchNormalization; here it is what the calibration data showed.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantry.equalize.channel_layout import shifted_bias
from quantry.equalize.linear_layer import LinearLayer, array_of, linear_layer
from quantry.equalize.passage import Channels
from quantry.equalize.shift_passage import gives_no_shift, shift_passage, takes_no_shift
from quantry.graph.edit import FreshNames, constant_of
from quantry.graph.float_model import FloatModel
from quantry.graph.operators import LINEAR
from quantry.graph.weights import new_initializer, rebuilt, tensor_from_array
from quantry.memo import stage
from quantry.observe import Needs, Statistics
from quantry.recipe import BiasAbsorption
from quantry.runtime.environment import depends_on


@dataclass(frozen=True, eq=False)
class _Site:
    """A layer before a Relu, and the layers that read what the Relu leaves."""

    head: LinearLayer
    tails: tuple[LinearLayer, ...]


def absorb_needs(model: FloatModel, options: BiasAbsorption) -> Needs:
    """Return what absorption wants to know of the activations.

    Args:
        model: The model to change.
        options: What to do; all of them need the same.
    """
    del options
    sites, _ = _find_sites(model.model)
    return Needs(tuple((site.head.output.name or "", site.head.output_axis) for site in sites))


@stage(name="absorb", version=1, environment=depends_on("onnx_ir", "numpy"))
def absorb(model: FloatModel, statistics: Statistics, options: BiasAbsorption) -> FloatModel:
    """Return a model that computes the same on the observed data, with smaller activations before and behind Relus.

    Args:
        model: The model; it is left as it was.
        statistics: What was observed of it, with what `absorb_needs` asks for.
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
            _shift(tail, _behind(tail, constants), names)
        layers, channels = layers + 1, channels + int(np.count_nonzero(constants))
    summary = f"high-bias absorption moved constants of {channels} channels behind {layers} layers"
    left = (f"no high-bias absorption behind {count} layers: {reason}" for reason, count in sorted(reasons.items()))
    return FloatModel(rebuilt(copy) if layers else model.model, (summary, *left))


def _find_sites(model: ir.Model) -> tuple[list[_Site], Counter[str]]:
    """Return the layers from which a constant may go to the next ones, and how many others there are by reason."""
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
        return "no Relu reads its result, or not alone"
    reason = gives_no_shift(head)
    if reason:
        return reason
    tails = _tails(readers[0].outputs[0], Channels(head.output_axis), head)
    return tails if isinstance(tails, str) else _Site(head, tails)


def _is_relu(node: ir.Node) -> bool:
    """Whether a node is a Relu, written as Clip(0, infinity) or as such."""
    if node.op_type == "Relu" and node.domain == "":
        return True
    if node.op_type != "Clip" or node.domain != "" or len(node.inputs) < 2:
        return False
    low = constant_of(node.inputs[1])
    bound = node.inputs[2] if len(node.inputs) > 2 else None
    high = constant_of(bound)
    unbounded = bound is None or (high is not None and bool(np.isposinf(high).all()))
    return low is not None and not low.any() and unbounded


def _tails(value: ir.Value, channels: Channels, head: LinearLayer) -> tuple[LinearLayer, ...] | str:
    """Return all layers that read a value, directly or through what passes constants on, or why that is not all."""
    if value.is_graph_output():
        return "its result is an output of the model"
    found: list[LinearLayer] = []
    parts: tuple[LinearLayer, ...] | str
    for node, index in value.uses():
        if node.graph is not head.node.graph or index != 0:
            return f"{node.op_type} does not pass a constant on"
        if node.op_type in LINEAR and node.domain == "":
            tail = linear_layer(node)
            if isinstance(tail, str):
                return f"of the layer behind it: {tail}"
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
    """Return what each channel has on top of zero, or why it stays there."""
    stats = statistics.tensors.get(site.head.output.name or "")
    if stats is None or stats.channel_minima is None or stats.channel_maxima is None:
        return "nothing was observed of its result"
    low, high = stats.channel_minima.astype(np.float64), stats.channel_maxima.astype(np.float64)
    if len(low) != site.head.layout.outputs or not (np.isfinite(low).all() and np.isfinite(high).all()):
        return "nothing was observed of its result"
    constants: np.ndarray = np.maximum(0.0, low - options.margin * (high - low))
    if not constants.any():
        return "every channel comes down to zero, or near to it"
    if not high.max() >= options.gain * (high - constants).max():
        return "the largest value is in a channel that comes down to zero, and would not fall by enough"
    return constants


def _behind(tail: LinearLayer, constants: np.ndarray) -> np.ndarray:
    """Return what constants of the input channels add to each output channel, (outputs,)."""
    layout = tail.layout
    weight = layout.view(np.ascontiguousarray(array_of(tail.weight))).astype(np.float64).sum(axis=3)
    spread = np.repeat(constants, layout.inputs // len(constants)).reshape(layout.groups, 1, -1)
    total: np.ndarray = (weight * spread).sum(axis=2).reshape(-1)
    return total


def _shift(layer: LinearLayer, constants: np.ndarray, names: FreshNames) -> None:
    """Add a constant to each output channel of a layer, in its bias."""
    if layer.bias is not None:
        shifted = shifted_bias(array_of(layer.bias), constants)
        layer.bias.const_value = tensor_from_array(shifted, layer.bias.name or "")
        layer.bias.shape = ir.Shape(shifted.shape)
        return
    # A layer may be the tail of one site and the head of another: what it was given then is read from the node.
    node = layer.node
    present = node.inputs[2] if len(node.inputs) > 2 else None
    if present is not None:
        present.const_value = tensor_from_array(shifted_bias(array_of(present), constants), present.name or "")
        return
    array = constants.astype(array_of(layer.weight).dtype)
    bias = new_initializer(names.value(f"{layer.weight.name}_bias"), array)
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    graph.register_initializer(bias)
    node.resize_inputs(3)
    node.replace_input_with(2, bias)
