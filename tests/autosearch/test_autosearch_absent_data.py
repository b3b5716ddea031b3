"""Searches without data."""

from pathlib import Path
from typing import Any

import pytest

from quantry.autosearch import Space, search
from quantry.autosearch.absent_data import data_or_none_needed
from quantry.data.random_data import RandomData
from quantry.errors import DataError
from quantry.recipe import resolve_recipe


def space_of(preset: str) -> Space:
    return Space.of(resolve_recipe(preset)[0], {"observe.samples": [1, 2]})


@pytest.mark.parametrize("evaluator", [None, "cosine", lambda path: 1.0])
def test_search_that_calibrates_needs_data(evaluator: Any, network: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must be given data"):
        search(network, None, evaluator, output_dir=tmp_path / "found")
    assert not (tmp_path / "found").exists()


def test_no_data_are_needed_where_nothing_is_calibrated_and_the_user_judges() -> None:
    space = space_of("UINT8_DYNAMIC_QUANT")
    assert data_or_none_needed(None, lambda path: 1.0, space) == RandomData()
    with pytest.raises(DataError, match="to judge by"):
        data_or_none_needed(None, "l2", space)


def test_random_data_serve_where_they_are_asked_for() -> None:
    asked = RandomData(4)
    assert data_or_none_needed(asked, None, space_of("XINT8")) is asked
