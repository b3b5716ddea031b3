"""Searches with finetuning: two stages, ranges, joint parameters."""

from pathlib import Path
from typing import Any

import pytest
from search_models import Reader, saved_net, settings

from quantry.errors import RecipeError
from quantry.onnx import CalibrationMethod, Config, QuantizationConfig
from quantry.onnx.auto_search import AutoSearch
from quantry.onnx.auto_search.configuration import (
    RecipeMaker,
    calibration_stage,
    finetuning_stage,
    has_both_stages,
)
from quantry.onnx.auto_search.search_space import finetune_space

FINETUNE = {"NumIterations": [1, 2], "LearningRate": [0.1]}
SPACE: dict[str, Any] = {
    "calibrate_method": [CalibrationMethod.MinMax, CalibrationMethod.Percentile],
    "include_fast_ft": [True],
    "extra_options": {"FastFinetune": FINETUNE},
}


def start(*, tuned: bool = False) -> Config:
    return Config(QuantizationConfig(include_cle=False, include_fast_ft=tuned))


def search(folder: Path, config: Config, **changes: Any) -> AutoSearch:
    return AutoSearch(config, settings(folder, **changes), saved_net(folder), Reader())


def test_first_stage_has_each_calibration_once() -> None:
    found = AutoSearch("m.onnx", start()).build_all_configs(SPACE)
    assert len(found) == 4
    first = calibration_stage(found)
    assert first == [
        {"calibrate_method": CalibrationMethod.MinMax, "include_fast_ft": False},
        {"calibrate_method": CalibrationMethod.Percentile, "include_fast_ft": False},
    ]
    second = finetuning_stage(first[1], found)
    assert [entry["extra_options"]["FastFinetune"]["NumIterations"] for entry in second] == [1, 2]
    assert all(
        entry["include_fast_ft"] and entry["calibrate_method"] is first[1]["calibrate_method"] for entry in second
    )


@pytest.mark.parametrize(
    ("space", "tuned", "both"),
    [
        (SPACE, False, True),
        ({**SPACE, "include_fast_ft": [False]}, False, False),
        ({"calibrate_method": SPACE["calibrate_method"]}, True, False),
        ({"extra_options": {"FastFinetune": FINETUNE}}, True, False),
        ({"calibrate_method": SPACE["calibrate_method"], "extra_options": {"FastFinetune": FINETUNE}}, True, True),
    ],
)
def test_two_stages_need_calibration_and_finetuning(space: dict, tuned: bool, both: bool) -> None:
    config = start(tuned=tuned)
    found = AutoSearch("m.onnx", config).build_all_configs(space)
    assert has_both_stages(found, config.global_quant_config) is both


def test_missing_stage_falls_back_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = {"calibrate_method": SPACE["calibrate_method"]}
    instance = search(tmp_path, start(), search_space=given, two_stage_search=True)
    assert len(instance.search_model()) == 2
    assert "a normal search is run" in caplog.text


def test_advanced_search_is_one_study_that_is_resumed(tmp_path: Path) -> None:
    space = {"extra_options": {"FastFinetune": {"NumIterations": [1, 40], "LearningRate": [1e-3, 1e-1]}}}
    changes = {"advanced_fastft_search": True, "search_space": space}
    first = search(tmp_path, start(tuned=True), **changes, advanced_fastft_params={"n_trials": 2})
    first.search_model()
    again = search(tmp_path, start(tuned=True), **changes, advanced_fastft_params={"n_trials": 3})
    found = again.search_model()
    assert len(again.result.trials) == len(found) == 3
    assert [trial.assignment for trial in again.result.trials[:2]] == [
        trial.assignment for trial in first.result.trials
    ]
    iterations = {trial.recipe.tune.steps[-1].iterations for trial in again.result.trials}
    assert len(iterations) == 3  # any number between the bounds, not only the bounds
    assert found[0]["difference"] == min(entry["difference"] for entry in found)


@pytest.mark.parametrize(
    ("space", "tuned", "message"),
    [
        ({"extra_options": {"FastFinetune": FINETUNE}}, False, "include_fast_ft=True"),
        ({"extra_options": {"FastFinetune": {"NumIterLR": [[1, 0.1]]}}}, True, "NumIterLR"),
        ({"extra_options": {"FastFinetune": {"DataSize": [1]}}}, True, "got 'DataSize'"),
        ({"include_cle": [True], "extra_options": {"FastFinetune": FINETUNE}}, True, "got 'include_cle'"),
        ({"extra_options": {}}, True, "got none"),
        ({"extra_options": {"FastFinetune": {"NumIterations": [0.5]}}}, True, "above 0"),
    ],
)
def test_advanced_search_rejects_other_spaces(tmp_path: Path, space: dict, tuned: bool, message: str) -> None:
    instance = search(tmp_path, start(tuned=tuned), advanced_fastft_search=True, search_space=space)
    with pytest.raises(RecipeError, match=message):
        instance.search_model()


def test_advanced_search_resumes_from_checkpoints_of_shorter_trials(tmp_path: Path) -> None:
    space = {"extra_options": {"FastFinetune": {"NumIterations": [20, 60]}}}
    changes = {"advanced_fastft_search": True, "search_space": space}
    own = {"FastFinetune": {"OptimAlgorithm": "adaquant"}}
    config = Config(QuantizationConfig(include_cle=False, include_fast_ft=True, extra_options=own))
    instance = search(tmp_path, config, **changes, advanced_fastft_params={"n_trials": 3, "checkpoint_every": 20})
    instance.search_model()
    trials = sorted(instance.result.trials, key=lambda trial: len(trial.recipe.tune.steps))
    short, long = trials[0].recipe.tune.steps, trials[-1].recipe.tune.steps
    assert long[:1] == short[:1]
    assert all(step.iterations <= 20 for step in long)
    rounding = search(tmp_path, start(tuned=True), **changes, advanced_fastft_params={"checkpoint_every": 20})
    with pytest.raises(RecipeError, match="checkpoint_every must be at least 1"):
        rounding.search_model()


def test_advanced_search_rejects_assigned_configurations(tmp_path: Path) -> None:
    instance = search(tmp_path, start(tuned=True), advanced_fastft_search=True)
    instance.all_configs = [{}]
    with pytest.raises(RecipeError, match="all_configs"):
        instance.search_model()


@pytest.mark.parametrize(
    ("device", "own", "trained_on"),
    [(None, {}, "cpu"), ("cuda:0", {}, "cuda:0"), ("cuda:0", {"OptimDevice": "cuda:3"}, "cuda:3")],
)
def test_layers_are_trained_on_the_devices_of_the_search(device: str | None, own: dict, trained_on: str) -> None:
    config = QuantizationConfig(include_fast_ft=True, extra_options={"FastFinetune": own})
    space = finetune_space({"extra_options": {"FastFinetune": FINETUNE}}, RecipeMaker(config), device)
    assignment = {f"extra_options.FastFinetune.{name}": values[0] for name, values in FINETUNE.items()}
    assert space.build(assignment).tune.steps[-1].device == trained_on
