"""How many digits the table of a search shows."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantry.cli.search_table import score_format


@pytest.mark.parametrize(
    ("scores", "texts"),
    [
        ([0.79171, 0.77619, 0.03124], ["0.7917", "0.7762", "0.0312"]),
        ([98.4312, 98.4312], ["98.4312", "98.4312"]),
        ([-0.5, -0.75], ["-0.5000", "-0.7500"]),
        ([0.00012, 0.5], ["0.0001200", "0.5000000"]),
        ([0.000123456, 0.000123461], ["0.000123456", "0.000123461"]),
        ([0.00012, 0.00012], ["0.0001200", "0.0001200"]),
        ([3.21e-9, 4.5e-8], ["3.210e-09", "4.500e-08"]),
        ([0.0, 0.25], ["0.0000", "0.2500"]),
        ([0.0, 0.00025], ["0.0000000", "0.0002500"]),
        ([math.nan], ["nan"]),
    ],
)
def test_scores_are_written_with_the_digits_they_need(scores: list[float], texts: list[str]) -> None:
    assert [format(score, score_format(scores)) for score in scores] == texts


def test_without_scores_there_are_four_decimals() -> None:
    assert score_format([]) == ".4f"


@given(st.floats(1e-30, 0.0999))
def test_a_small_best_score_has_four_significant_digits(score: float) -> None:
    assert float(format(score, score_format([score]))) == pytest.approx(score, rel=6e-4)
