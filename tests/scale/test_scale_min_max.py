"""MinMax and its averages over batches."""

import numpy as np
import pytest

from quantry.numerics.grid import Grid
from quantry.recipe import DataType, MinMax
from quantry.scale import BinnedValues, find_range
from quantry.testing.range_suite import stats_of

INT8 = Grid(DataType.INT8, symmetric=True)
BATCHES = [[-1.0, 4.0], [-3.0, 2.0], [-2.0, 9.0]]


def test_extremes_of_all_batches():
    interval = find_range(BinnedValues(stats_of(BATCHES)), MinMax(), INT8)
    assert (interval.low.tolist(), interval.high.tolist()) == ([-3], [9])


def test_constant_zero_is_the_plain_mean():
    interval = find_range(BinnedValues(stats_of(BATCHES)), MinMax(moving_average=0.0), INT8)
    assert (interval.low[0], interval.high[0]) == pytest.approx((-2, 5))


def test_newer_batches_weigh_more():
    interval = find_range(BinnedValues(stats_of(BATCHES)), MinMax(moving_average=0.5), INT8)
    weights = np.array([0.25, 0.5, 1.0]) / 1.75
    assert interval.high[0] == pytest.approx(weights @ [4, 2, 9])


def test_batches_without_a_finite_value_are_skipped():
    batches = [*BATCHES, [np.nan, np.inf], [np.nan] * 3]
    interval = find_range(BinnedValues(stats_of(batches)), MinMax(moving_average=0.999), INT8)
    assert interval.high[0] == pytest.approx(9, rel=0.01)
