"""All samplers, each with one study."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_network import Distance, random_samples

from quantry.autosearch import Choice, IntRange, SearchOptions, Space, Trial, Uniform, run_search
from quantry.autosearch.output_directory import OutputDirectory
from quantry.autosearch.proposer import LOOK_AHEAD, make_proposer
from quantry.autosearch.samplers import KINDS
from quantry.autosearch.state import SearchState
from quantry.autosearch.storage import open_storage
from quantry.autosearch.study import SearchStudy
from quantry.errors import MissingExtraError
from quantry.recipe import CrossLayer, MinMax, MinMSE, Percentile, Recipe

NEEDS = {name: kind.needs for name, kind in KINDS.items()}


def mixed_space() -> Space:
    return Space.of(
        Recipe(),
        {
            "scale.activation": [Percentile(), MinMax(), MinMSE()],
            "scale.activation.percentile": Uniform(90.0, 100.0, only_if={"scale.activation": Percentile()}),
            "equalize.cross_layer": [None, CrossLayer()],
            "equalize.cross_layer.steps": IntRange(1, 3, only_if={"equalize.cross_layer": CrossLayer()}),
        },
    )


def numbers(directory: Path, sampler: str, trials: int = 10, **changes: Any) -> SearchOptions:
    return SearchOptions(**{"sampler": sampler, "output_dir": directory, "n_trials": trials, **changes})


def requires(sampler: str) -> None:
    for package in NEEDS.get(sampler, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


def draw(
    directory: Path,
    sampler: str,
    count: int,
    score: Callable[[Any], float],
    seed: int = 0,
    space: Space | None = None,
) -> list[Trial]:
    """Let a sampler propose trials and tell it their scores, without quantizing anything."""
    output = OutputDirectory(directory)
    output.open()
    study = SearchStudy(open_storage(output, None), "study", ["maximize"], [space or mixed_space()])
    known = study.restore()
    state = SearchState(numbers(directory, sampler, seed=seed), output, study, "maximize")
    proposer, _ = make_proposer(state, known)
    for trial in known:
        study.finish(trial, [score(trial.assignment)])
    trials = list(known)
    while len(trials) < count:
        number = len(trials)
        trial = proposer.next(number, number + 1 - LOOK_AHEAD)
        assert trial is not None
        study.finish(trial, [score(trial.assignment)])
        trials.append(trial)
    output.close()
    return trials


def recipes(trials: list[Trial]) -> list[Recipe]:
    return [trial.recipe for trial in trials]


def nearness(assignment: Any) -> float:
    """Return a score that is best for the percentile 97."""
    return -abs(assignment.get("scale.activation.percentile", 80.0) - 97.0)


@pytest.mark.parametrize("sampler", ["random", "tpe", "cmaes", "gp", "nsga2", "qmc"])
def test_sampler_proposes_distinct_configurations_and_is_seeded(tmp_path: Path, sampler: str) -> None:
    requires(sampler)
    # The first ten draws of a Gaussian process are random, and each of the others takes seconds on a busy machine.
    count = 11 if sampler == "gp" else 14
    first, again = (recipes(draw(tmp_path / turn, sampler, count, nearness)) for turn in ("first", "again"))
    other = recipes(draw(tmp_path / "other", sampler, 5, nearness, seed=1))
    assert len(set(first)) == count
    assert first == again
    assert first[:5] != other


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "qmc"])
def test_resumed_sampler_draws_as_if_it_had_not_been_interrupted(tmp_path: Path, sampler: str) -> None:
    requires(sampler)
    whole = draw(tmp_path / "whole", sampler, 20, nearness)
    for count in (3, 13, 20):
        parts = draw(tmp_path / "parts", sampler, count, nearness)
    assert recipes(parts) == recipes(whole)


def test_sampler_learns_from_the_trials_before(tmp_path: Path) -> None:
    """TPE gets closer to the optimum than random draws; with a separate study per trial it would not."""
    means = {}
    for sampler in ("tpe", "random"):
        late = draw(tmp_path / sampler, sampler, 60, nearness)[20:]
        means[sampler] = sum(nearness(trial.assignment) for trial in late) / len(late)
    assert abs(means["tpe"]) < 0.5 * abs(means["random"])


def test_resumed_search_with_a_sampler_has_the_same_trials(network: Path, distance: Distance, tmp_path: Path) -> None:
    whole = run_search(network, random_samples(2), distance, mixed_space(), numbers(tmp_path / "whole", "tpe", 12))
    parts = tmp_path / "parts"
    for limit in (7, 12):
        run = run_search(network, random_samples(2), distance, mixed_space(), numbers(parts, "tpe", limit))
    assert [(trial.recipe, trial.score) for trial in run.trials] == [
        (trial.recipe, trial.score) for trial in whole.trials
    ]


def test_finite_space_is_exhausted_by_any_sampler(network: Path, distance: Distance, tmp_path: Path) -> None:
    space = Space.of(Recipe(), {"scale.activation": [MinMax(), MinMSE(), Percentile()]})
    found = run_search(network, random_samples(2), distance, space, numbers(tmp_path, "tpe", 50))
    assert len(found.trials) == 3
    assert str(found.stopped_by) == "every configuration was tried"


def test_joint_parameter_sets_two_fields_at_once(network: Path, distance: Distance, tmp_path: Path) -> None:
    def build(assignment: Any) -> Recipe:
        steps, percentile = assignment["joint"]
        return Space.of(Recipe(), {}).build(
            {"equalize.cross_layer": CrossLayer(steps=steps), "scale.activation": Percentile(percentile)}
        )

    space = Space({"joint": Choice([[1, 99.0], [2, 99.9]])}, build)
    found = run_search(network, random_samples(2), distance, space, numbers(tmp_path, "grid", 5))
    assert [trial.assignment["joint"] for trial in found.trials] == [[1, 99.0], [2, 99.9]]


def test_missing_sampler_package_is_an_error_before_any_work(
    network: Path, distance: Distance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(MissingExtraError, match=r"quantry\[search\]"):
        run_search(network, random_samples(2), distance, mixed_space(), numbers(tmp_path / "x", "cmaes"))
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("sampler", ["grid", *KINDS])
def test_first_assignments_come_first_and_once(sampler: str, tmp_path: Path) -> None:
    requires(sampler)
    percent = Choice([90.0, 99.0, 99.9], only_if={"scale.activation": Percentile()})
    fields: Any = {"equalize.cross_layer": [None, CrossLayer()], "scale.activation": [MinMax(), MinMSE(), Percentile()]}
    fields |= {"scale.activation.percentile": percent}
    first: list[dict[str, Any]] = [
        {"scale.activation": Percentile(), "scale.activation.percentile": 99.9, "equalize.cross_layer": CrossLayer()},
        {"equalize.cross_layer": None, "scale.activation": MinMSE()},
    ]
    space = Space.of(Recipe(), fields, first=[*first, *first])

    def score(assignment: Any) -> float:
        return float(len(assignment))

    started = draw(tmp_path, sampler, 1, score, space=space)
    trials = draw(tmp_path, sampler, 10, score, space=space)
    assert [dict(trial.assignment) for trial in trials[:2]] == first
    assert recipes(trials)[:1] == recipes(started)
    assert len(set(recipes(trials))) == 10
