"""Searches without calibration data."""

from pathlib import Path
from typing import Any

import pytest

from quantry.autosearch import Space, search
from quantry.autosearch.data_split import require_data
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


def test_no_data_are_needed_with_an_evaluator_and_without_calibration() -> None:
    space = space_of("UINT8_DYNAMIC_QUANT")
    assert require_data(None, lambda path: 1.0, space) == RandomData()
    with pytest.raises(DataError, match="for evaluation"):
        require_data(None, "l2", space)


def test_random_data_can_be_given_explicitly() -> None:
    asked = RandomData(4)
    assert require_data(asked, None, space_of("XINT8")) is asked
