"""The arithmetic of cross-layer equalization, against a slow version on whole weights."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from quantry.equalize.cross_layer import Magnitudes, balance, counted_bias, magnitudes
from quantry.equalize.linear_layer import ChannelLayout, bias_magnitude, scaled_bias
from quantry.recipe import CrossLayer

FREE = CrossLayer(use_threshold=False)


def dense(weight: np.ndarray, bias: np.ndarray | None = None) -> Magnitudes:
    """A layer of (outputs, inputs, kernel) weights in one group."""
    return magnitudes(weight[None], np.zeros(len(weight)) if bias is None else bias)


def weights(seed: int, outputs: int, inputs: int, kernel: int = 3) -> np.ndarray:
    random = np.random.default_rng(seed)
    spread = 10 ** random.uniform(-2, 2, (outputs, 1, 1)) * 10 ** random.uniform(-2, 2, (1, inputs, 1))
    result: np.ndarray = random.standard_normal((outputs, inputs, kernel)) * spread
    return result


def slowly(weight: list[np.ndarray], bias: list[np.ndarray], sweeps: int) -> list[np.ndarray]:
    """Pairwise equalization of consecutive layers, written as the paper has it, channel by channel."""
    weight, bias = [array.copy() for array in weight], [array.copy() for array in bias]
    for _ in range(sweeps):
        for first in range(len(weight) - 1):
            for channel in range(len(weight[first])):
                made = max(np.abs(weight[first][channel]).max(), bias[first][channel])
                read = np.abs(weight[first + 1][:, channel]).max()
                if made * read == 0:
                    continue
                share = made / np.sqrt(made * read)
                weight[first][channel] /= share
                bias[first][channel] /= share
                weight[first + 1][:, channel] *= share
    return weight


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.booleans())
@settings(max_examples=30, deadline=None)
def test_sweeps_are_those_of_the_paper(seed: int, sweeps: int, biased: bool) -> None:
    layers = [weights(seed, 5, 3), weights(seed + 1, 4, 5), weights(seed + 2, 3, 4)]
    layers[0][2] = 0
    bias = [np.random.default_rng(seed).uniform(0, 9, len(layer)) * biased for layer in layers]
    known = [dense(layer, b) for layer, b in zip(layers, bias, strict=True)]
    factors, done = balance(known, [(0, 1), (1, 2)], CrossLayer(steps=sweeps, use_threshold=False))
    assert done == sweeps
    for layer, factor, expected in zip(layers, factors, slowly(layers, bias, sweeps), strict=True):
        actual = layer * factor.outputs[:, None, None] * factor.inputs[None, :, None]
        np.testing.assert_allclose(actual, expected, rtol=1e-9)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_a_chain_is_where_pairs_come_to_rest(seed: int) -> None:
    random = np.random.default_rng(seed)
    first, last = weights(seed, 6, 3), weights(seed + 1, 4, 6)
    depthwise = [magnitudes(random.standard_normal((6, 1, 1, 9)) * 10, np.zeros(6)) for _ in range(2)]
    layers = [dense(first), *depthwise, dense(last)]
    together, _ = balance(layers, [(0, 1, 2, 3)], FREE)
    pairs, sweeps = balance(layers, [(0, 1), (1, 2), (2, 3)], CrossLayer(-1, use_threshold=False, convergence=1e-13))
    assert 1 < sweeps < 1000
    for one, other in zip(together, pairs, strict=True):
        np.testing.assert_allclose(one.outputs, other.outputs, rtol=1e-6)
        np.testing.assert_allclose(one.inputs, other.inputs, rtol=1e-6)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_a_bias_between_depthwise_layers_is_balanced_with_what_reads_it(seed: int) -> None:
    random = np.random.default_rng(seed)
    middle = [random.standard_normal(6), random.standard_normal(6)]
    biases = [random.uniform(0, 9, 6) * (random.random(6) < 0.7) for _ in range(3)]
    first, last = weights(seed, 6, 3), weights(seed + 1, 4, 6)
    layers = [
        dense(first, biases[0]),
        *(magnitudes(weight.reshape(6, 1, 1, 1), bias) for weight, bias in zip(middle, biases[1:], strict=True)),
        dense(last),
    ]
    factors, sweeps = balance(layers, [(0, 1, 2, 3)], CrossLayer(-1, use_threshold=False))
    assert sweeps == 2
    ranges = [
        np.abs(first).max(axis=(1, 2)) * factors[0].outputs,
        *(np.abs(middle[i]) * factors[i + 1].outputs * factors[i + 1].inputs for i in range(2)),
        np.abs(last).max(axis=(0, 2)) * factors[3].inputs,
    ]
    for i, bias in enumerate(biases):
        np.testing.assert_allclose(np.maximum(ranges[i], bias * factors[i].outputs), ranges[i + 1], rtol=1e-9)


def test_one_pair_is_at_rest_after_one_sweep() -> None:
    _, sweeps = balance([dense(weights(0, 4, 3)), dense(weights(1, 3, 4))], [(0, 1)], CrossLayer(steps=-1))
    assert sweeps == 2


def test_channels_below_the_threshold_keep_their_weights() -> None:
    first, second = np.array([[[0.1]], [[0.4]]]), np.array([[[0.3], [0.2]]])
    layers = [dense(first), dense(second)]
    factors, _ = balance(layers, [(0, 1)], CrossLayer(weight_threshold=0.5))
    assert factors[0].outputs[0] == 1
    np.testing.assert_allclose(factors[0].outputs[1], np.sqrt(0.4 * 0.2) / 0.4)
    free, _ = balance(layers, [(0, 1)], FREE)
    np.testing.assert_allclose(free[0].outputs[0], np.sqrt(0.1 * 0.3) / 0.1)


@pytest.mark.parametrize(("made", "read"), [(0.0, 1.0), (1.0, 0.0), (1e-38, 1.0), (1.0, 1e-38)])
def test_channels_that_do_nothing_keep_their_weights(made: float, read: float) -> None:
    factors, _ = balance([dense(np.full((1, 1, 1), made)), dense(np.full((1, 1, 1), read))], [(0, 1)], FREE)
    assert factors[0].outputs == factors[1].inputs == 1


@pytest.mark.parametrize(
    ("bias", "peak", "divisor"),
    [
        ([0.5, 0.2], [0.1, 0.2], 2),
        ([0.5, 0.2, 0.1], [0.5, 0.001, 0.0005], 5),
        ([5.0, 4.0], [0.2, 0.2], 10),
        ([5.0, 5.0], [0.1, 0.1], 20),
        ([50.0, 1.0], [10.0, 10.0], 5),
    ],
)
def test_biases_count_by_a_fraction_of_their_layer(bias: list[float], peak: list[float], divisor: int) -> None:
    np.testing.assert_allclose(counted_bias(np.array(bias), np.array(peak)), np.array(bias) / divisor)


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (ChannelLayout(2, 6, 4, input_first=False), (6, 2, 3, 3)),
        (ChannelLayout(2, 6, 4, input_first=True), (4, 3, 3, 3)),
        (ChannelLayout(1, 6, 4, input_first=True), (4, 6)),
        (ChannelLayout(1, 6, 4, input_first=False), (6, 4)),
    ],
)
def test_scaling_touches_each_channel_in_its_own_place(layout: ChannelLayout, shape: tuple[int, ...]) -> None:
    outputs, inputs = np.arange(1.0, 7.0), 10.0 ** np.arange(4)
    scaled = layout.scaled(np.ones(shape, np.float32), outputs, inputs)
    assert scaled.shape == shape
    assert scaled.dtype == np.float32
    for group in range(layout.groups):
        mine = layout.view(scaled)[group, :, :, 0]
        rows, columns = 6 // layout.groups, 4 // layout.groups
        expected = np.outer(outputs[group * rows :][:rows], inputs[group * columns :][:columns])
        np.testing.assert_array_equal(mine, expected)


def test_biases_of_any_shape_spread_over_the_channels() -> None:
    factors = np.array([1.0, 2.0, 4.0])
    np.testing.assert_array_equal(scaled_bias(np.float32(3), factors), [3, 6, 12])
    np.testing.assert_array_equal(scaled_bias(np.array([[1], [2]], np.float32), factors), [[1, 2, 4], [2, 4, 8]])
    np.testing.assert_array_equal(bias_magnitude(np.array([[1, -5, 2], [-3, 1, 1]]), 3), [3, 5, 2])
    np.testing.assert_array_equal(bias_magnitude(None, 2), [0, 0])
