"""Runs of channels: as good as the best of all ways to cut."""

from itertools import combinations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from quantry.equalize.channel_groups import ChannelWeights, WeightStep, best_runs, chosen_runs


def channels(size: int, seed: int) -> ChannelWeights:
    random = np.random.default_rng(seed)
    peaks = 10 ** random.uniform(-2, 1, size)
    return ChannelWeights(peaks, peaks**2 * 9, 9, random.uniform(0, 1, size))


def error(weights: ChannelWeights, step: WeightStep, ends: tuple[int, ...]) -> float:
    total = 0.0
    for start, stop in zip((0, *ends[:-1]), ends, strict=True):
        total += float(step.squared(weights.peaks[start:stop].max())) * 9 * float(weights.reach[start:stop].sum())
    return total / float(weights.squares @ weights.reach)


@given(st.integers(2, 7), st.integers(0, 1000), st.booleans())
@settings(max_examples=60, deadline=None)
def test_runs_are_the_best_of_all(size: int, seed: int, power_of_two: bool) -> None:
    weights, step = channels(size, seed), WeightStep(127, power_of_two)
    for number, (least, ends) in enumerate(best_runs(weights, step, 4), start=1):
        possible = [(*cuts, size) for cuts in combinations(range(1, size), number - 1)]
        assert least == pytest.approx(min(error(weights, step, cuts) for cuts in possible))
        assert len(ends) == number
        assert error(weights, step, ends) == pytest.approx(least)


def test_equal_channels_are_one_run() -> None:
    weights = ChannelWeights(np.ones(8), np.ones(8), 4, np.ones(8))
    assert chosen_runs(weights, WeightStep(127, power_of_two=False), 4, 1.5) == (1.0, (8,))


def test_two_kinds_of_channels_are_two_runs() -> None:
    peaks = np.repeat([0.01, 1.0], [90, 10])
    factor, ends = chosen_runs(
        ChannelWeights(peaks, peaks**2, 4, np.ones(100)), WeightStep(127, power_of_two=False), 4, 1.5
    )
    assert ends == (90, 100)
    assert factor == pytest.approx(100 / (10 + 90e-4))


def test_channels_that_reach_nothing_are_one_run() -> None:
    weights = ChannelWeights(np.ones(4), np.ones(4), 1, np.zeros(4))
    assert best_runs(weights, WeightStep(127, power_of_two=False), 4) == [(0.0, (4,))]


def test_steps_that_are_powers_of_two_go_up() -> None:
    squares = WeightStep(127, power_of_two=True).squared(np.array([0.0, 127.0, 128.0]))
    np.testing.assert_allclose(squares, [0.0, 1 / 12, 4 / 12])
