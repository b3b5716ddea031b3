"""One judge: is it better, is it not worse than a margin, and how many useless changes pass if many are tried."""

import numpy as np
import pytest

from quantry.evaluate.paired import CONFIDENCE, Trust, difference_interval, is_better, is_not_worse


def test_a_loss_within_the_margin_is_not_worse() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(20, 3, 200)
    variant = base - 0.1 + rng.normal(0, 0.3, 200)
    assert is_not_worse(variant, base, margin=0.3)
    assert not is_not_worse(variant, base, margin=0.05)
    # Without a margin, a loss that is more than chance counts.
    assert not is_not_worse(variant, base)
    assert is_not_worse(base + rng.normal(0, 0.3, 200), base)


def test_few_decisions_that_are_lost_count_as_much_as_they_cost() -> None:
    base = np.ones(100)
    variant = base.copy()
    variant[:8] = 0.0
    assert not is_not_worse(variant, base, margin=0.01)
    assert is_not_worse(variant, base, margin=0.2)


def test_scores_of_other_samples_have_no_interval() -> None:
    assert difference_interval(np.ones(3), np.ones(4)) is None
    assert difference_interval(None, np.ones(4)) is None
    assert difference_interval(np.zeros(0), np.zeros(0)) is None
    assert difference_interval(np.full(5, 2.0), np.ones(5)) == (1.0, 1.0)


def _useless_changes_kept(*, corrected: bool) -> float:
    """The share of searches that keep at least one of fifteen changes that change nothing on average."""
    rng, wrong, searches = np.random.default_rng(1), 0, 300
    for _ in range(searches):
        trust = Trust()
        base = rng.normal(20, 3, 48)
        for _ in range(15):
            confidence = trust.confidence() if corrected else CONFIDENCE
            if is_better(base + rng.standard_t(4, 48), base, confidence):
                wrong += 1
                break
    return wrong / searches


def test_one_search_in_twenty_keeps_a_useless_change_however_many_are_tried() -> None:
    assert _useless_changes_kept(corrected=True) < 0.08
    # What was: about one in two.
    assert _useless_changes_kept(corrected=False) > 0.4


def test_a_change_that_is_kept_renews_the_budget() -> None:
    trust = Trust()
    first, second = trust.confidence(), trust.confidence()
    assert CONFIDENCE < first < second < 1
    trust.renew()
    assert trust.confidence() == pytest.approx(first)
