"""The order of a grid that does not fit into its budget: value for cost."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from quantry.autosearch import SearchOptions, Space
from quantry.autosearch.evaluator import Score
from quantry.autosearch.output_directory import OutputDirectory
from quantry.autosearch.priority import enumerate_trials
from quantry.autosearch.proposer import make_proposer
from quantry.autosearch.state import SearchState
from quantry.autosearch.storage import open_storage
from quantry.autosearch.study import SearchStudy
from quantry.recipe import AdaRound, CrossLayer, MinMax, MinMSE, Percentile, Recipe

FIELDS: dict[str, Any] = {
    "scale.activation": [MinMax(), MinMSE(), *(Percentile(99.0 + step / 10) for step in range(4))],
    "equalize.cross_layer": [None, CrossLayer()],
}


def order(directory: Path, space: Space, seconds: float | None, cost: dict[str, float]) -> list[Any]:
    """Return assignments in the order tried, if MinMSE is good, equalization bad, and stages take these seconds."""
    output = OutputDirectory(directory)
    output.open()
    study = SearchStudy(open_storage(output, None), "study", ["maximize"], [space])
    state = SearchState(SearchOptions("grid", budget=seconds), output, study, "maximize")
    state.reference = Score(1.0)
    proposer, _ = make_proposer(state, [])
    state.expected = proposer.recipes
    tried = []
    while (trial := proposer.next(len(tried), 0)) is not None:
        assignment = trial.assignment
        score = (assignment["scale.activation"] == MinMSE()) - 0.5 * (assignment["equalize.cross_layer"] is not None)
        took = {stage: cost.get(stage, 0.1) for stage in ("prepare", "observe", "scale", "emit")}
        seconds_taken = sum(took.values()) + 1
        state.record(replace(trial, state="complete", score=score, seconds=seconds_taken, computed=took))
        tried.append(assignment)
    output.close()
    assert len(tried) == len(enumerate_trials([space])[0])
    assert list(state.expected) == [trial.recipe for trial in state.trials]
    return tried


def test_order_is_fixed_while_there_is_time_for_everything(tmp_path: Path) -> None:
    space = Space.of(Recipe(), FIELDS)
    slow, fast = (order(tmp_path / str(cost), space, 1e6, {"scale": cost}) for cost in (50.0, 0.01))
    assert slow == fast == order(tmp_path / "unlimited", space, None, {})


def test_values_that_did_well_come_first_if_time_is_short(tmp_path: Path) -> None:
    space = Space.of(Recipe(), {"scale.weight": [MinMax(), MinMSE(), Percentile(99.0)], **FIELDS})
    tried = order(tmp_path, space, 1e-3, {})
    good = [place for place, entry in enumerate(tried) if entry["scale.activation"] == MinMSE()]
    fixed = order(tmp_path / "fixed", space, None, {})
    was = [place for place, entry in enumerate(fixed) if entry["scale.activation"] == MinMSE()]
    assert sum(good) < sum(was)
    assert good[2] <= 8


def test_expensive_stages_come_later_if_time_is_short(tmp_path: Path) -> None:
    tuned = {"tune.steps": [(), (AdaRound(iterations=1000),)], **FIELDS}
    tried = order(tmp_path, Space.of(Recipe(), tuned), 1e-3, {"observe": 500.0})
    # MinMSE is good, but its tuning still comes after everything cheap.
    assert all(entry["tune.steps"] == () for entry in tried[:12])


def test_prior_of_the_space_keeps_its_order(tmp_path: Path) -> None:
    plain = Space.of(Recipe(), FIELDS)
    places = {str(entry): -number for number, entry in enumerate(plain.assignments())}
    space = Space(plain.parameters, plain.build, lambda entry: places[str(entry)])
    tried = order(tmp_path, space, 1e-3, {})
    assert [places[str(entry)] for entry in tried] == sorted(places.values())


def test_first_assignments_come_first_even_if_time_is_short(tmp_path: Path) -> None:
    first = [entry for entry in Space.of(Recipe(), FIELDS).assignments() if entry["equalize.cross_layer"] is not None]
    tried = order(tmp_path, Space.of(Recipe(), FIELDS, first=first), 1e-3, {})
    assert len(first) == 6
    assert tried[:6] == first
