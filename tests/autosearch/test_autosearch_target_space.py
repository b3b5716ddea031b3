"""The default space: recommended recipes whatever the limits, presets, single changes, and decisions about layers."""

from pathlib import Path
from typing import Any

import pytest
from small_network import Distance, random_samples

import quantry
from quantry.autosearch import SearchOptions, run_search, target_space
from quantry.autosearch.layer_ranking import LayerRanking, RankedLayer
from quantry.autosearch.target_space import FLOAT, KEPT, LAYERS, ONE_BY_ONE, RECIPE, SHARE, WIDE
from quantry.data.open_data import calibration_data
from quantry.errors import RecipeError
from quantry.graph.float_model import input_signatures
from quantry.graph.load import model_source
from quantry.memo import MemoryStore
from quantry.recipe import DataType, Recipe, find_preset
from quantry.targets import Target, find_target

TWO = Target("two", "two recommended recipes", recommended=("A8W8", "CPU_INT8"))
RANKED = [RankedLayer("first", 3.0, ends=False), RankedLayer("last", 1.0, ends=True)]


def ranking(_: Recipe) -> list[RankedLayer]:
    return RANKED


def kept(space: Any, **changes: Any) -> dict[str, Any]:
    return {**space.first[0], **changes}


@pytest.mark.parametrize(
    "limits",
    [{"n_trials": 1}, {"budget": 1e-3}, {"n_candidates": 1, "tolerance": 1e9}, {"patience": 1, "n_trials": 2}],
    ids=str,
)
@pytest.mark.parametrize("jobs", [1, 2])
def test_recommended_recipes_are_tried_whatever_the_limits(
    network: Path, distance: Distance, tmp_path: Path, limits: dict[str, Any], jobs: int
) -> None:
    given = find_preset("S8S8_AAWS").recipe
    options = SearchOptions(**limits, n_jobs=jobs, output_dir=tmp_path)
    found = run_search(network, random_samples(4), distance, target_space(TWO, given), options)
    assert [trial.recipe.name for trial in found.trials[:3]] == ["A8W8", "CPU_INT8", "S8S8_AAWS"]
    assert found.best is not None
    assert found.best.score == min(trial.score for trial in found.trials if trial.score is not None)
    assert found.best.score <= min(distance(quantized(network, name, tmp_path)) for name in ("A8W8", "CPU_INT8"))


def quantized(network: Path, preset: str, folder: Path) -> Path:
    path = folder / f"{preset}.onnx"
    quantry.quantize(network, random_samples(4), preset).save(path)
    return path


def test_race_never_prunes_a_recommended_recipe(network: Path, tmp_path: Path) -> None:
    evaluator = Distance(network, 256)
    options = SearchOptions(racing=True, n_trials=8, output_dir=tmp_path)
    found = run_search(network, random_samples(4), evaluator, target_space(TWO), options)
    assert {trial.state for trial in found.trials[:2]} == {"complete"}
    assert any(trial.state == "pruned" for trial in found.trials[2:])


def test_search_continues_with_presets_of_the_target_then_with_single_changes(
    network: Path, distance: Distance, tmp_path: Path
) -> None:
    found = quantry.search(network, random_samples(4), distance, target="vitisai", n_trials=12, output_dir=tmp_path)
    target = find_target("vitisai")
    assert found.trials[0].recipe == target.adapted(find_preset(target.recommended[0]).recipe)
    untrained = {name for name in target.presets if "_ADA" not in name}
    assert {trial.recipe.name for trial in found.trials[: len(untrained)]} == untrained
    changed = [trial for trial in found.trials if trial.assignment[RECIPE] == target.recommended[0]][1:]
    assert len(changed) > 4
    assert all(not target.conflicts(trial.recipe) for trial in found.trials)
    assert any("target vitisai (given)" in note for note in found.notes)


def test_search_without_limits_gets_a_budget(network: Path, distance: Distance, tmp_path: Path) -> None:
    def interrupted(path: Path) -> float:
        if Path(path) != network:
            raise KeyboardInterrupt
        return distance(path)

    with pytest.raises(KeyboardInterrupt):
        quantry.search(network, random_samples(4), interrupted, output_dir=tmp_path)
    assert "budget 600" in (tmp_path / "auto_search.log").read_text()


def test_same_target_is_derived_from_a_recipe(network: Path, distance: Distance, tmp_path: Path) -> None:
    for recipe, target in (("XINT8", "vitisai"), ("U8S8_AAWS", "ort-cpu"), (None, "ort-cpu")):
        found = quantry.search(
            network, random_samples(4), distance, recipe=recipe, n_trials=1, output_dir=tmp_path / str(recipe)
        )
        assert any(note.startswith(f"target {target} (") for note in found.notes)
        if recipe is not None:
            assert find_preset(recipe).recipe in [trial.recipe for trial in found.trials]


def test_worst_layers_get_16_bits_or_stay_float() -> None:
    space = target_space(find_target("ort-cpu"), None, ranking)
    wide = space.build(kept(space, **{LAYERS: WIDE, SHARE: 0.9}))
    assert [layer.match for layer in wide.plan.layers] == [("first",), ("last",)]
    assert {layer.activation.dtype for layer in wide.plan.layers if layer.activation} == {DataType.UINT16}
    assert [layer.output is None for layer in wide.plan.layers] == [True, False]
    kept_float = space.build(kept(space, **{LAYERS: FLOAT, SHARE: 0.01}))
    assert [(layer.match, layer.keep_float) for layer in kept_float.plan.layers] == [(("first",), True)]
    single = {f"layer {place}": KEPT for place in range(1, 7)} | {"layer 2": FLOAT}
    one = space.build(kept(space, **{LAYERS: ONE_BY_ONE, **single}))
    assert [layer.match for layer in one.plan.layers] == [("last",)]


def test_target_without_16_bits_only_keeps_layers_in_float() -> None:
    space = target_space(find_target("vitisai"), None, ranking)
    assert list(space.parameters[LAYERS].values) == [KEPT, FLOAT, ONE_BY_ONE]  # type: ignore[union-attr]


def test_layers_are_ranked_by_the_error_they_cause(network: Path) -> None:
    source = model_source(network)
    data = calibration_data(random_samples(4), input_signatures(source.load()))
    rank = LayerRanking(source, data, MemoryStore())
    recipe = find_preset("XINT8").recipe
    ranked = rank(recipe)
    assert len(ranked) >= 2
    assert [layer.noise for layer in ranked] == sorted((layer.noise for layer in ranked), reverse=True)
    assert sum(layer.ends for layer in ranked) == 1
    assert rank(find_preset("XINT8_ADAROUND").recipe) is ranked


def test_search_decides_about_layers(network: Path, distance: Distance, tmp_path: Path) -> None:
    found = quantry.search(network, random_samples(4), distance, target="vitisai", n_trials=6, output_dir=tmp_path)
    layered = [trial for trial in found.trials if trial.recipe.plan.layers]
    assert layered
    assert all(trial.state == "complete" for trial in layered)
    assert min(trial.score for trial in layered if trial.score is not None) < (found.trials[0].score or 0.0)


def test_recipe_that_the_target_refuses_is_invalid() -> None:
    space = target_space(find_target("vitisai"), find_preset("A8W8").recipe, ranking)
    assert space.build({**kept(space), RECIPE: "A8W8"}) == find_preset("A8W8").recipe
    with pytest.raises(RecipeError, match="the target vitisai refuses it"):
        space.build({**kept(space, **{LAYERS: FLOAT, SHARE: 0.01}), RECIPE: "A8W8"})
