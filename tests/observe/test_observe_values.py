import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from observe_oracle import assert_exactly, histogram, quantiles
from quantry.errors import InternalError
from quantry.memo import fingerprint
from quantry.numerics.histogram import Distribution, TensorStats
from quantry.numerics.scalar_function import TurningPoint
from quantry.observe import Needs, Statistics
from quantry.observe.counting import CountingSpace, TensorCounter

ANY_FLOATS = hnp.arrays(np.float32, st.integers(0, 60), elements=st.floats(width=32))
FINITE_FLOATS = hnp.arrays(
    np.float32,
    st.integers(1, 60),
    elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_nan=False, allow_infinity=False),
)


def counted(*arrays, turns=(), axis=None):
    counter = TensorCounter(CountingSpace(), turns, axis)
    for array in arrays:
        counter.add(np.ascontiguousarray(array, np.float32))
    return counter.freeze()


@given(st.lists(ANY_FLOATS, min_size=1, max_size=4))
def test_counting_equals_numpy_for_any_floats(arrays):
    assert_exactly(counted(*arrays).stats, arrays)


def test_counting_equals_numpy_over_several_chunks():
    values = np.random.default_rng(0).standard_normal((3, 70001)).astype(np.float32)
    assert_exactly(counted(values).stats, [values])


def test_nan_whose_upper_half_looks_like_infinity_is_nan():
    values = np.array([0x7F800001, 0xFF800001, 0x7F800000, 0x3F800000], np.uint32).view(np.float32)
    stats = counted(values).stats
    assert (stats.nan_count, stats.inf_count, stats.minimum, stats.maximum) == (2, 1, 1.0, 1.0)


def test_tensor_without_finite_values_has_inverted_extrema():
    stats = counted(np.array([np.nan, np.inf])).stats
    assert (stats.minimum, stats.maximum, stats.finite_count) == (np.inf, -np.inf, 0)
    assert stats.distribution().total == 0


@given(st.lists(ANY_FLOATS, min_size=3, max_size=3))
def test_merge_is_counting_everything_in_any_grouping(arrays):
    a, b, c = (counted(array).stats for array in arrays)
    assert_exactly(a.merge(b).merge(c), arrays)
    assert_exactly(a.merge(b.merge(c)), arrays)
    assert_exactly(c.merge(a).merge(b), [arrays[2], arrays[0], arrays[1]])


def test_merge_keeps_channel_extrema_only_if_both_have_them():
    a, b = np.array([[1.0, 5.0], [-2.0, 3.0]]), np.array([[0.0, 9.0], [-1.0, -1.0]])
    both = counted(a, axis=0).stats.merge(counted(b, axis=0).stats)
    np.testing.assert_array_equal(both.channels.minima, [0.0, -2.0])
    np.testing.assert_array_equal(both.channels.maxima, [9.0, 3.0])
    assert counted(a, axis=0).stats.merge(counted(b).stats).channels is None


def test_merge_of_different_channel_counts_raises():
    with pytest.raises(InternalError, match="equal numbers of channels"):
        counted(np.zeros((2, 3)), axis=0).stats.merge(counted(np.zeros((3, 3)), axis=0).stats)


def test_channel_extrema_leave_nan_out():
    stats = counted(np.array([[1.0, np.nan], [np.inf, 3.0]]), axis=-1).stats
    np.testing.assert_array_equal(stats.channels.minima, [1.0, 3.0])
    np.testing.assert_array_equal(stats.channels.maxima, [1.0, 3.0])


@given(FINITE_FLOATS)
def test_distribution_is_ordered_and_holds_every_value(values):
    distribution = counted(values).stats.distribution()
    assert distribution.total == values.size
    assert (distribution.counts > 0).all()
    assert (distribution.lower <= distribution.upper).all()
    assert (distribution.upper[:-1] <= distribution.lower[1:]).all()
    assert distribution.lower[0] == values.min() or abs(values.min()) < 1e-40
    assert distribution.upper[-1] == values.max() or abs(values.max()) < 1e-40
    for value in values.astype(np.float64):
        assert ((distribution.lower <= value) & (value <= distribution.upper)).any() or abs(value) < 1e-40


@given(FINITE_FLOATS)
def test_quantiles_are_within_one_bin(values):
    probabilities = (np.arange(values.size) + 0.5) / values.size
    found = quantiles(counted(values).stats.distribution(), probabilities)
    exact = np.sort(values).astype(np.float64)
    assert (np.abs(found - exact) <= 2.0**-7 * np.abs(exact) + 1e-37).all()


def test_both_zeros_are_one_point_mass():
    distribution = counted(np.array([0.0, -0.0, -0.0, 1.0, -1.0])).stats.distribution()
    np.testing.assert_array_equal(distribution.lower, [-1.0, 0.0, 1.0])
    np.testing.assert_array_equal(distribution.upper, [-1.0, 0.0, 1.0])
    np.testing.assert_array_equal(distribution.counts, [1, 3, 1])


def test_minus_zeros_alone_are_zero():
    distribution = counted(np.array([-0.0, -0.0])).stats.distribution()
    assert (distribution.lower.tolist(), distribution.counts.tolist()) == ([0.0], [2.0])


def test_largest_floats_have_finite_bounds():
    largest = np.finfo(np.float32).max
    distribution = counted(np.array([largest, -largest])).stats.distribution()
    assert distribution.upper[-1] == largest
    assert distribution.lower[0] == -largest


@given(FINITE_FLOATS, st.floats(-100, 100, width=32))
def test_nearest_values_to_a_turning_point_are_found(values, position):
    turn = TurningPoint(position, 0.0)
    ((below, above),) = counted(values, turns=[turn]).near_turns.values()
    if not values.min() < position < values.max():
        assert np.isnan(below).all()
        assert np.isnan(above).all()
        return
    if (values == np.float32(position)).any():
        assert np.float32(position) in (below[0], above[0])
        return
    # Their distance is rounded to float32.
    for found, nearest in ((below[0], values[values < position].max()), (above[0], values[values > position].min())):
        assert abs(found - nearest) <= 1e-6 * (abs(nearest) + abs(position))


def test_search_for_the_nearest_value_stops_at_one_that_is_near_enough():
    values = np.concatenate([[0.1, -9.0, 9.0], np.zeros(1 << 17)]).astype(np.float32)
    ((_, above),) = counted(values, turns=[TurningPoint(0.0, 0.2)]).near_turns.values()
    assert above[0] in (np.float32(0.1), 0.0)


def test_statistics_survive_their_blob():
    arrays = np.random.default_rng(1).standard_normal((2, 4, 5)).astype(np.float32)
    tensors = {"a": counted(*arrays, axis=1).stats, "b": counted(arrays[0]).stats, "empty": counted(arrays[:0]).stats}
    statistics = Statistics(tensors, 2)
    back = Statistics.from_blob(statistics.to_blob())
    assert list(back.tensors) == ["a", "b", "empty"]
    assert back.samples == 2
    assert_exactly(back.tensors["a"], list(arrays))
    np.testing.assert_array_equal(back.tensors["a"].channels.minima, arrays.min((0, 1)))
    assert back.tensors["b"].channels is None
    assert fingerprint(back) == fingerprint(statistics)


def test_statistics_of_nothing_survive_their_blob():
    assert len(Statistics.from_blob(Statistics({}, 0).to_blob()).tensors) == 0


def test_statistics_differ_when_one_count_differs():
    def digest(counts):
        codes, _ = histogram(np.array([1.0, 2.0]))
        one = np.zeros(1, np.float32)
        stats = TensorStats(1.0, 2.0, 3, 0, 0, one, one, codes, np.array(counts))
        return fingerprint(Statistics({"x": stats}, 1))

    assert digest([1, 2]) != digest([2, 1])


def test_needs_do_not_depend_on_order_or_repetition():
    assert Needs((("b", 1), ("a", 0), ("b", 1))) == Needs((("a", 0), ("b", 1)))


def test_needs_refuse_two_axes_of_one_tensor():
    with pytest.raises(InternalError, match="one axis"):
        Needs((("a", 0), ("a", 1)))


def test_long_arrays_stay_out_of_the_text_of_stats():
    assert "codes" not in repr(counted(np.zeros(5)).stats)


def test_distribution_total_is_the_number_of_values():
    assert Distribution(np.zeros(2), np.ones(2), np.array([1.5, 2.0])).total == 3.5


def test_counts_beyond_32_bits_are_kept(monkeypatch):
    monkeypatch.setattr("quantry.observe.counting.HISTOGRAM_LIMIT", 1 << 16)
    monkeypatch.setattr("quantry.observe.counting.CHUNK", 1 << 12)
    values = np.random.default_rng(2).standard_normal((5, 50_000)).astype(np.float32)
    assert_exactly(counted(*values).stats, list(values))
