import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quantry.observe.counting import CODES, CountingSpace, TensorCounter, code_counter, count_codes

COUNTERS = [count_codes, code_counter()]


def counted(counter, values: np.ndarray) -> tuple[np.ndarray, tuple[float, float]]:
    histogram = np.zeros(CODES, np.uint32)
    return histogram, counter(values, histogram)


@given(hnp.arrays(np.uint32, st.integers(0, 300)))
def test_compiled_counter_counts_what_numpy_counts(bits: np.ndarray) -> None:
    values = bits.view(np.float32)
    expected, extremes = counted(count_codes, values)
    histogram, same = counted(code_counter(), values)
    np.testing.assert_array_equal(histogram, expected)
    np.testing.assert_array_equal(same, extremes)
    np.testing.assert_array_equal(expected, np.bincount(bits >> 16, minlength=CODES))


@pytest.mark.parametrize("counter", COUNTERS)
@given(values=hnp.arrays(np.float32, st.integers(1, 50), elements=st.integers(-999, 999).map(lambda n: n / 8)))
def test_extremes_are_exact(counter, values: np.ndarray) -> None:
    assert counted(counter, values)[1] == (values.min(), values.max())


@pytest.mark.parametrize("counter", COUNTERS)
@pytest.mark.parametrize("strange", [math.nan, -math.nan, math.inf, -math.inf])
def test_extremes_are_nan_when_any_value_is_not_finite(counter, strange: float) -> None:
    values = np.array([1.0, strange, -2.0], np.float32)
    assert all(math.isnan(extreme) for extreme in counted(counter, values)[1])


@pytest.mark.parametrize("counter", COUNTERS)
def test_zeros_have_no_sign(counter) -> None:
    low, high = counted(counter, np.array([-0.0, 0.0], np.float32))[1]
    assert math.copysign(1, low) == math.copysign(1, high) == 1


@pytest.mark.parametrize("counter", COUNTERS)
def test_nothing_counted_has_empty_extremes(counter) -> None:
    histogram, extremes = counted(counter, np.empty(0, np.float32))
    assert extremes == (math.inf, -math.inf)
    assert not histogram.any()


FINITE = st.integers(-99, 99).map(lambda number: number / 8)


@given(
    feeds=st.lists(hnp.arrays(np.float32, st.tuples(st.integers(1, 3), st.just(4), st.just(2)), elements=FINITE)),
    spoiled=st.booleans(),
)
def test_the_runner_up_is_what_the_second_strongest_sample_reaches(feeds: list[np.ndarray], spoiled: bool) -> None:
    counter = TensorCounter(CountingSpace(), channel_axis=1)
    for values in feeds:
        # Values that are not finite do not count.
        counter.add(np.concatenate([values, np.full_like(values, np.nan)], axis=2) if spoiled else values)
    channels = counter.freeze().stats.channels
    if not feeds:
        assert channels is None
        return
    reached = np.sort([np.abs(values).max(axis=(0, 2)) for values in feeds], axis=0)
    np.testing.assert_array_equal(channels.peaks, reached[-1])
    np.testing.assert_array_equal(channels.runners_up, reached[-2] if len(reached) > 1 else 0.0)
