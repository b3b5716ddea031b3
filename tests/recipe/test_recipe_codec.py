import dataclasses
import typing

import hypothesis.strategies as st
import pytest
from hypothesis import given

from quantry.errors import RecipeError
from quantry.recipe import (
    PRESETS,
    CrossLayer,
    DataType,
    DerivedBias,
    Entropy,
    EqualizeOptions,
    FloatBias,
    FloatScale,
    LayerWisePercentile,
    MinMax,
    MinMSE,
    NonOverflow,
    OwnBias,
    Percentile,
    PerChannel,
    PerTensor,
    PlanOptions,
    PowerOfTwoScale,
    Recipe,
    ScaleOptions,
    Selection,
    Subgraph,
    TensorSpec,
    find_preset,
    from_json,
    from_plain,
    from_yaml,
    load_recipe,
    save_recipe,
    to_json,
    to_plain,
    to_yaml,
)

names = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=8)
methods = st.one_of(
    st.builds(MinMax, st.none() | st.floats(0, 0.99)),
    st.builds(Percentile, st.floats(50, 100), st.booleans()),
    st.builds(Entropy, st.integers(128, 4096), st.integers(2, 128)),
    st.just(MinMSE()),
    st.just(NonOverflow()),
    st.builds(LayerWisePercentile, st.tuples(st.floats(90, 100), st.floats(90, 100)), st.sampled_from(["mae", "mse"])),
)
eight_bits = st.sampled_from([DataType.INT8, DataType.UINT8])
weights = st.builds(
    TensorSpec,
    eight_bits,
    st.booleans(),
    st.sampled_from([PerTensor(), PerChannel(), PerChannel(1)]),
    st.sampled_from([FloatScale(), PowerOfTwoScale()]),
)
activations = st.builds(TensorSpec, eight_bits, st.booleans(), scale=st.sampled_from([FloatScale(), PowerOfTwoScale()]))
selections = st.builds(
    Selection,
    exclude=st.lists(names, max_size=3).map(tuple),
    exclude_subgraphs=st.lists(st.builds(Subgraph, st.tuples(names), st.tuples(names)), max_size=2).map(tuple),
)
recipes = st.builds(
    Recipe,
    name=names,
    equalize=st.builds(EqualizeOptions, st.none() | st.builds(CrossLayer, st.integers(1, 9), st.booleans())),
    plan=st.builds(
        PlanOptions,
        activation=activations,
        weight=weights,
        bias=st.sampled_from([DerivedBias(), FloatBias(), OwnBias()]),
        selection=selections,
        force_pass_through=st.booleans(),
    ),
    scale=st.builds(ScaleOptions, activation=methods),
)


@given(recipes)
def test_recipe_round_trips_through_yaml_json_and_plain_data(recipe: Recipe) -> None:
    for copy in (from_yaml(to_yaml(recipe)), from_json(to_json(recipe)), from_plain(to_plain(recipe))):
        assert copy == recipe
        assert copy.name == recipe.name


@given(recipes, recipes)
def test_diff_is_empty_exactly_when_recipes_are_equal(one: Recipe, other: Recipe) -> None:
    assert (one.diff(other) == ()) == (one == other)
    for difference in one.diff(other):
        assert difference.ours != difference.theirs


def test_diff_names_the_deepest_field() -> None:
    changed = Recipe(scale=ScaleOptions(activation=Percentile(99.9)))
    (difference,) = changed.diff(Recipe(scale=ScaleOptions(activation=Percentile(99.99))))
    assert str(difference) == "scale.activation.percentile: 99.9 -> 99.99"


@pytest.mark.parametrize("name", PRESETS)
def test_preset_round_trips_through_a_file(name: str, tmp_path: typing.Any) -> None:
    for suffix in ("yaml", "json"):
        path = tmp_path / f"recipe.{suffix}"
        save_recipe(PRESETS[name].recipe, path)
        assert load_recipe(path) == PRESETS[name].recipe


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"scales": {}}, r"recipe has no key 'scales'; did you mean 'scale'\?"),
        ({"scale": {"activaton": "MinMax"}}, r"recipe.scale has no key 'activaton'; did you mean 'activation'\?"),
        ({"scale": {"activation": "Percentil"}}, r"recipe.scale.activation .* did you mean 'Percentile'\?"),
        ({"scale": {"activation": {"percentile": 99}}}, r"recipe.scale.activation must say its 'kind'"),
        ({"plan": {"weight": {"dtype": "int9"}}}, r"recipe.plan.weight.dtype .* did you mean 'int8'\?"),
        ({"plan": {"force_pass_through": "yes"}}, r"force_pass_through must be bool, got 'yes'"),
        ({"plan": {"selection": {"exclude": "Conv_1"}}}, r"exclude must be a list, got 'Conv_1'"),
        ({"observe": {"samples": True}}, r"recipe.observe.samples must be int, got True"),
        ({"scale": {"activation": {"kind": ["MinMax"]}}}, r"scale.activation must be one of .* got \['MinMax'\]"),
        ({"scale": {"activation": {1: 2, "a": 3}}}, r"must say its 'kind'.* got the keys \['1', 'a'\]"),
        (
            {"plan": {"selection": {"exclude_subgraphs": [{"starts": ["a"]}]}}},
            r"exclude_subgraphs\[0\] must have ends in Subgraph, got the keys \['starts'\]",
        ),
        ({"mix": {"mixed": {"targets": []}}}, r"recipe.mix.mixed must have goal in MixedPrecision"),
        ({"version": 99}, r"recipe version must be 1, got 99"),
        ([], r"a recipe must be a mapping"),
    ],
)
def test_invalid_recipe_raises_with_path_and_nearest_spelling(plain: typing.Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        from_plain(plain)


def test_short_spelling_of_a_choice_takes_its_defaults() -> None:
    assert from_yaml("scale: {activation: Percentile}").scale.activation == Percentile()
    assert from_yaml("{}") == Recipe()


def test_unreadable_text_is_a_recipe_error(tmp_path: typing.Any) -> None:
    with pytest.raises(RecipeError, match="valid YAML"):
        from_yaml("a: [")
    with pytest.raises(RecipeError, match="valid JSON"):
        from_json("{")
    with pytest.raises(RecipeError, match=r"the recipe file must exist.*missing\.yaml"):
        load_recipe(tmp_path / "missing.yaml")
    with pytest.raises(RecipeError, match="readable text"):
        load_recipe(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("r.yaml", "", "must hold options, got an empty text"),
        ("r.yaml", "# nothing but this\n", "must hold options, got an empty text"),
        ("r.yaml", "plan:\n  a: [1\nscale: 2\n", r"must be valid YAML, got .* at line 3, column \d+"),
        ("r.json", "{", "must be valid JSON, got "),
        ("r.yaml", "scale: {activatoin: MinMax}", "did you mean 'activation'"),
    ],
)
def test_error_in_a_recipe_file_names_the_file(name: str, text: str, message: str, tmp_path: typing.Any) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(RecipeError, match=message) as caught:
        load_recipe(tmp_path / name)
    assert str(caught.value).endswith(f"; in {tmp_path / name}")
    assert "\n" not in str(caught.value)
    assert "unicode string" not in str(caught.value)


def test_preset_lookup_ignores_case_and_suggests_the_nearest_name() -> None:
    assert find_preset("xint8") is PRESETS["XINT8"]
    with pytest.raises(RecipeError, match=r"did you mean 'XINT8'.*see `quantry presets`") as caught:
        find_preset("XNIT8")
    assert len(str(caught.value)) < 160


def test_name_is_a_label_and_not_identity() -> None:
    assert Recipe(name="one") == Recipe(name="two")


def test_every_value_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().name = "other"  # type: ignore[misc]


def test_removed_option_is_ignored_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    assert from_plain({"equalize": {"absorb": None, "split": None}}) == Recipe()
    assert not caplog.records
    recipe = from_plain({"equalize": {"absorb": {"margin": 0.2}, "groups": {}}})
    assert recipe == from_plain({"equalize": {"groups": {}}})
    assert "recipe.equalize.absorb is ignored: high-bias absorption changed no measured model" in caplog.text
    assert from_plain({"evaluate": {"fall_back": True, "faster_in_float": True}}) == Recipe()
    assert "recipe.evaluate.fall_back is ignored: a recipe runs as it is" in caplog.text


def test_removed_option_elsewhere_is_still_an_error() -> None:
    with pytest.raises(RecipeError, match="no key 'absorb'"):
        from_plain({"plan": {"absorb": None}})
