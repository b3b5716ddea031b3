"""Every metric against the shipped suite, and against formulas written here or in scipy."""

import math

import numpy as np
import pytest
import scipy.ndimage
import scipy.spatial.distance
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from quantry.errors import RecipeError
from quantry.evaluate import METRICS, find_metric
from quantry.evaluate.metrics.metric import pair_outputs
from quantry.testing.metric_suite import MetricSuite


class TestEveryMetric(MetricSuite):
    @pytest.fixture(params=METRICS, ids=lambda metric: metric.name)
    def metric(self, request):
        return request.param


def _pair(shape, seed=0, noise=0.1):
    generator = np.random.default_rng(seed)
    reference = generator.normal(0.3, 2, shape).astype(np.float32)
    return reference, (reference + generator.normal(0, noise, shape)).astype(np.float32)


def _windowed_ssim(reference, quantized):
    """Two images, by scipy's Gaussian filter with its radius cut to 5 pixels."""
    x, y = reference.astype(np.float64), quantized.astype(np.float64)
    span = x.max() - x.min()

    def blur(image):
        return scipy.ndimage.gaussian_filter(image, sigma=1.5, radius=5)[5:-5, 5:-5]

    mean_x, mean_y = blur(x), blur(y)
    var_x, var_y = blur(x * x) - mean_x**2, blur(y * y) - mean_y**2
    covariance = blur(x * y) - mean_x * mean_y
    c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2
    numerator = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    return (numerator / ((mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2))).mean()


def _global_ssim(reference, quantized):
    x, y = reference.astype(np.float64).ravel(), quantized.astype(np.float64).ravel()
    (var_x, covariance), (_, var_y) = np.cov(x, y, bias=True)
    c1, c2 = (0.01 * np.ptp(x)) ** 2, (0.03 * np.ptp(x)) ** 2
    numerator = (2 * x.mean() * y.mean() + c1) * (2 * covariance + c2)
    return numerator / ((x.mean() ** 2 + y.mean() ** 2 + c1) * (var_x + var_y + c2))


def test_l1_is_the_mean_absolute_difference():
    reference, quantized = _pair((2, 30))
    expected = scipy.spatial.distance.cityblock(reference.ravel(), quantized.ravel()) / 60
    assert find_metric("l1").score(reference, quantized) == pytest.approx(expected, rel=1e-5)


def test_l2_is_the_mean_square_without_a_root():
    reference, quantized = _pair((2, 30))
    expected = scipy.spatial.distance.sqeuclidean(reference.ravel(), quantized.ravel()) / 60
    assert find_metric("l2").score(reference, quantized) == pytest.approx(expected, rel=1e-5)
    assert find_metric("l2").score(np.array([0.0, 0.0]), np.array([3.0, 4.0])) == 12.5


def test_cosine_agrees_with_scipy():
    reference, quantized = _pair((2, 30), noise=3)
    expected = 1 - scipy.spatial.distance.cosine(reference.ravel().astype(float), quantized.ravel().astype(float))
    assert find_metric("cosine").score(reference, quantized) == pytest.approx(expected)


def test_cosine_of_opposite_and_orthogonal_vectors():
    score = find_metric("cosine").score
    assert score(np.array([1.0, 2.0]), np.array([-2.0, -4.0])) == pytest.approx(-1)
    assert score(np.array([1.0, 0.0]), np.array([0.0, 5.0])) == 0
    assert score(np.array([0.0, 0.0]), np.array([1.0, 5.0])) == 0


def test_psnr_measures_against_the_span_of_the_reference():
    reference, quantized = _pair((1, 3, 8, 8))
    mse = np.mean((reference.astype(float) - quantized.astype(float)) ** 2)
    expected = 20 * math.log10(np.ptp(reference.astype(float)) / math.sqrt(mse))
    assert find_metric("psnr").score(reference, quantized) == pytest.approx(expected)


def test_psnr_of_an_8_bit_image_is_the_usual_one():
    image = np.tile(np.arange(256, dtype=np.uint8), (4, 1))
    off_by_one = np.where(image < 255, image + 1, 254).astype(np.uint8)
    assert find_metric("psnr").score(image, off_by_one) == pytest.approx(48.1308, abs=1e-4)


def test_psnr_of_a_constant_reference_uses_its_magnitude():
    assert find_metric("psnr").score(np.full(4, -5.0), np.full(4, -4.5)) == pytest.approx(20)
    assert find_metric("psnr").score(np.zeros(4), np.full(4, 0.1)) == pytest.approx(20)


def test_sqnr_is_signal_power_over_error_power():
    reference, quantized = _pair((5, 7))
    signal, error = reference.astype(float), reference.astype(float) - quantized.astype(float)
    expected = 10 * math.log10(signal.var() + signal.mean() ** 2) - 10 * math.log10(error.var() + error.mean() ** 2)
    assert find_metric("sqnr").score(reference, quantized) == pytest.approx(expected)


def test_sqnr_of_eight_bits_of_a_uniform_signal():
    signal = np.random.default_rng(0).uniform(-1, 1, 100_000)
    step = 2 / 256
    assert find_metric("sqnr").score(signal, np.round(signal / step) * step) == pytest.approx(8 * 6.0206, abs=0.05)


@pytest.mark.parametrize("name", ["psnr", "sqnr"])
def test_decibels_end_at_150(name):
    tiny = np.array([1.0, -1.0])
    assert find_metric(name).score(tiny, tiny + 1e-15) == 150
    assert find_metric(name).score(tiny * 1e-30, tiny) == -150


@pytest.mark.parametrize("noise", [0.01, 0.5, 5])
def test_ssim_of_images_agrees_with_scipy(noise):
    reference, quantized = _pair((1, 1, 20, 31), noise=noise)
    expected = _windowed_ssim(reference[0, 0], quantized[0, 0])
    assert find_metric("ssim").score(reference, quantized) == pytest.approx(expected, rel=1e-9)


def test_ssim_of_a_stack_is_the_mean_over_its_images_in_one_span():
    reference, quantized = _pair((3, 12, 15))
    # Every image gets the stack's extremes in a corner that its windows do see, so that all have one span.
    reference[:, 0, 0], reference[:, 0, 1] = -20, 20
    expected = np.mean([_windowed_ssim(one, other) for one, other in zip(reference, quantized, strict=True)])
    assert find_metric("ssim").score(reference, quantized) == pytest.approx(expected, rel=1e-9)


def test_ssim_of_many_images_is_computed_in_parts(monkeypatch):
    reference, quantized = _pair((2, 5, 12, 12))
    whole = find_metric("ssim").score(reference, quantized)
    monkeypatch.setattr("quantry.evaluate.metrics.ssim._CHUNK_ELEMENTS", 300)
    assert find_metric("ssim").score(reference, quantized) == pytest.approx(whole, rel=1e-12)


def test_ssim_reads_a_short_last_axis_as_channels():
    reference, quantized = _pair((1, 3, 16, 18))
    channels_last = find_metric("ssim").score(np.moveaxis(reference, 1, -1), np.moveaxis(quantized, 1, -1))
    assert channels_last == pytest.approx(find_metric("ssim").score(reference, quantized), rel=1e-12)


@pytest.mark.parametrize("shape", [(50,), (2, 25), (1, 8, 4, 4), (1, 2, 3, 12, 12)], ids=str)
def test_ssim_of_other_outputs_is_one_window(shape):
    reference, quantized = _pair(shape)
    expected = _global_ssim(reference, quantized)
    assert find_metric("ssim").score(reference, quantized) == pytest.approx(expected, rel=1e-9)


def test_ssim_keeps_its_digits_far_from_zero():
    reference, quantized = (values.astype(np.float64) for values in _pair((16, 16, 16)))
    near = find_metric("ssim").score(reference, quantized)
    far = find_metric("ssim").score(reference + 1e7, quantized + 1e7)
    # Far from zero the means agree, which leaves the second factor: a little more than the product.
    assert near <= far + 1e-6
    assert far == pytest.approx(near, abs=0.01)


def test_ssim_of_several_outputs_weighs_them_by_their_elements():
    metric = find_metric("ssim")
    pairs = [_pair((1, 2, 16, 16)), _pair((40,), seed=3, noise=2)]
    alone = [metric.score(*pair) for pair in pairs]
    together = metric.score_outputs([pair_outputs(*pair) for pair in pairs])
    assert together == pytest.approx((512 * alone[0] + 40 * alone[1]) / 552)


def test_several_outputs_are_scored_as_one_vector():
    pairs = [_pair((1, 2, 4)), _pair((9,), seed=3)]
    joined = [np.concatenate([pair[side].ravel() for pair in pairs]) for side in (0, 1)]
    for name in ("l1", "l2", "cosine", "psnr", "sqnr"):
        metric = find_metric(name)
        assert metric.score_outputs([pair_outputs(*pair) for pair in pairs]) == pytest.approx(metric.score(*joined))


def test_labels_score_the_share_of_wrong_ones():
    labels = np.array([3, 1, 4, 1], dtype=np.int64)
    predicted = np.array([3, 1, 4, 90], dtype=np.int64)
    assert find_metric("l1").score(labels, predicted) == 0.25
    assert find_metric("cosine").score(labels, predicted) == pytest.approx(math.sqrt(0.75))


def test_labels_above_the_range_of_float64_are_reported_apart():
    labels = np.array([2**53, 2**53], dtype=np.int64)
    assert find_metric("l1").score(labels, np.array([2**53, 2**53 + 1], dtype=np.int64)) == 0.5


def test_eight_bit_outputs_are_amounts():
    assert find_metric("l1").score(np.array([0, 200], np.uint8), np.array([10, 199], np.uint8)) == 5.5


_finite = st.floats(-(2.0**100), 2.0**100, width=32)


@given(
    pair=st_numpy.array_shapes(min_dims=0, max_dims=4, max_side=13).flatmap(
        lambda shape: st.tuples(
            st_numpy.arrays(np.float32, shape, elements=_finite), st_numpy.arrays(np.float32, shape, elements=_finite)
        )
    )
)
@settings(max_examples=60, deadline=None)
def test_scores_lie_between_worst_and_best(pair):
    for metric in METRICS:
        score = metric.score(*pair)
        low, high = sorted((metric.worst, metric.best))
        assert low <= score <= high + 1e-12, metric.name


@pytest.mark.parametrize(
    ("given_name", "expected"), [("cos", "cosine"), ("COSINE", "cosine"), ("L2", "l2"), ("MSE", "l2")]
)
def test_find_metric_accepts_aliases_in_any_case(given_name, expected):
    assert find_metric(given_name).name == expected


def test_find_metric_offers_the_nearest_spelling():
    with pytest.raises(RecipeError, match=r"got 'cosin'; did you mean 'cosine'\?"):
        find_metric("cosin")


def test_metric_names_are_unique():
    names = [name for metric in METRICS for name in (metric.name, *metric.aliases)]
    assert len(set(names)) == len(names)
