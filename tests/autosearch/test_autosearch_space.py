"""Spaces: conditions, invalid and duplicate configurations, order."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from quantry.autosearch import Choice, IntRange, Space, Uniform, named_space, priority, with_fields
from quantry.autosearch.cost import CostModel
from quantry.autosearch.priority import enumerate_trials, first_trials, grid_order
from quantry.autosearch.trial import Trial
from quantry.errors import RecipeError
from quantry.recipe import (
    AdaRound,
    CrossLayer,
    Entropy,
    EvaluateOptions,
    MinMax,
    MinMSE,
    Percentile,
    Recipe,
    TuneOptions,
    find_preset,
)
from quantry.stages import planned_work


def test_first_parameter_changes_slowest() -> None:
    space = Space({"a": Choice([1, 2]), "b": Choice(["x", "y"])}, lambda _: Recipe())
    assert [tuple(entry.values()) for entry in space.assignments()] == [(1, "x"), (1, "y"), (2, "x"), (2, "y")]


def test_parameter_is_omitted_if_its_condition_does_not_hold() -> None:
    space = Space(
        {
            "percent": Choice([99.9, 99.99], only_if={"method": "percentile"}),
            "method": Choice(["minmax", "percentile"]),
        },
        lambda _: Recipe(),
    )
    assert list(space.assignments()) == [
        {"method": "minmax"},
        {"method": "percentile", "percent": 99.9},
        {"method": "percentile", "percent": 99.99},
    ]


def test_condition_may_name_several_values_and_chains_of_parameters() -> None:
    space = Space(
        {
            "a": Choice([1, 2, 3]),
            "b": Choice(["x", "y"], only_if={"a": [2, 3]}),
            "c": Choice([True], only_if={"b": "y"}),
        },
        lambda _: Recipe(),
    )
    assert sum("b" in entry for entry in space.assignments()) == 4
    assert sum("c" in entry for entry in space.assignments()) == 2


def test_true_is_not_one_in_a_condition() -> None:
    space = Space({"a": Choice([True, 1]), "b": Choice([0], only_if={"a": 1})}, lambda _: Recipe())
    assert list(space.assignments()) == [{"a": True}, {"a": 1, "b": 0}]


def test_condition_on_an_unknown_parameter_names_the_nearest_spelling() -> None:
    with pytest.raises(RecipeError, match="did you mean 'method'"):
        Space({"method": Choice([1]), "b": Choice([1], only_if={"methud": 1})}, lambda _: Recipe())


def test_circular_conditions_are_rejected() -> None:
    with pytest.raises(RecipeError, match="circular"):
        Space({"a": Choice([1], only_if={"b": 1}), "b": Choice([1], only_if={"a": 1})}, lambda _: Recipe())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Choice([]),
        lambda: Choice("abc"),
        lambda: Uniform(1.0, 0.0),
        lambda: Uniform(0.0, 1.0, log=True),
        lambda: Uniform(1.0, 2.0, log=True, step=0.1),
        lambda: IntRange(1, 4, step=0),
        lambda: IntRange(low=True, high=4),
        lambda: Space({"a": [1, 2]}, lambda _: Recipe()),
    ],
)
def test_invalid_parameters_are_rejected(make: object) -> None:
    with pytest.raises(RecipeError):
        make()  # type: ignore[operator]


def test_paths_are_changed_together_and_into_new_values() -> None:
    changed = with_fields(
        Recipe(tune=TuneOptions((AdaRound(),))),
        {"scale.activation": Percentile(), "scale.activation.percentile": 99.5, "tune.steps.0.iterations": 7},
    )
    assert changed.scale.activation == Percentile(99.5)
    assert changed.tune.steps == (AdaRound(iterations=7),)


@pytest.mark.parametrize("path", ["scale.activatoin", "tune.steps.0.iterations", "scale.reduce_range.deeper"])
def test_unknown_path_is_rejected(path: str) -> None:
    with pytest.raises(RecipeError, match="a path must"):
        Space.of(Recipe(), {path: [1]})


@pytest.mark.parametrize("given", ["MinMax", True, {"a": 1}])
def test_values_that_are_not_a_list_are_rejected(given: Any) -> None:
    with pytest.raises(RecipeError, match="a list of values"):
        Space.of(Recipe(), {"scale.activation": given})


def test_invalid_and_duplicate_configurations_are_removed_with_reasons() -> None:
    space = Space.of(
        Recipe(),
        {"scale.weight": [MinMax(), Entropy()], "scale.reduce_range": [False, True], "name": ["one", "two"]},
    )
    found, removed = enumerate_trials([space, space])
    assert len(found) == 3
    assert removed.assignments == 16
    assert sum(removed.invalid.values()) == 4
    assert removed.duplicates == 9
    assert "reduce_range goes with" in "\n".join(removed.lines())


def test_priority_puts_tuning_last_and_neighbours_share_observations() -> None:
    space = Space.of(
        Recipe(),
        {
            "tune.steps": [(AdaRound(iterations=500),), (), (AdaRound(iterations=100),)],
            "scale.activation": [MinMax(), MinMSE()],
            "equalize.cross_layer": [CrossLayer(), None],
        },
    )
    ordered = grid_order(enumerate_trials([space])[0], [space])
    works = [sum(step.iterations for step in entry.recipe.tune.steps) for entry in ordered]  # type: ignore[union-attr]
    assert works == [0] * 4 + [100] * 4 + [500] * 4
    switches = [entry.recipe.equalize for entry in ordered]
    # One trial of each float pass comes first, for workers that start together; then neighbours share one.
    assert switches[0] != switches[1]
    assert sum(one != other for one, other in pairwise(switches[4:])) == 3


def test_prior_of_the_user_decides_the_order() -> None:
    space = Space({"a": Choice([3, 1, 2])}, lambda entry: Recipe(), prior=lambda entry: entry["a"])
    distinct = Space(
        space.parameters, lambda entry: with_fields(Recipe(), {"observe.samples": entry["a"]}), space.prior
    )
    ordered = grid_order(enumerate_trials([distinct])[0], [distinct])
    assert [entry.assignment["a"] for entry in ordered] == [1, 2, 3]


def test_cost_counts_only_stages_that_no_trial_has_run() -> None:
    costs = CostModel()
    first, second = Recipe(), with_fields(Recipe(), {"scale.activation": MinMSE()})
    computed = {"prepare": 1, "observe": 8, "scale": 1, "emit": 1}
    costs.learn(Trial(0, first, state="complete", seconds=12.0, computed=computed))
    assert costs.estimate(second) == pytest.approx(1 + 1 + 1)
    assert sum(costs.estimates([second, second])) == pytest.approx(3)


def test_recipes_that_differ_in_method_share_everything_before_it() -> None:
    one, other = (dict(planned_work(with_fields(Recipe(), {"scale.activation": m}))) for m in (MinMax(), MinMSE()))
    assert {name for name in one if one[name] == other[name]} == {"prepare", "plan", "observe"}


def test_accuracy_space_keeps_sums_before_normalizations_float() -> None:
    space = named_space("accuracy", find_preset("XINT8").recipe)
    assert all(space.build(assignment).plan.float_residuals for assignment in space.assignments())


@pytest.mark.parametrize(("plain", "best"), [("XINT8", "RECOMMENDED-NPU"), ("CPU_INT8", "RECOMMENDED-CPU")])
def test_accuracy_space_starts_with_the_recommended_recipe(plain: str, best: str) -> None:
    space = named_space("accuracy", find_preset(plain).recipe)
    (first,) = space.first
    recommended = replace(find_preset(best).recipe, evaluate=EvaluateOptions())
    assert replace(space.build(first), name=best) == recommended
    configurations, _ = enumerate_trials([space])
    assert replace(grid_order(configurations, [space])[0].recipe, name=best) == recommended


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ({"a": 1}, r"a value for each of \['a', 'b'\]"),
        ({"a": 2, "b": 0.5}, r"for each of \['a'\] and for no other"),
        ({"a": 1, "b": 0.5, "c": 1}, "for no other"),
        ({"a": 3}, "got 3 for Choice"),
        ({"a": True}, "got True for Choice"),
        ({"a": 1, "b": 1.5}, "got 1.5 for Uniform"),
        ({"a": 1, "b": True}, "got True for Uniform"),
        ("a", "a list of mappings"),
        (None, "a list of mappings"),
    ],
)
def test_first_assignments_must_be_in_the_space(first: Any, message: str) -> None:
    parameters = {"a": Choice([1, 2]), "b": Uniform(0.0, 1.0, only_if={"a": 1})}
    with pytest.raises(RecipeError, match=message):
        Space(parameters, lambda _: Recipe(), first=(first,))


@pytest.mark.parametrize("first", [None, {"a": 1}, "a"])
def test_first_must_be_a_list(first: Any) -> None:
    with pytest.raises(RecipeError, match=r"list of mappings|a value for each"):
        Space({"a": Choice([1]), "b": Choice([1])}, lambda _: Recipe(), first=first)


def test_first_assignments_take_the_exact_values_of_the_grid() -> None:
    space = Space(
        {"x": Uniform(0.0, 1.0, step=0.1), "n": IntRange(1, 9)}, lambda _: Recipe(), first=({"x": 0.3, "n": 4},)
    )
    assert space.first[0] in list(space.assignments())
    assert Space({"x": Uniform(0.0, 1.0)}, lambda _: Recipe(), first=({"x": 1},)).first[0] == {"x": 1.0}


def test_first_assignment_without_a_recipe_is_an_error_with_its_values() -> None:
    def refuse(_: Any) -> Recipe:
        raise RecipeError("no go")

    with pytest.raises(RecipeError, match=r"must give a recipe: no go; got \{'a': 2\} in 'mine'"):
        first_trials([Space({"a": Choice([1, 2])}, refuse, name="mine", first=({"a": 2},))])


def test_first_assignments_may_lie_beyond_the_enumeration_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 500
    monkeypatch.setattr(priority, "ENUMERATION_LIMIT", limit)

    def build(assignment: Any) -> Recipe:
        return with_fields(Recipe(), {"scale.activation": Percentile(50 + assignment["a"] * 1e-4)})

    space = Space({"a": IntRange(0, limit + 99)}, build, first=({"a": limit + 9},) * 2)
    configurations, _ = enumerate_trials([space])
    ordered = grid_order(configurations, [space])
    assert ordered[0].assignment == {"a": limit + 9}
    assert len(ordered) == len(configurations) + 1
