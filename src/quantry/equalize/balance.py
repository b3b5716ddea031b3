"""The arithmetic of cross-layer equalization, after Nagel et al. 2019 (https://arxiv.org/abs/1906.04721).

For one channel that passes through layers 0 to n, ``r_i`` is its range in layer i: the largest magnitude among the
weights that make it (layer 0), carry it (depthwise layers between) or read it (layer n). With ``m`` the geometric mean
of the ranges, the channel's value behind layer i is divided by

    S_i = S_(i-1) * r_i / m,    S_(-1) = 1

by dividing layer i's output weights and bias by ``S_i`` and multiplying layer i+1's input weights by it. All ranges
become ``m``. For a pair that is ``S = r_0 / sqrt(r_0 * r_1)``.

A bias that counts is part of ``r_0``. Between depthwise layers it is not: ``S_(i-1)`` multiplies the weights of layer i
and not its bias. There the factors are moved on until each layer's larger one of both equals what the next layer reads,
which without a bias they do already.

Weights enter as magnitudes without their kernel axes, so a sweep costs one pass over channels, and the weights
themselves are multiplied once at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quantry.recipe import CrossLayer

_PATIENCE = 20  # sweeps without a smaller change, after which the weights are as much at rest as they will be
_MOST_SWEEPS = 1000
_EQUAL = 1e-12  # of logarithms
_NO_BIAS = 1e-300
_FARTHEST = 2.0**40  # ranges farther apart belong to channels that do nothing; their factors would leave float32


@dataclass(frozen=True, eq=False)
class Magnitudes:
    """What equalization needs to know of a layer, all float64.

    Attributes:
        peak: (groups, outputs/groups, inputs/groups) largest ``|w|`` over the kernel.
        total: Same shape; the sum of ``|w|`` over the kernel.
        bias: (outputs,) ``|b|`` as far as it counts in the range of its channel.
        size: Number of weights.
    """

    peak: np.ndarray
    total: np.ndarray
    bias: np.ndarray
    size: int


@dataclass(frozen=True, eq=False)
class Factors:
    """What the weights of a layer are to be multiplied by.

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
    if absolute.shape[-1] == 1:
        only = absolute[..., 0]
        return Magnitudes(only, only, bias, channels.size)
    return Magnitudes(absolute.max(axis=-1), absolute.sum(axis=-1), bias, channels.size)


def counted_bias(bias: np.ndarray, peak: np.ndarray) -> np.ndarray:
    """Return how much of each channel's bias counts as if it were a weight: a fraction chosen for the whole layer.

    A bias is added once while weights meet many inputs, so it is divided by 2 to 20, as AMD Quark does: by more, the
    larger biases are against the weights of their channel.

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
    """Return the factors of every layer that equalize all chains, and how many sweeps that took.

    Args:
        layers: Their magnitudes.
        chains: Indices into ``layers``; all but the first and the last of a chain are depthwise.
        options: Number of sweeps and thresholds.
    """
    state = [Factors(np.ones(len(layer.bias)), np.ones(_inputs(layer))) for layer in layers]
    least, idle = np.inf, 0
    limit = _MOST_SWEEPS if options.steps == -1 else options.steps
    for sweep in range(1, limit + 1):
        before = list(state)
        for chain in chains:
            _equalize_chain(layers, state, chain, options)
        if options.steps != -1:
            continue
        change = _mean_change(layers, before, state)
        idle = 0 if change < least else idle + 1
        least = min(least, change)
        if change <= options.convergence or idle >= _PATIENCE:
            return tuple(state), sweep
    return tuple(state), limit


def _equalize_chain(
    layers: Sequence[Magnitudes], state: list[Factors], chain: tuple[int, ...], options: CrossLayer
) -> None:
    made = [_output_range(layers[index], state[index]) for index in chain[:-1]]
    biases = [layers[index].bias * state[index].outputs for index in chain[:-1]]
    made[0] = np.maximum(made[0], biases[0])
    count = len(made[0])
    # Behind a Flatten several inputs of the last layer belong to one channel.
    read = _input_range(layers[chain[-1]], state[chain[-1]]).reshape(count, -1).max(axis=1)
    shares = _shares(np.stack([*made, read]), np.stack(biases), options)
    for position, index in enumerate(chain):
        old = state[index]
        outputs = old.outputs / shares[position] if position < len(shares) else old.outputs
        inputs = old.inputs
        if position > 0:
            inputs = inputs * np.repeat(shares[position - 1], len(inputs) // count)
        state[index] = Factors(outputs, inputs)


def _shares(ranges: np.ndarray, biases: np.ndarray, options: CrossLayer) -> np.ndarray:
    """Return what the channels' values are divided by behind each layer but the last: (layers - 1, channels).

    A channel without any weight in some layer, or hardly any, has no range to share and keeps 1, as one with small
    ranges does on request.

    Args:
        ranges: (layers, channels) of weights, and of the bias in the first.
        biases: (layers - 1, channels) as far as they count.
        options: The threshold.
    """
    smallest = ranges.min(axis=0)
    active = (smallest > 0) & (ranges.max(axis=0) <= _FARTHEST * smallest)
    if options.use_threshold:
        active &= ranges.sum(axis=0) >= options.weight_threshold
    logarithms = np.log(np.where(active, ranges, 1.0))
    relative = logarithms - logarithms.mean(axis=0)
    shares = np.cumsum(relative[:-1], axis=0)
    if len(shares) > 1:
        shares = _with_biases(shares, logarithms, np.log(np.where(active & (biases > 0), biases, _NO_BIAS)))
    result: np.ndarray = np.exp(shares)
    return result


def _with_biases(shares: np.ndarray, ranges: np.ndarray, biases: np.ndarray) -> np.ndarray:
    """Move factors until each layer makes what the next one reads; all arguments and the result are logarithms."""
    edge = np.zeros((1, shares.shape[1]))
    for _ in range(_MOST_SWEEPS):
        padded = np.concatenate([edge, shares, edge])
        for layer in range(len(shares)):
            made = np.maximum(ranges[layer] + padded[layer], biases[layer])
            read = ranges[layer + 1] - padded[layer + 2]
            padded[layer + 1] = (made - read) / 2
        change = float(np.abs(padded[1:-1] - shares).max())
        shares = padded[1:-1]
        if change <= _EQUAL:
            break
    return shares


def _inputs(layer: Magnitudes) -> int:
    groups, _, inputs = layer.peak.shape
    return int(groups * inputs)


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


def _mean_change(layers: Sequence[Magnitudes], before: Sequence[Factors], after: Sequence[Factors]) -> float:
    """Return the mean of ``|w_after - w_before|`` over the weights of all layers."""
    changes = (
        float((layer.total * np.abs(_multiplier(layer, new) - _multiplier(layer, old))).sum())
        for layer, old, new in zip(layers, before, after, strict=True)
    )
    return sum(changes) / max(1, sum(layer.size for layer in layers))
