"""Factors for channels with one step: the walk ends where no other factors are better."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantry.equalize.smooth_factors import (
    ChannelRanges,
    ReadingLayer,
    ReadingWeight,
    Rounding,
    SharedStep,
    best_factors,
    estimated_error,
    gradient_descent,
)

_INT8 = Rounding(8, symmetric=True)


def total(factors: np.ndarray, makers: list[SharedStep], readers: list[ReadingWeight], importance: np.ndarray) -> float:
    made = sum(maker.error(factors, importance) for maker in makers)
    return made + sum(
        float((reader.peak * factors).max() ** 2 * (reader.noise / factors**2).sum()) for reader in readers
    )


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_no_random_factors_are_much_better(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = 12
    makers = [SharedStep(10 ** random.uniform(-1, 1, count), float(random.uniform(0.1, 1))) for _ in range(3)]
    readers = [ReadingWeight(10 ** random.uniform(-1, 1, count), random.uniform(0, 1, count))]
    importance = random.uniform(0.1, 1, count)
    found = gradient_descent(np.ones(count), makers, readers, importance)
    least = total(found, makers, readers, importance)
    assert least <= total(np.ones(count), makers, readers, importance) * 1.05
    for _ in range(200):
        other = found * np.exp(random.normal(0, random.uniform(0.01, 1), count))
        assert total(other, makers, readers, importance) > 0.8 * least


def test_one_wide_channel_is_divided_by_its_excess() -> None:
    extent = np.ones(8)
    extent[3] = 32.0
    maker = SharedStep(extent, 1.0)
    found = gradient_descent(np.ones(8), [maker], [], np.ones(8))
    assert found[3] > 10 * found[0]
    assert maker.error(found, np.ones(8)) == pytest.approx(maker.error(extent, np.ones(8)), rel=0.03)


def test_channels_that_are_not_part_of_a_maker_do_not_count() -> None:
    maker = SharedStep(np.array([2.0, 0.0]), 1.0)
    assert maker.error(np.array([2.0, 100.0]), np.ones(2)) == pytest.approx(4.0)


def test_what_makes_a_tensor_moves_its_factors() -> None:
    ranges = ChannelRanges.of(np.zeros(2), np.ones(2), 1.0)
    layer = ReadingLayer.of(np.ones((1, 3, 2, 1)))
    alone, _, _ = best_factors(ranges, [layer], _INT8, _INT8)
    np.testing.assert_allclose(alone / alone[0], 1.0, rtol=0.05)
    maker = SharedStep(np.array([1.0, 64.0]), 0.01)
    factors, before, after = best_factors(ranges, [layer], _INT8, _INT8, [maker])
    assert factors[1] > 4 * factors[0]
    assert after < before
    assert after == pytest.approx(estimated_error(ranges, [layer], factors, _INT8, _INT8, [maker]))
