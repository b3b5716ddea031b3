"""The default space: recommended recipes whatever the limits, presets, single changes, and decisions about layers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_network import Distance, random_samples

import quantry
from quantry.autosearch import Choice, SearchOptions, Space, run_search, target_space
from quantry.autosearch.combinations import combined_improvements
from quantry.autosearch.layer_ranking import LayerRanking, RankedLayer
from quantry.autosearch.target_space import FLOAT, KEPT, LAYERS, ONE_BY_ONE, RECIPE, SHARE, WIDE
from quantry.autosearch.trial import Trial
from quantry.data.open_data import calibration_data
from quantry.errors import RecipeError
from quantry.graph.float_model import input_signatures
from quantry.graph.load import model_source
from quantry.memo import MemoryStore
from quantry.recipe import DataType, EqualizeOptions, MinMSE, Percentile, PerChannel, Recipe, TensorSpec, find_preset
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
    plain = {name for name in target.presets if not find_preset(name).recipe.tune.steps}
    early = {target.recommended[0], *plain}
    assert {trial.recipe.name for trial in found.trials[: len(early)]} == early
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


def test_presets_that_are_slow_or_have_few_bits_come_after_single_changes() -> None:
    space = target_space(find_target("ort-cpu"), None, ranking)
    names = [suggestion[RECIPE] for suggestion in space.suggestions]
    first_change = names.index("RECOMMENDED-CPU")
    early, late = names[:first_change], names[space.combine_after :]
    assert early[0] == "INT16_CNN_DEFAULT"
    assert early.index("A16W8") < early.index("CPU_INT8")
    assert late.index("RECOMMENDED-HTP-16") < late.index("RECOMMENDED-HTP") < late.index("RECOMMENDED-CPU-W4A8")
    assert {"RECOMMENDED-CPU-W4A8", "MX6", "RECOMMENDED-NPU-MIXED", "A8W8_ADAROUND"} <= set(late)
    assert {*early, *late, "RECOMMENDED-CPU"} == {name.upper() for name in find_target("ort-cpu").presets}


def test_presets_for_other_operators_than_the_model_has_are_left_out_or_late() -> None:
    target = find_target("ort-cpu")

    def names(**operators: int) -> list[str]:
        space = target_space(target, None, ranking, operators=operators)
        return [suggestion[RECIPE] for suggestion in space.suggestions]

    assert "INT16_TRANSFORMER_DEFAULT" not in names(Conv=9, Relu=9)
    mostly = names(Conv=9, Gemm=1)
    assert mostly.index("INT16_TRANSFORMER_DEFAULT") > mostly.index("RECOMMENDED-CPU")
    transformer = names(MatMul=9, Gemm=1)
    assert transformer.index("INT16_TRANSFORMER_DEFAULT") < transformer.index("RECOMMENDED-CPU")


def test_changes_that_helped_are_tried_together() -> None:
    space = target_space(find_target("ort-cpu"), None, ranking)
    start = space.first[0]

    def trial(number: int, drop: float, **changes: Any) -> Trial:
        return Trial(number, Recipe(), {**start, **changes}, state="complete", score=1 - drop, drop=drop)

    trials = [
        trial(0, 0.05),
        trial(1, 0.04, **{"scale.weight": MinMSE()}),
        trial(2, 0.03, **{LAYERS: WIDE, SHARE: 0.05}),
        trial(3, 0.02, **{LAYERS: WIDE, SHARE: 0.2}),
        trial(4, 0.06, equalize=EqualizeOptions()),
        trial(5, 0.01, **{"scale.weight": MinMSE(), "tune.steps": ()}),
        trial(6, 0.045, **{"tune.steps": ()}),
    ]
    wide = {**start, LAYERS: WIDE, SHARE: 0.2}
    assert list(combined_improvements(space, trials)) == [
        {**wide, "scale.weight": MinMSE()},
        {**wide, "scale.weight": MinMSE(), "tune.steps": ()},
    ]
    assert list(combined_improvements(space, trials[1:])) == []


@pytest.mark.parametrize(("jobs", "parts"), [(1, [7]), (2, [7]), (1, [5, 6, 7])], ids=str)
def test_combinations_are_tried_after_suggestions(
    network: Path, distance: Distance, tmp_path: Path, jobs: int, parts: list[int]
) -> None:
    plain, wide, fine = {"width": 8, "per": "tensor", "range": 0}, {"width": 16}, {"per": "channel"}

    def build(values: Any) -> Recipe:
        spec = TensorSpec(DataType.INT16 if values["width"] == 16 else DataType.INT8)
        weight = TensorSpec(granularity=PerChannel()) if values["per"] == "channel" else TensorSpec()
        return replace(
            Recipe(),
            plan=replace(Recipe().plan, activation=spec, weight=weight),
            scale=replace(Recipe().scale, activation=Percentile(100 - values["range"])),
        )

    # Changes of the range make it worse. Three trials are always open, so the combination is based on the first three.
    parameters = {"width": Choice([8, 16]), "per": Choice(["tensor", "channel"]), "range": Choice([0, 20, 30, 40])}
    changes = [wide, fine, {"range": 20}, {"range": 30}, {"range": 40}]
    suggestions = [plain | change for change in changes]
    space = Space(parameters, build, first=[plain], suggestions=suggestions, combine_after=len(changes))
    for trials in parts:  # a search that is continued combines the same changes
        options = SearchOptions(n_trials=trials, n_jobs=jobs, output_dir=tmp_path)
        found = run_search(network, random_samples(4), distance, space, options)
    assert [trial.assignment for trial in found.trials] == [plain, *suggestions, plain | wide | fine]
    assert found.best is not None
    assert found.best.number == 6


def test_recipe_that_quantizes_nothing_is_no_result(network: Path, distance: Distance, tmp_path: Path) -> None:
    options = SearchOptions(sampler="grid", output_dir=tmp_path)
    nothing = {"plan.selection.operators": [("MatMul",), ("Conv",)]}
    space = Space.of(find_preset("S8S8_AAWS").recipe, nothing)
    found = run_search(network, random_samples(4), distance, space, options)
    assert [trial.state for trial in found.trials] == ["failed", "complete"]
    assert "must quantize at least one node" in (found.trials[0].error or "")
