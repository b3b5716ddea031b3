"""Finetuning parameters and two-stage searches."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from small_network import Distance, random_samples

from quantry.autosearch import (
    IntRange,
    SearchOptions,
    Space,
    Uniform,
    finetune_space,
    run_search,
    run_two_stage,
    with_fields,
)
from quantry.errors import RecipeError
from quantry.recipe import AdaQuant, AdaRound, Gptq, MinMax, MinMSE, Recipe

TUNED = with_fields(Recipe(), {"tune.steps": (AdaQuant(),)})


def test_iterations_and_learning_rate_of_the_last_step_are_set() -> None:
    base = with_fields(Recipe(), {"tune.steps": (Gptq(), AdaRound())})
    space = finetune_space(base, IntRange(10, 20), Uniform(1e-4, 1e-1, log=True))
    recipe = space.build({"iterations": 12, "learning_rate": 0.01})
    assert recipe.tune.steps == (Gptq(), AdaRound(iterations=12, learning_rate=0.01))


def test_longer_trials_resume_from_checkpoints_of_shorter_ones() -> None:
    space = finetune_space(TUNED, [20, 50], checkpoint_every=20)
    short, long = (space.build(assignment).tune.steps for assignment in space.assignments())
    assert [step.iterations for step in long] == [20, 20, 10]  # type: ignore[union-attr]
    assert long[: len(short)] == short


@pytest.mark.parametrize(
    ("base", "checkpoint_every"),
    [
        (Recipe(), None),
        (with_fields(Recipe(), {"tune.steps": (Gptq(),)}), None),
        (with_fields(Recipe(), {"tune.steps": (AdaRound(),)}), 10),
        (TUNED, 0),
    ],
)
def test_step_without_iterations_or_checkpoints_is_rejected(base: Recipe, checkpoint_every: int | None) -> None:
    with pytest.raises(RecipeError):
        finetune_space(base, [10], checkpoint_every=checkpoint_every)


def test_two_stages_finetune_the_best_calibration_and_share_its_stages(
    network: Path, distance: Distance, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    calibration = Space.of(Recipe(), {"scale.activation": [MinMax(), MinMSE()]})

    def tuning(best: Recipe) -> Space:
        return finetune_space(dataclasses.replace(best, tune=TUNED.tune), [2, 4], [1e-4], checkpoint_every=2)

    arguments: tuple[Any, ...] = (network, random_samples(2), distance, (calibration, tuning))
    found = run_two_stage(*arguments, SearchOptions(sampler="grid", output_dir=tmp_path))
    assert found.calibration.best is not None
    methods = {trial.recipe.scale.activation for trial in found.finetuning.trials}
    assert methods == {found.calibration.best.recipe.scale.activation}
    assert not any(trial.state == "failed" for trial in found.finetuning.trials)
    first, second = found.finetuning.trials
    assert "observe" in first.reused
    assert "scale" in first.reused
    # The second of its two parts ran; the first came from the store.
    assert "tune" in second.computed
    assert "tune" in second.reused
    assert "tune" not in first.reused
    assert found.best.best_model is not None

    seen = distance.seen
    again = run_two_stage(*arguments, SearchOptions(sampler="grid", output_dir=tmp_path))
    assert distance.seen == seen
    assert [trial.score for trial in again.finetuning.trials] == [trial.score for trial in found.finetuning.trials]


def test_finetuning_is_searched_by_one_study(network: Path, distance: Distance, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    space = finetune_space(TUNED, IntRange(1, 4), Uniform(1e-6, 1e-3, log=True))
    options = SearchOptions(sampler="tpe", output_dir=tmp_path, n_trials=3)
    found = run_search(network, random_samples(2), distance, space, options)
    assert len(found.trials) == 3
    assert len({trial.assignment["learning_rate"] for trial in found.trials}) == 3
