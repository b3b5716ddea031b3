"""When racing prunes a configuration."""

import numpy as np
import pytest

from quantry.autosearch.racing import rungs
from quantry.evaluate.paired import cannot_win


@pytest.mark.parametrize(
    ("size", "expected"), [(5, [5]), (32, [32]), (80, [32, 64, 80]), (1600, [100, 200, 400, 800, 1600])]
)
def test_rungs_double_up_to_all_samples(size: int, expected: list[int]) -> None:
    assert rungs(size) == expected


def test_clearly_worse_configuration_is_pruned_at_once() -> None:
    generator = np.random.default_rng(0)
    champion = generator.normal(size=16)
    assert cannot_win(champion - 0.5 + 0.1 * generator.normal(size=16), champion, 256)


def test_clearly_better_configuration_stays() -> None:
    champion = np.random.default_rng(0).normal(size=16)
    assert not cannot_win(champion + 0.5, champion, 256)


def test_equal_scores_on_few_samples_do_not_prune() -> None:
    right = np.array([1.0, 0, 1, 1, 0, 1, 0, 1])
    assert not cannot_win(right, right, 500)


def test_after_all_samples_the_mean_decides() -> None:
    champion = np.random.default_rng(0).normal(size=16)
    assert cannot_win(champion - 1e-9, champion, 16)
    assert not cannot_win(champion + 1e-9, champion, 16)


def test_infinite_scores_are_compared_by_size() -> None:
    assert cannot_win(np.full(16, 3.0), np.full(16, np.inf), 64)


def test_better_configuration_is_rarely_pruned() -> None:
    """A challenger that is better by three standard errors of the full comparison must nearly always survive."""
    generator = np.random.default_rng(1)
    total, lost = 256, 0
    for _ in range(400):
        champion = generator.normal(size=total)
        challenger = champion + generator.normal(3 / np.sqrt(total), 1.0, size=total)
        lost += any(cannot_win(challenger[:n], champion[:n], total) for n in rungs(total)[:-1])
    assert lost / 400 < 0.05


def test_equal_configurations_are_often_pruned_early() -> None:
    generator = np.random.default_rng(2)
    total, stopped = 256, 0
    for _ in range(200):
        champion = generator.normal(size=total)
        challenger = champion + generator.normal(0, 0.3, size=total)
        stopped += any(cannot_win(challenger[:n], champion[:n], total) for n in rungs(total)[:-1])
    assert stopped / 200 > 0.35
