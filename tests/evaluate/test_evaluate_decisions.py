"""Agreement of decisions and decibels of outputs."""

import numpy as np
import pytest

from quantry.evaluate.decisions import agreement, output_decibels, ranks, score_rows, tied
from quantry.evaluate.metrics.metric import Pair
from quantry.evaluate.tasks import Closeness


def test_rank_of_a_label_is_its_place_in_a_stable_sort() -> None:
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 4, (200, 7)).astype(np.float64)
    labels = rng.integers(0, 7, 200)
    order = np.argsort(-scores, axis=1, kind="stable")
    expected = np.array([list(row).index(label) for row, label in zip(order, labels, strict=True)])
    assert ranks(scores, labels).tolist() == expected.tolist()
    assert tied(np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])).tolist() == [True, False]


@pytest.mark.parametrize("shape", [(1, 10), (10,), (1, 10, 1, 1), (4, 10), (1, 1, 10)])
def test_class_scores_agree_if_argmax_does(shape: tuple[int, ...]) -> None:
    ours = np.random.default_rng(1).standard_normal(shape)
    assert score_rows(ours) is not None
    assert agreement(Pair(ours, ours + 0.25)) == 1.0
    assert agreement(Pair(ours, -ours)) == 0.0


@pytest.mark.parametrize("shape", [(1, 400, 12), (1, 12, 400), (1, 12, 20, 20), (1, 20, 20, 12)])
def test_maps_agree_on_what_stands_out_in_any_layout(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    axis = shape.index(12)
    # Channels in different units, as the boxes and the classes of a detector.
    units = np.geomspace(0.2, 5, 12).reshape([-1 if index == axis else 1 for index in range(len(shape))])
    ours = rng.standard_normal(shape) * units
    places = rng.choice(ours.size, 5, replace=False)
    ours.ravel()[places] += 20 * np.broadcast_to(units, shape).ravel()[places]
    near = ours + 0.1 * units * rng.standard_normal(shape)
    assert agreement(Pair(ours, near)) == 1.0
    assert agreement(Pair(ours, rng.standard_normal(shape) * units)) == pytest.approx(0.0, abs=0.2)
    # Noise of the same relative size in every channel: about 20 dB.
    assert output_decibels(Pair(ours, near)) == pytest.approx(20, abs=1.5)
    coarse = ours.copy()
    np.moveaxis(coarse, axis, 0)[:6] = 0.0
    # A detector whose six smallest channels are lost is far from the float model, although little energy is in them.
    assert output_decibels(Pair(ours, coarse)) < 4
    assert 10 * np.log10((ours**2).sum() / ((ours - coarse) ** 2).sum()) > 10


def test_single_numbers_hold_no_decision() -> None:
    closeness = Closeness.of([{"out": Pair(np.ones((1, 1)), np.full((1, 1), 0.9))}])
    assert closeness.mean_agreement is None
    assert closeness.mean_decibels == pytest.approx(20.0)


def test_every_output_counts_alike_and_incomparable_ones_count_as_lost() -> None:
    good, small = Pair(np.full((1, 4), 1000.0), np.full((1, 4), 999.0)), Pair(np.ones((1, 4)), np.full((1, 4), 0.9))
    assert Closeness.of([{"a": good, "b": small}]).mean_decibels == pytest.approx((60 + 20) / 2)
    assert Closeness.of([{"a": good, "b": None}]).mean_decibels == pytest.approx((60 - 20) / 2)
