"""Every sampler, through one study."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_network import Distance, random_samples

from quantry.autosearch import Choice, IntRange, SearchOptions, Space, StopConditions, Uniform, run_search
from quantry.autosearch.ledger import Ledger
from quantry.autosearch.output_directory import OutputDirectory
from quantry.autosearch.proposer import LOOK_AHEAD, propose
from quantry.autosearch.samplers import KINDS
from quantry.autosearch.study import Proposal, StudyFile
from quantry.autosearch.study_storage import open_storage
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
    stop = StopConditions(iterations=trials)
    return SearchOptions(**{"sampler": sampler, "output_dir": directory, "stop": stop, **changes})


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
) -> list[Proposal]:
    """Let a sampler propose configurations and hear of their scores, without quantizing anything."""
    output = OutputDirectory(directory)
    output.open()
    study = StudyFile(open_storage(output, None), "study", ["maximize"], [space or mixed_space()])
    known = study.restore()
    ledger = Ledger(numbers(directory, sampler, seed=seed), output, study, "maximize")
    proposer, _ = propose(ledger, known)
    for proposal in known:
        study.report(proposal, [score(proposal.configuration.assignment)])
    proposals = list(known)
    while len(proposals) < count:
        number = len(proposals)
        proposal = proposer.next(number, number + 1 - LOOK_AHEAD)
        assert proposal is not None
        study.report(proposal, [score(proposal.configuration.assignment)])
        proposals.append(proposal)
    output.close()
    return proposals


def recipes(proposals: list[Proposal]) -> list[Recipe]:
    return [proposal.configuration.recipe for proposal in proposals]


def nearness(assignment: Any) -> float:
    """Best is the percentile 97."""
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
def test_sampler_goes_on_as_if_it_had_not_been_interrupted(tmp_path: Path, sampler: str) -> None:
    requires(sampler)
    whole = draw(tmp_path / "whole", sampler, 20, nearness)
    for count in (3, 13, 20):
        parts = draw(tmp_path / "parts", sampler, count, nearness)
    assert recipes(parts) == recipes(whole)


def test_sampler_learns_from_the_trials_before(tmp_path: Path) -> None:
    """TPE gets nearer to the optimum than as many random draws do; a study for each trial would not."""
    means = {}
    for sampler in ("tpe", "random"):
        late = draw(tmp_path / sampler, sampler, 60, nearness)[20:]
        means[sampler] = sum(nearness(proposal.configuration.assignment) for proposal in late) / len(late)
    assert abs(means["tpe"]) < 0.5 * abs(means["random"])


def test_search_with_a_sampler_goes_on_with_the_same_trials(network: Path, distance: Distance, tmp_path: Path) -> None:
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
    assert found.stopped_by == "every configuration was tried"


def test_joint_parameter_sets_two_fields_at_once(network: Path, distance: Distance, tmp_path: Path) -> None:
    def build(assignment: Any) -> Recipe:
        steps, percentile = assignment["joint"]
        return Space.of(Recipe(), {}).build(
            {"equalize.cross_layer": CrossLayer(steps=steps), "scale.activation": Percentile(percentile)}
        )

    space = Space({"joint": Choice([[1, 99.0], [2, 99.9]])}, build)
    found = run_search(network, random_samples(2), distance, space, numbers(tmp_path, "grid", 5))
    assert [trial.assignment["joint"] for trial in found.trials] == [[1, 99.0], [2, 99.9]]


def test_sampler_that_is_not_installed_is_told_before_any_work(
    network: Path, distance: Distance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(MissingExtraError, match=r"quantry\[search\]"):
        run_search(network, random_samples(2), distance, mixed_space(), numbers(tmp_path / "x", "cmaes"))
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("sampler", ["grid", *KINDS])
def test_what_a_space_wants_to_be_first_is_and_comes_once(sampler: str, tmp_path: Path) -> None:
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

    begun = draw(tmp_path, sampler, 1, score, space=space)
    proposals = draw(tmp_path, sampler, 10, score, space=space)
    assert [dict(proposal.configuration.assignment) for proposal in proposals[:2]] == first
    assert recipes(proposals)[:1] == recipes(begun)
    assert len(set(recipes(proposals))) == 10
