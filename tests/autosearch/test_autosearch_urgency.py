"""The order of a grid whose time is short: value for cost."""

from pathlib import Path
from typing import Any

from quantry.autosearch import SearchOptions, Space, StopConditions
from quantry.autosearch.configurations import enumerate_configurations
from quantry.autosearch.evaluator import Score
from quantry.autosearch.ledger import Ledger
from quantry.autosearch.outcome import Outcome
from quantry.autosearch.output_directory import OutputDirectory
from quantry.autosearch.proposer import propose
from quantry.autosearch.study import StudyFile
from quantry.autosearch.study_storage import open_storage
from quantry.recipe import AdaRound, CrossLayer, MinMax, MinMSE, Percentile, Recipe

FIELDS: dict[str, Any] = {
    "scale.activation": [MinMax(), MinMSE(), *(Percentile(99.0 + step / 10) for step in range(4))],
    "equalize.cross_layer": [None, CrossLayer()],
}


def order(directory: Path, space: Space, seconds: float | None, cost: dict[str, float]) -> list[Any]:
    """Return assignments in the order tried, where MinMSE is good, equalization bad, and stages take what is said."""
    output = OutputDirectory(directory)
    output.open()
    study = StudyFile(open_storage(output, None), "study", ["maximize"], [space])
    ledger = Ledger(SearchOptions("grid", stop=StopConditions(seconds=seconds)), output, study, "maximize")
    ledger.reference = Score(1.0)
    proposer, _ = propose(ledger, [])
    ledger.expected = proposer.recipes
    tried = []
    while (proposal := proposer.next(len(tried), 0)) is not None:
        assignment = proposal.configuration.assignment
        score = (assignment["scale.activation"] == MinMSE()) - 0.5 * (assignment["equalize.cross_layer"] is not None)
        took = {stage: cost.get(stage, 0.1) for stage in ("prepare", "observe", "scale", "emit")}
        ledger.settle(
            proposal, Outcome(len(tried), "complete", score=score, seconds=sum(took.values()) + 1, computed=took)
        )
        tried.append(assignment)
    output.close()
    assert len(tried) == len(enumerate_configurations([space])[0])
    assert list(ledger.expected) == [trial.recipe for trial in ledger.trials]
    return tried


def test_order_is_fixed_while_there_is_time_for_everything(tmp_path: Path) -> None:
    space = Space.of(Recipe(), FIELDS)
    slow, fast = (order(tmp_path / str(cost), space, 1e6, {"scale": cost}) for cost in (50.0, 0.01))
    assert slow == fast == order(tmp_path / "unlimited", space, None, {})


def test_values_that_did_well_come_first_where_time_is_short(tmp_path: Path) -> None:
    space = Space.of(Recipe(), {"scale.weight": [MinMax(), MinMSE(), Percentile(99.0)], **FIELDS})
    tried = order(tmp_path, space, 1e-3, {})
    good = [place for place, entry in enumerate(tried) if entry["scale.activation"] == MinMSE()]
    fixed = order(tmp_path / "fixed", space, None, {})
    was = [place for place, entry in enumerate(fixed) if entry["scale.activation"] == MinMSE()]
    assert sum(good) < sum(was)
    assert good[2] <= 8


def test_expensive_stages_wait_where_time_is_short(tmp_path: Path) -> None:
    tuned = {"tune.steps": [(), (AdaRound(iterations=1000),)], **FIELDS}
    tried = order(tmp_path, Space.of(Recipe(), tuned), 1e-3, {"observe": 500.0})
    # MinMSE is good, and still its tuning waits for what is cheap.
    assert all(entry["tune.steps"] == () for entry in tried[:12])


def test_own_prior_keeps_its_order(tmp_path: Path) -> None:
    plain = Space.of(Recipe(), FIELDS)
    places = {str(entry): -number for number, entry in enumerate(plain.assignments())}
    space = Space(plain.parameters, plain.build, lambda entry: places[str(entry)])
    tried = order(tmp_path, space, 1e-3, {})
    assert [places[str(entry)] for entry in tried] == sorted(places.values())


def test_what_a_space_wants_to_be_first_is_where_time_is_short(tmp_path: Path) -> None:
    first = [entry for entry in Space.of(Recipe(), FIELDS).assignments() if entry["equalize.cross_layer"] is not None]
    tried = order(tmp_path, Space.of(Recipe(), FIELDS, first=first), 1e-3, {})
    assert len(first) == 6
    assert tried[:6] == first
