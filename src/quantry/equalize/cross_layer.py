"""Cross-layer equalization, after Nagel et al. 2019 (https://arxiv.org/abs/1906.04721).

Finds chains of layers between which a factor per channel can move::

    Conv -> Relu -> Conv                                                 a pair, one link
    Conv -> Relu -> depthwise Conv -> Relu -> pointwise Conv             a triple, two links
    Conv -> Sigmoid                                                      no link: not homogeneous
    Conv -> Add <- Conv                                                  no link: two results are combined

A link joins a layer to the only reader of its result. A depthwise layer passes its channels on one by one, so the links
on both sides of it belong to one chain; every link is in exactly one chain.

For one channel that passes through layers 0 to n, ``r_i`` is its range in layer i: the largest magnitude among the
weights that compute it (layer 0), pass it on (depthwise layers) or read it (layer n). With ``m`` the geometric mean of
the ranges, the channel is divided after layer i by

    S_i = S_(i-1) * r_i / m,    S_(-1) = 1

that is, output weights and bias of layer i are divided by ``S_i`` and input weights of layer i+1 multiplied by it. All
ranges become ``m``. For a pair, ``S = r_0 / sqrt(r_0 * r_1)``.

The bias of the first layer can count as a part of ``r_0``. In depthwise layers it cannot, because ``S_(i-1)``
multiplies their weights and not their bias. There the factors are adjusted until the larger one of weights and bias
equals what the next layer reads, which without a bias is already true.

Only the largest magnitudes over the kernel are needed, so a sweep costs one pass over channels, and the weights are
multiplied once at the end.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantry.equalize.channels import ChannelAxis, not_homogeneous, propagate_factor
from quantry.equalize.linear_layer import LinearLayer, array_of, bias_magnitude, linear_layer, scaled_bias, store_array
from quantry.facts.operators import LINEAR
from quantry.graph.float_model import FloatModel
from quantry.graph.passes.clip6_to_relu import clip6_to_relu
from quantry.graph.weights import rebuilt, release
from quantry.memo import stage
from quantry.notes import Note, NoteKind, one_per_reason
from quantry.recipe import CrossLayer, EqualizeOptions
from quantry.runtime.environment import depends_on

_PATIENCE = 20  # sweeps without a smaller change after which the weights count as converged
_MOST_SWEEPS = 1000  # bounds the time; weights that need more sweeps oscillate by rounding errors
_EQUAL = 1e-12  # logarithms closer than this are equal in float64, up to rounding
_NO_BIAS = 1e-300  # its logarithm is smaller than that of every weight, so a bias of 0 never counts
_FARTHEST = 2.0**40  # ranges farther apart belong to unused channels; their factors would overflow float32


@dataclass(frozen=True, eq=False)
class Magnitudes:
    """Magnitudes of the weights of a layer, all float64.

    Attributes:
        peak: (groups, outputs/groups, inputs/groups) largest ``|w|`` over the kernel.
        total: Same shape; the sum of ``|w|`` over the kernel.
        bias: (outputs,) the part of ``|b|`` that counts in the range of its channel.
        size: Number of weights.
    """

    peak: np.ndarray
    total: np.ndarray
    bias: np.ndarray
    size: int


@dataclass(frozen=True, eq=False)
class Factors:
    """Factors of the weights of a layer.

    Attributes:
        outputs: (outputs,) for weights and bias.
        inputs: (inputs,) for weights.
    """

    outputs: np.ndarray
    inputs: np.ndarray


def magnitudes(channels: np.ndarray, bias: np.ndarray) -> Magnitudes:
    """Return the magnitudes of a layer.

    Args:
        channels: (groups, outputs/groups, inputs/groups, kernel) weights.
        bias: (outputs,) the part of ``|b|`` that counts.
    """
    absolute = np.abs(channels.astype(np.float64))
    # A kernel of one tap, as in 1x1 convolutions and matrices: both are the same array, which saves memory.
    if absolute.shape[-1] == 1:
        only = absolute[..., 0]
        return Magnitudes(only, only, bias, channels.size)
    return Magnitudes(absolute.max(axis=-1), absolute.sum(axis=-1), bias, channels.size)


def counted_bias(bias: np.ndarray, peak: np.ndarray) -> np.ndarray:
    """Return the part of each channel's bias that counts like a weight: the same fraction for the whole layer.

    A bias is added once, while weights are multiplied with many inputs. So it is divided by 2 to 20, by more where
    biases are larger compared with the weights of their channel. The thresholds are those of AMD Quark.

    Args:
        bias: (outputs,) ``|b|``.
        peak: (outputs,) the largest ``|w|`` of each channel.
    """
    present = peak > 0
    if not present.any() or not bias.any():
        return bias
    ratio = bias[present] / peak[present]
    median, mean = float(np.median(ratio)), float(ratio.mean())
    if bias.max() < 10 and bias.max() < 20 * peak.max():
        return bias / (5 if median > 100 or mean > 1000 else 2)
    if median > 30 or mean > 500:
        return bias / 20
    return bias / (10 if median > 15 or mean > 100 else 5)


def balance(
    layers: Sequence[Magnitudes], chains: Sequence[tuple[int, ...]], options: CrossLayer
) -> tuple[tuple[Factors, ...], int]:
    """Return the factors of every layer that equalize all chains, and the number of sweeps.

    Args:
        layers: Their magnitudes.
        chains: Indices into ``layers``; all but the first and the last of a chain are depthwise.
        options: Number of sweeps and thresholds.
    """
    state = [Factors(np.ones(len(layer.bias)), np.ones(layer.peak.shape[0] * layer.peak.shape[2])) for layer in layers]
    least, idle = np.inf, 0
    limit = _MOST_SWEEPS if options.steps == -1 else options.steps
    # Equalizing one chain changes the ranges of others that share a layer, so repeat until nothing changes much.
    for sweep in range(1, limit + 1):
        previous = list(state)
        for chain in chains:
            _equalize_chain(layers, state, chain, options)
        if options.steps != -1:
            continue
        change = _mean_change(layers, previous, state)
        idle = 0 if change < least else idle + 1
        least = min(least, change)
        if change <= options.convergence or idle >= _PATIENCE:
            return tuple(state), sweep
    return tuple(state), limit


def _equalize_chain(
    layers: Sequence[Magnitudes], state: list[Factors], chain: tuple[int, ...], options: CrossLayer
) -> None:
    output_ranges = [_output_range(layers[index], state[index]) for index in chain[:-1]]
    biases = [layers[index].bias * state[index].outputs for index in chain[:-1]]
    # Only the first bias: see the head of this module.
    output_ranges[0] = np.maximum(output_ranges[0], biases[0])
    count = len(output_ranges[0])
    # After a Flatten several inputs of the last layer belong to one channel.
    read = _input_range(layers[chain[-1]], state[chain[-1]]).reshape(count, -1).max(axis=1)
    shares = _shares(np.stack([*output_ranges, read]), np.stack(biases), options)
    for position, index in enumerate(chain):
        old = state[index]
        outputs = old.outputs / shares[position] if position < len(shares) else old.outputs
        inputs = old.inputs
        if position > 0:
            inputs = inputs * np.repeat(shares[position - 1], len(inputs) // count)
        state[index] = Factors(outputs, inputs)


def _shares(ranges: np.ndarray, biases: np.ndarray, options: CrossLayer) -> np.ndarray:
    """Return the divisors of the channels after each layer except the last, (layers - 1, channels).

    A channel that has no weight in some layer, or tiny ones, keeps a divisor of 1, and so does one with small ranges if
    the options ask for it.

    Args:
        ranges: (layers, channels) of weights, and of the bias in the first layer.
        biases: (layers - 1, channels) the parts that count.
        options: The threshold.
    """
    smallest = ranges.min(axis=0)
    active = (smallest > 0) & (ranges.max(axis=0) <= _FARTHEST * smallest)
    if options.use_threshold:
        active &= ranges.sum(axis=0) >= options.weight_threshold
    # In logarithms the geometric mean is a mean, and S_i is a running sum.
    logarithms = np.log(np.where(active, ranges, 1.0))
    relative = logarithms - logarithms.mean(axis=0)
    shares = np.cumsum(relative[:-1], axis=0)
    if len(shares) > 1:
        shares = _with_biases(shares, logarithms, np.log(np.where(active & (biases > 0), biases, _NO_BIAS)))
    result: np.ndarray = np.exp(shares)
    return result


def _with_biases(shares: np.ndarray, ranges: np.ndarray, biases: np.ndarray) -> np.ndarray:
    """Adjust divisors until the range of each layer is what the next one reads; everything is in logarithms."""
    edge = np.zeros((1, shares.shape[1]))
    for _ in range(_MOST_SWEEPS):
        padded = np.concatenate([edge, shares, edge])
        # Gauss-Seidel: each layer uses the new divisor of the layer before it, which converges faster.
        for layer in range(len(shares)):
            written = np.maximum(ranges[layer] + padded[layer], biases[layer])
            read = ranges[layer + 1] - padded[layer + 2]
            padded[layer + 1] = (written - read) / 2
        change = float(np.abs(padded[1:-1] - shares).max())
        shares = padded[1:-1]
        if change <= _EQUAL:
            break
    return shares


def _multiplier(layer: Magnitudes, factors: Factors) -> np.ndarray:
    groups = len(layer.peak)
    product: np.ndarray = factors.outputs.reshape(groups, -1, 1) * factors.inputs.reshape(groups, 1, -1)
    return product


def _output_range(layer: Magnitudes, factors: Factors) -> np.ndarray:
    groups = len(layer.peak)
    peak = (layer.peak * factors.inputs.reshape(groups, 1, -1)).max(axis=2).reshape(-1)
    largest: np.ndarray = peak * factors.outputs
    return largest


def _input_range(layer: Magnitudes, factors: Factors) -> np.ndarray:
    groups = len(layer.peak)
    peak = (layer.peak * factors.outputs.reshape(groups, -1, 1)).max(axis=1).reshape(-1)
    largest: np.ndarray = peak * factors.inputs
    return largest


def _mean_change(layers: Sequence[Magnitudes], previous: Sequence[Factors], current: Sequence[Factors]) -> float:
    """Return the mean of ``|w_after - w_before|`` over the weights of all layers."""
    changes = (
        float((layer.total * np.abs(_multiplier(layer, new) - _multiplier(layer, old))).sum())
        for layer, old, new in zip(layers, previous, current, strict=True)
    )
    return sum(changes) / max(1, sum(layer.size for layer in layers))


@dataclass(frozen=True)
class Chains:
    """The chains of a model, and why other layers are in none.

    Attributes:
        layers: Every layer that is in a chain.
        chains: Indices into ``layers``: the first layer, depthwise layers in between, the last layer.
        reasons: Number of layers that are not linked to the next one, by reason.
    """

    layers: tuple[LinearLayer, ...]
    chains: tuple[tuple[int, ...], ...]
    reasons: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class _Link:
    tail: LinearLayer
    flattened: bool


def find_chains(model: ir.Model) -> Chains:
    """Return the chains of a model; those with depthwise layers come first, otherwise in the order of the graph.

    Args:
        model: A topologically sorted graph. Layers in subgraphs are included, but not links between graphs.
    """
    layers = {
        node: linear_layer(node)
        for node in ir.traversal.RecursiveGraphIterator(model.graph)
        if node.op_type in LINEAR and node.domain == ""
    }
    links: dict[ir.Node, _Link] = {}
    reasons: Counter[str] = Counter()
    for node, layer in layers.items():
        link = layer if isinstance(layer, str) else _follow(layer, layers)
        if isinstance(link, str):
            reasons[link] += 1
        else:
            links[node] = link
    # Chains with depthwise layers have more to equalize, so they come first in every sweep, as in AMD Quark.
    sequences = sorted(_sequences(layers, links), key=lambda sequence: len(sequence) == 2)
    members = {layer.node: layer for sequence in sequences for layer in sequence}
    index = {node: position for position, node in enumerate(members)}
    chains = tuple(tuple(index[layer.node] for layer in sequence) for sequence in sequences)
    return Chains(tuple(members.values()), chains, tuple(sorted(reasons.items())))


def _follow(head: LinearLayer, layers: dict[ir.Node, LinearLayer | str]) -> _Link | str:
    """Return the link from a layer to the next, or why there is none."""
    value, channels = head.output, ChannelAxis(head.output_axis)
    while True:
        readers = [usage.node for usage in value.uses()]
        if value.is_graph_output():
            return "its result is an output of the model"
        if len(readers) != 1:
            # SiLU reads its input twice: naming the Sigmoid explains more than "several nodes".
            return next(filter(None, map(not_homogeneous, readers)), "several nodes read its result")
        reader = readers[0]
        if reader.graph is not head.node.graph:
            return "its result is read inside a subgraph"
        if reader.inputs[0] is not value:
            return f"{reader.op_type} combines or moves channels"
        tail = layers.get(reader)
        if tail is not None:
            return _link(head, channels, tail)
        passed = propagate_factor(reader, channels)
        if isinstance(passed, str):
            return passed
        value, channels = reader.outputs[0], passed


def _link(head: LinearLayer, channels: ChannelAxis, tail: LinearLayer | str) -> _Link | str:
    if isinstance(tail, str):
        return f"about the layer after it: {tail}"
    produced, read = head.layout.outputs, tail.layout.inputs
    # After a Flatten each channel has several inputs.
    fits = read % produced == 0 if channels.flattened else read == produced
    if channels.axis != tail.input_axis or not fits:
        return f"{tail.node.op_type} reads its result along another axis"
    return _Link(tail, channels.flattened)


def _sequences(layers: dict[ir.Node, LinearLayer | str], links: dict[ir.Node, _Link]) -> list[list[LinearLayer]]:
    """Join links at depthwise layers."""
    depthwise = (link.tail.node for link in links.values() if link.tail.layout.is_depthwise and not link.flattened)
    passed_on = {node for node in depthwise if node in links}
    sequences = []
    for node, link in links.items():
        if node in passed_on:
            continue
        head = layers[node]
        assert isinstance(head, LinearLayer)
        sequence = [head, link.tail]
        while sequence[-1].node in passed_on:
            sequence.append(links[sequence[-1].node].tail)
        sequences.append(sequence)
    return sequences


def equalize_layers(model: ir.Model, options: CrossLayer) -> tuple[Note, ...]:
    """Equalize the ranges of channels between consecutive layers; edits the model without changing its outputs.

    Args:
        model: The graph to edit.
        options: Sweeps and thresholds.

    Returns:
        Notes: how much was equalized, and the number of layers that are in no chain, by reason.
    """
    notes = list(clip6_to_relu(model)) if options.clip6_to_relu else []
    chains = find_chains(model)
    magnitudes_of = [_magnitudes(layer, include_bias=options.include_bias) for layer in chains.layers]
    factors, sweeps = balance(magnitudes_of, chains.chains, options)
    scaled = [layer for layer, factor in zip(chains.layers, factors, strict=True) if _apply(layer, factor)]
    if chains.chains:
        notes.append(
            Note.of(
                "cross-layer equalization changed {count} of the {layers} layers in {chains} chains; sweeps: {sweeps}",
                count=len(scaled),
                layers=len(chains.layers),
                chains=len(chains.chains),
                sweeps=sweeps,
            )
        )
    message = "no cross-layer equalization after {count} layers: {reason}"
    return (*notes, *one_per_reason(message, dict(chains.reasons), NoteKind.NOT_EQUALIZED))


def _magnitudes(layer: LinearLayer, *, include_bias: bool) -> Magnitudes:
    weight = np.ascontiguousarray(array_of(layer.weight))
    outputs = layer.layout.outputs
    plain = magnitudes(layer.layout.view(weight), np.zeros(outputs))
    # The weight may be mapped from a large file; its pages are not needed until it is multiplied.
    if layer.weight.const_value is not None:
        release(layer.weight.const_value)
    if layer.bias is None or not include_bias:
        return plain
    bias = bias_magnitude(array_of(layer.bias), outputs)
    peak = plain.peak.max(axis=2).reshape(-1)
    return Magnitudes(plain.peak, plain.total, counted_bias(bias, peak), plain.size)


def _apply(layer: LinearLayer, factors: Factors) -> bool:
    """Multiply the weights of a layer; return whether a factor differs from 1."""
    if np.all(factors.outputs == 1) and np.all(factors.inputs == 1):
        return False
    store_array(layer.weight, layer.layout.scaled(array_of(layer.weight), factors.outputs, factors.inputs))
    if layer.bias is not None:
        store_array(layer.bias, scaled_bias(array_of(layer.bias), factors.outputs))
    return True


@stage(name="equalize", version=2, environment=depends_on("onnx_ir", "numpy"))
def equalize(model: FloatModel, options: EqualizeOptions) -> FloatModel:
    """Return a model with the same outputs whose weights are easier to quantize.

    Args:
        model: The prepared model; it is not modified.
        options: What to do.

    Returns:
        The equalized model, with notes about what was changed and what could not be.
    """
    if options.cross_layer is None:
        return model
    equalized = model.model.clone()
    notes = equalize_layers(equalized, options.cross_layer)
    return FloatModel(rebuilt(equalized), notes)
