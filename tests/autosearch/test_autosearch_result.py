"""The result of a search: tables, the Optuna study, comparisons and views for notebooks."""

import inspect
from pathlib import Path
from typing import Any

import pytest
from small_network import Distance, random_samples, small_space

import quantry
from quantry.autosearch import SearchOptions, SearchResult, run_search


@pytest.fixture(scope="module")
def results(network: Path, tmp_path_factory: pytest.TempPathFactory) -> list[SearchResult]:
    folder = tmp_path_factory.mktemp("results")
    return [
        run_search(
            network,
            random_samples(4),
            Distance(network),
            small_space(),
            SearchOptions(n_trials=count, output_dir=folder / str(count), objectives=objectives, seed=count),
        )
        for count, objectives in ((9, ("accuracy", "size")), (3, ("accuracy",)))
    ]


def test_study_has_the_same_trials_with_the_same_numbers(results: list[SearchResult]) -> None:
    for found in results:
        study = found.study
        assert [trial.number for trial in study.trials] == [trial.number for trial in found.trials]
        values = [trial.values for trial in study.trials]
        assert values == [[trial.objectives[name] for name in found.objectives] for trial in found.trials]
        assert all("scale.activation" in trial.params for trial in study.trials)
    assert results[1].best is not None
    assert results[1].study.best_trial.value == results[1].best.score


def test_trials_are_a_table_if_pandas_is_installed(results: list[SearchResult]) -> None:
    pandas = pytest.importorskip("pandas")
    table = results[0].trials_dataframe()
    assert isinstance(table, pandas.DataFrame)
    assert list(table.index) == [trial.number for trial in results[0].trials]
    assert list(table["score"]) == [trial.score for trial in results[0].trials]
    assert {"drop", "size", "params.scale.activation", "seconds"} <= set(table.columns)


def test_notebook_view_has_the_best_trials(results: list[SearchResult]) -> None:
    page = results[0]._repr_html_()
    assert page.count("<tr") == 10
    assert results[0].best is not None
    assert f"<td>{results[0].best.score:.5g}</td>" in page
    assert "best.onnx" in page


def test_comparison_pairs_the_samples_of_both_winners(results: list[SearchResult]) -> None:
    first, second = results
    assert first.best is not None
    assert second.best is not None
    compared = first.compare(second)
    assert compared.difference == first.best.score - second.best.score
    assert compared.interval is not None
    assert compared.interval[0] <= compared.difference <= compared.interval[1]
    assert (compared.better is None) == (compared.difference == 0)
    assert first.compare(first).changes == ()
    assert all(path in str(compared) for path, _, _ in compared.changes)
    assert "<table>" in compared._repr_html_()


def test_every_option_of_the_command_is_a_documented_keyword(network: Path, tmp_path: Path) -> None:
    parameters: Any = inspect.signature(quantry.search).parameters
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    assert set(SearchOptions.names()) <= set(parameters)
    assert {"labels", "metric", "decoder", "target", "recipe", "calibration_samples"} <= set(parameters)
    documented = inspect.getdoc(quantry.search) or ""
    assert all(f"    {name}: " in documented for name in parameters)
    found = quantry.search(network, random_samples(4), metric="cosine", n_trials=1, output_dir=tmp_path)
    assert found.direction == "maximize"
