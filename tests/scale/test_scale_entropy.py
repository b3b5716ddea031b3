"""The entropy search against onnxruntime's."""

import contextlib
import io

import numpy as np
import pytest
from onnxruntime.quantization.calibrate import HistogramCollector

from quantry.numerics.grid import Grid
from quantry.recipe import DataType, Entropy
from quantry.scale import BinnedValues, ExactValues, find_range
from quantry.scale.ranges.entropy import _divergences, _spans
from quantry.testing.range_suite import SAMPLES, stats_of

INT8 = Grid(DataType.INT8, symmetric=True)


def ort_range(values: np.ndarray, options: Entropy) -> tuple[float, float]:
    collector = HistogramCollector("entropy", 1, options.bins, options.quantized_bins, 99.0, "same")
    with contextlib.redirect_stdout(io.StringIO()):
        collector.collect({"x": values})
        result = collector.compute_collection_result()["x"]
    return float(result[0]), float(result[1])


@pytest.mark.parametrize("options", [Entropy(), Entropy(256, 128), Entropy(301, 64), Entropy(257, 33)], ids=str)
@pytest.mark.parametrize("sample", SAMPLES)
def test_choice_diverges_as_little_as_onnxruntimes(sample, options):
    """Where several ranges diverge equally little, onnxruntime's float32 decides; so divergences are compared."""
    values = SAMPLES[sample]
    largest = np.abs(values).max()
    histogram, edges = np.histogram(values, options.bins, range=(-largest, largest))
    spans = _spans(options)
    divergences = _divergences(histogram.astype(np.int64), spans)
    low, high = ort_range(values, options)
    starts, ends = (np.maximum(edges[spans.start], values.min()), np.minimum(edges[spans.end], values.max()))
    theirs = np.isclose(starts, low, rtol=1e-5) & np.isclose(ends, high, rtol=1e-5)
    assert theirs.any()
    assert divergences[theirs].min() == pytest.approx(divergences.min(), rel=1e-4)


@pytest.mark.parametrize("sample", SAMPLES)
def test_default_range_equals_onnxruntimes(sample):
    low, high = ort_range(SAMPLES[sample], Entropy())
    for observed in (ExactValues(SAMPLES[sample]), BinnedValues(stats_of([SAMPLES[sample]]))):
        ours = find_range(observed, Entropy(), INT8)
        assert (ours.low[0], ours.high[0]) == pytest.approx((low, high), rel=1e-6)


@pytest.mark.parametrize("sample", SAMPLES)
def test_histograms_of_counted_and_exact_values_agree(sample):
    values, bins = SAMPLES[sample], 64
    largest = np.abs(values).max()
    expected = np.histogram(values, bins, range=(-largest, largest))[0]
    np.testing.assert_array_equal(ExactValues(values).histogram(bins)[0], expected)
    counted = BinnedValues(stats_of([values])).histogram(bins)[0]
    assert counted.sum() == values.size
    # Only the values of the float bins that an edge cuts can be on the other side.
    assert np.abs(np.cumsum(counted) - np.cumsum(expected)).max() < 0.02 * values.size


def test_zeros_are_counted_right_of_the_centre():
    for observed in (ExactValues(np.array([0, 0, 1], np.float32)), BinnedValues(stats_of([[0, 0, 1]]))):
        assert observed.histogram(4).tolist() == [[0, 0, 2, 1]]
