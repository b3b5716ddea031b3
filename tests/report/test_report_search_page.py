import dataclasses
import json
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from quantry.autosearch import SearchResult, search
from quantry.errors import DataError
from quantry.recipe import MinMax, MinMSE, from_yaml
from quantry.report import render_folders, render_search_page, write_search_report
from quantry.report.search_facts import facts_of_result, read_facts
from quantry.report.search_page import render_search_facts

MODEL = """
<ir_version: 8, opset_import: ["": 17]>
small (float[1, 2, 6, 6] x) => (float[1, 2, 6, 6] y)
<float[2, 2, 1, 1] weight = {1.5, -0.5, 0.25, 2}>
{ c = Conv(x, weight)  y = Relu(c) }
"""


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> SearchResult:
    data = [np.random.default_rng(seed).standard_normal((1, 2, 6, 6)).astype(np.float32) for seed in range(6)]
    space = {"scale.activation": [MinMax(), MinMSE()], "scale.reduce_range": [False, True]}
    return search(
        onnx.parser.parse_model(MODEL), data, space=space, output_dir=tmp_path_factory.mktemp("search") / "out"
    )


def test_page_shows_every_trial_and_the_winner(result: SearchResult) -> None:
    page = render_search_page(result, "small.onnx")
    assert all(f"<tr id=trial-{trial.number}>" in page for trial in result.trials)
    for heading in ("Accuracy and cost", "What mattered", "Every trial", "The best configuration"):
        assert f"<h2>{heading}</h2>" in page


def test_page_starts_with_how_good_the_best_trial_is(result: SearchResult) -> None:
    def answer(float_score: float, drop: float, tolerance: float | None) -> str:
        facts = dataclasses.replace(facts_of_result(result, "m"), float_score=float_score, tolerance=tolerance)
        trials = tuple({**trial, "drop": drop} for trial in facts.trials)
        page = render_search_facts([dataclasses.replace(facts, trials=trials)], None)
        return page[page.index("<strong>") : page.index("</strong>")]

    assert "as good as" in answer(0.9, -0.01, None)
    assert "nearly as good" in answer(0.9, 0.001, None)
    assert "within the tolerance" in answer(0.9, 0.05, 0.1)
    assert "No trial" in answer(0.9, 0.2, 0.1)
    assert "by l2" in answer(0.0, 0.2, None)  # a distance is neither good nor bad


def test_parameters_are_compared_value_by_value(result: SearchResult) -> None:
    page = render_search_page(result, "small.onnx")
    assert "<code>scale.reduce_range</code>" in page
    assert "<code>MinMSE</code>" in page


def test_best_recipe_on_the_page_can_be_run_again(result: SearchResult) -> None:
    page = render_search_page(result, "small.onnx")
    assert result.best is not None
    written = page.split("<pre>")[1].split("</pre>")[0].replace("&#x27;", "'")
    assert from_yaml(written) == result.best.recipe


def test_page_of_a_folder_is_that_of_the_result(result: SearchResult) -> None:
    of_folder, of_result = read_facts(result.output_dir), facts_of_result(result, "")
    assert of_folder.trials == tuple(json.loads(json.dumps(of_result.trials)))
    assert of_folder.importance == of_result.importance
    assert of_folder.metric == of_result.metric == "l2"
    assert render_folders([result.output_dir]).count("<tr id=trial-") == len(result.trials)


def test_importance_is_the_share_of_variance_between_the_values(result: SearchResult) -> None:
    drops = np.array([trial.drop for trial in result.trials])
    reduced = np.array([bool(trial.assignment["scale.reduce_range"]) for trial in result.trials])
    means = np.where(reduced, drops[reduced].mean(), drops[~reduced].mean())
    (entry,) = (one for one in facts_of_result(result, "").importance if one["parameter"] == "scale.reduce_range")
    assert entry["share"] == pytest.approx(means.var() / drops.var())


def test_two_searches_are_compared(result: SearchResult) -> None:
    page = render_folders([result.output_dir, result.output_dir])
    assert "<h2>Searches compared</h2>" in page


def test_folder_without_a_search_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"search\.json"):
        read_facts(tmp_path)


def test_report_is_written(result: SearchResult, tmp_path: Path) -> None:
    assert write_search_report(result, tmp_path / "a" / "search.html").exists()


def test_equal_scores_show_no_rest_of_rounding(result: SearchResult) -> None:
    trials = tuple(dataclasses.replace(trial, drop=3.701e-17) for trial in result.trials)
    reference = dataclasses.replace(result.reference, value=0.9)
    page = render_search_page(dataclasses.replace(result, trials=trials, reference=reference), "small.onnx")
    assert "e-17" not in page
