"""Quantiles and percentile ranges, against numpy and onnxruntime."""

import contextlib
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnxruntime.quantization.calibrate import HistogramCollector

from quantry.numerics.grid import Grid
from quantry.numerics.histogram import magnitude_quantile, quantile
from quantry.numerics.rounding import fake_quantize
from quantry.recipe import DataType, LayerWisePercentile, MinMax, Percentile
from quantry.scale import BinnedValues, ExactValues, find_range
from quantry.testing.range_suite import SAMPLES, params_of, stats_of

INT8 = Grid(DataType.INT8, symmetric=True)
UINT8 = Grid(DataType.UINT8, symmetric=False)


def ort_range(values: np.ndarray, percentile: float, symmetric: bool, bins: int) -> tuple[float, float]:
    collector = HistogramCollector("percentile", symmetric, bins, 128, percentile, "same")
    with contextlib.redirect_stdout(io.StringIO()):
        collector.collect({"x": values})
        result = collector.compute_collection_result()["x"]
    return float(result[0]), float(result[1])


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("percentile", [90.0, 99.0, 99.9])
@pytest.mark.parametrize("sample", SAMPLES)
def test_percentile_range_equals_onnxruntime_within_a_bin(sample, percentile, symmetric):
    values, bins = SAMPLES[sample], 2048
    low, high = ort_range(values, percentile, symmetric, bins)
    fraction = percentile / 100 if symmetric else 1 - (1 - percentile / 100) / 2
    # A bin of theirs, a bin of ours (1/128 of a value at most), and two values on either side: rounding in the running
    # sums decides between neighbours, which lie far apart in sparse tails.
    width = 2 * float(np.abs(values).max()) / bins + max(abs(low), abs(high)) / 128
    spread = (max(fraction - 2 / values.size, 0), min(fraction + 2 / values.size, 1))
    upper = np.quantile(np.abs(values) if symmetric else values, spread)
    lower = -upper if symmetric else np.quantile(values, [1 - part for part in spread])
    for observed in (ExactValues(values), BinnedValues(stats_of([values]))):
        ours = find_range(observed, Percentile(percentile, symmetric), INT8)
        for got, theirs, near in ((ours.low[0], low, lower), (ours.high[0], high, upper)):
            assert got == pytest.approx(theirs, abs=width + abs(float(near[1] - near[0])))


@settings(max_examples=100, deadline=None)
@given(
    values=hnp.arrays(np.float32, st.integers(1, 200), elements=st.floats(-100, 100, width=32)),
    fraction=st.floats(0, 1),
)
def test_counted_quantiles_lie_in_the_bin_of_the_exact_ones(values, fraction):
    counted, exact = BinnedValues(stats_of([values])), ExactValues(values)
    for name, oracle in (("quantile", values), ("magnitude_quantile", np.abs(values))):
        expected = np.quantile(oracle, fraction, method="inverted_cdf")
        assert getattr(exact, name)(fraction)[0] == expected
        assert getattr(counted, name)(fraction)[0] == pytest.approx(expected, rel=1 / 128, abs=1e-39)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("sample", SAMPLES)
def test_hundred_percent_is_min_max(sample, symmetric):
    for observed in (ExactValues(SAMPLES[sample]), BinnedValues(stats_of([SAMPLES[sample]]))):
        whole, extremes = (find_range(observed, m, UINT8) for m in (Percentile(100.0, symmetric), MinMax()))
        np.testing.assert_array_equal([whole.low, whole.high], [extremes.low, extremes.high])


def mass_within(stats, threshold: float) -> float:
    """Mass in [-t, t], spread evenly inside the bins."""
    bins = stats.distribution()
    width = np.where(bins.upper > bins.lower, bins.upper - bins.lower, 1.0)
    cut = np.clip(np.minimum(bins.upper, threshold) - np.maximum(bins.lower, -threshold), 0, None) / width
    whole = (bins.lower >= -threshold) & (bins.upper <= threshold)
    return float((bins.counts * np.where(whole, 1.0, cut)).sum())


@settings(max_examples=200, deadline=None)
@given(
    values=hnp.arrays(
        np.float32,
        st.integers(1, 60),
        # Few magnitudes, of which many are the first of a bin, so that bins of both signs meet.
        elements=st.sampled_from([-3.01, -3.0, -2.0, -1.003, -1.0, -0.0, 0.0, 1e-3, 1.0, 1.001, 1.004, 2.0, 3.0, 3.02]),
    ),
    fraction=st.floats(0, 0.9999),
)
def test_magnitude_quantile_is_the_smallest_threshold_that_holds_its_share(values, fraction):
    stats = stats_of([values])
    threshold = magnitude_quantile(stats, fraction)
    wanted = fraction * values.size
    assert mass_within(stats, threshold * (1 + 1e-12)) >= wanted - 1e-6
    if threshold > 0:
        assert mass_within(stats, threshold * (1 - 1e-9)) <= wanted + 1e-6


@pytest.mark.parametrize("metric", ["mae", "mse"])
@pytest.mark.parametrize("sample", SAMPLES)
def test_layer_wise_percentile_is_the_candidate_with_the_least_error(sample, metric):
    values, candidates = SAMPLES[sample], (90.0, 99.0, 99.9, 100.0)
    exact = ExactValues(values)

    def error(percentile: float) -> float:
        params = params_of(find_range(exact, Percentile(percentile), UINT8), UINT8)
        difference = np.abs(fake_quantize(values, params).astype(np.float64) - values)
        return float((difference if metric == "mae" else difference**2).mean())

    chosen = find_range(exact, LayerWisePercentile(candidates, metric), UINT8)
    best = find_range(exact, Percentile(min(candidates, key=error)), UINT8)
    np.testing.assert_array_equal([chosen.low, chosen.high], [best.low, best.high])


@pytest.mark.parametrize("value", [-1.4136584, 1.4136584, -3.0e38, -0.0, 1e-42])
def test_quantiles_of_one_value_are_that_value(value):
    values = np.full(3, value, np.float32)
    stats = stats_of([values])
    for fraction in (0.5, 0.9999, 1.0):
        assert quantile(stats, fraction) == values[0]
        assert magnitude_quantile(stats, fraction) == abs(values[0])


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize(("fraction", "count"), [(0.5, 2), (0.75, 8), (0.9999, 10_000)])
def test_magnitude_quantile_cuts_off_exactly_what_one_tail_holds(fraction, count, sign):
    inner = round(fraction * count)
    values = np.concatenate([np.full(count - inner, 100.0), np.linspace(-1.0, 1.0, inner)]).astype(np.float32) * sign
    assert magnitude_quantile(stats_of([values]), fraction) == pytest.approx(1.0, rel=1 / 128)
