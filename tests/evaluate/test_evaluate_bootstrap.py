import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from quantry.evaluate import bootstrap_interval


def test_interval_agrees_with_scipy():
    scores = np.random.default_rng(0).gamma(2, 3, 80)
    expected = scipy.stats.bootstrap(
        (scores,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    low, high = bootstrap_interval(scores, resamples=20_000)
    assert low == pytest.approx(expected.low, abs=0.05)
    assert high == pytest.approx(expected.high, abs=0.05)


def test_interval_covers_the_true_mean_about_as_often_as_it_says():
    generator = np.random.default_rng(5)
    intervals = [bootstrap_interval(generator.normal(3, 1, 60), resamples=400) for _ in range(300)]
    assert 0.89 <= np.mean([low <= 3 <= high for low, high in intervals]) <= 0.99


def test_same_scores_give_the_same_interval():
    scores = np.random.default_rng(0).normal(size=30)
    assert bootstrap_interval(scores) == bootstrap_interval(scores.copy())
    assert bootstrap_interval(scores) != bootstrap_interval(scores, seed=1)


def test_interval_of_one_sample_is_the_sample():
    assert bootstrap_interval(np.array([0.25])) == (0.25, 0.25)


def test_higher_confidence_is_wider():
    scores = np.random.default_rng(0).normal(size=30)
    (low90, high90), (low99, high99) = (bootstrap_interval(scores, confidence=level) for level in (0.9, 0.99))
    assert low99 < low90 < high90 < high99


def test_infinite_scores_give_an_infinite_end_and_no_nan():
    scores = np.array([0.1, 0.2, 0.3, np.inf])
    low, high = bootstrap_interval(scores)
    assert low < high == np.inf
    assert bootstrap_interval(np.full(3, np.inf)) == (np.inf, np.inf)


def test_many_samples_are_drawn_in_parts():
    scores = np.random.default_rng(0).normal(size=3_000)
    low, high = bootstrap_interval(scores)
    half_width = 1.96 * scores.std() / np.sqrt(3_000)
    assert (high - low) / 2 == pytest.approx(half_width, rel=0.1)


@given(scores=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
@settings(max_examples=30, deadline=None)
def test_interval_lies_within_the_scores(scores):
    low, high = bootstrap_interval(np.array(scores), resamples=50)
    slack = 1e-9 * max(map(abs, scores))
    assert min(scores) - slack <= low <= high <= max(scores) + slack
