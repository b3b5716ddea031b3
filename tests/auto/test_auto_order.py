"""The order in which `auto` tries changes, and how long it expects a trial to take."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from quantry.auto.effort import find_effort
from quantry.auto.gain import is_poor
from quantry.auto.loop import Loop
from quantry.auto.proposals import Proposal, fixes, unequalized, untuned
from quantry.auto.run import AutoInputs, trial_inputs, without_fallback
from quantry.auto.trials import Attempt, Stopwatch, Trials
from quantry.diagnosis import Diagnosis, Fix
from quantry.diagnosis.evidence import Finding
from quantry.diagnosis.fix import float_fix
from quantry.diagnosis.general_fixes import _promising
from quantry.evaluate.tasks import Closeness
from quantry.recipe import EqualizeOptions, MinMax, Recipe, SmoothQuant, find_preset


def first_layers(count: int, expected: float) -> Fix:
    nodes = tuple(f"layer {number}" for number in range(count))
    return Fix(f"first {count}", float_nodes=nodes, depth=count, expected=expected)


def last_nodes(count: int, expected: float) -> Fix:
    return Fix(f"last {count}", float_nodes=tuple(f"node {number}" for number in range(count)), expected=expected)


def labels(recipe: Recipe, findings: tuple[Finding, ...], general: tuple[Fix, ...]) -> list[str]:
    diagnosis = cast("Diagnosis", SimpleNamespace(findings=findings, general_fixes=general))
    return [proposal.label for proposal in fixes(recipe, diagnosis)]


def test_first_layers_start_where_more_of_them_gain_less_per_layer() -> None:
    known = [first_layers(1, 0.9), first_layers(3, 8.0), first_layers(5, 10.5), first_layers(8, 14.0)]
    assert [fix.label for fix in _promising(known)] == ["first 3", "first 8", "first 5"]
    # In proportion to their number, the fewest come first.
    assert next(_promising([first_layers(1, 1.0), first_layers(3, 3.0)])).label == "first 1"


def test_few_nodes_come_before_more_that_gain_little_more() -> None:
    assert [fix.label for fix in _promising([last_nodes(5, 7.1), last_nodes(2, 6.3)])] == ["last 2", "last 5"]
    assert [fix.label for fix in _promising([last_nodes(5, 7.1), last_nodes(2, 3.0)])] == ["last 5", "last 2"]


def test_more_nodes_that_gain_nothing_more_are_not_tried() -> None:
    assert [fix.label for fix in _promising([first_layers(5, 16.7), first_layers(8, 14.5)])] == ["first 5"]
    assert [fix.label for fix in _promising([last_nodes(2, 6.3), last_nodes(5, 6.4)])] == ["last 2"]


class MeasuredTrials:
    """Trials of recipes whose decibels depend on the nodes in float only."""

    is_single = False
    seconds = 0.0
    effort = find_effort("default")

    def __init__(self, decibels: Mapping[tuple[str, ...], float]) -> None:
        self._decibels = decibels
        self._known: dict[Recipe, Attempt] = {}

    def run(self, proposal: Proposal) -> Attempt:
        decibels = self._decibels[proposal.recipe.plan.selection.exclude]
        unknown = np.full(20, np.nan)
        attempt = Attempt(proposal, Closeness(np.full(20, decibels), unknown, unknown), 0.0)
        self._known[proposal.recipe] = attempt
        return attempt

    def known(self, recipe: Recipe) -> Attempt | None:
        return self._known.get(recipe)

    def affords(self, _: float, *, is_urgent: bool) -> bool:
        return is_urgent or True

    def expected(self, _: Recipe) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("after", "with_layers", "kept"),
    [(10.2, 11.0, ("a", "b")), (10.2, 10.3, ("a",)), (10.05, 10.1, ()), (10.7, 10.8, ("a",)), (10.6, 11.2, ("a", "b"))],
)
def test_cheap_fix_is_kept_if_nothing_that_includes_it_gains_more(
    after: float, with_layers: float, kept: tuple[str, ...]
) -> None:
    trials = MeasuredTrials({(): 10.0, ("a",): after, ("a", "b"): with_layers})
    general = (replace(float_fix(("a",)), is_cheap=True), float_fix(("a", "b")))
    diagnosis = cast("Diagnosis", SimpleNamespace(findings=(), general_fixes=general))
    loop = Loop(cast("Trials", trials), None)
    loop._begin(Proposal("start", untuned(find_preset("XINT8").recipe)), ())
    loop._consider(lambda recipe: fixes(recipe, diagnosis))
    assert loop._best.recipe.plan.selection.exclude == kept


def test_what_gains_nothing_is_not_tried_and_what_is_not_measured_is() -> None:
    unknown = float_fix(("a",))
    assert list(_promising([last_nodes(1, 0.0), unknown])) == [unknown]


def test_largest_gain_is_tried_first_and_a_free_one_counts_twice() -> None:
    def caused(cost: float) -> tuple[Finding, ...]:
        return (Finding("cut off", ("x",), "", (Fix("ranges", {"scale.activation": MinMax()}),), cost=cost),)

    general = (last_nodes(2, 6.3), last_nodes(5, 7.1))
    recipe = find_preset("XINT8").recipe
    assert labels(recipe, caused(0.5), general) == ["last 2", "last 5", "ranges"]
    assert labels(recipe, caused(4.0), general) == ["ranges", "last 2", "last 5"]


def test_several_equalizations_are_left_out_together() -> None:
    best = find_preset("RECOMMENDED-NPU").recipe
    (proposal,) = unequalized(best)
    kept = proposal.recipe.equalize
    assert (kept.smooth, kept.joint, kept.cross_layer) == (None, None, None)
    assert (kept.powers, kept.rotate) == (best.equalize.powers, best.equalize.rotate)
    assert not list(unequalized(replace(best, equalize=EqualizeOptions(smooth=SmoothQuant()))))


def layers(tmp_path: Path) -> Path:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        net (float[1, 8, 16, 16] x) => (float[1, 8, 16, 16] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w)
            b = Relu (a)
            y = Conv <pads = [1, 1, 1, 1]> (b, w)
        }"""
    )
    weight = np.random.default_rng(0).normal(size=(8, 8, 3, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def test_stages_of_earlier_trials_take_no_time(tmp_path: Path) -> None:
    samples = [np.random.default_rng(seed).normal(size=(1, 8, 16, 16)).astype(np.float32) for seed in range(8)]
    recipe = without_fallback(find_preset("RECOMMENDED-CPU").recipe)
    with trial_inputs(AutoInputs(layers(tmp_path), samples, store=None), recipe) as inputs:
        trials = Trials(inputs, find_effort("default"), tmp_path / "trials")
        attempt = trials.run(Proposal("start", recipe))
        assert attempt.closeness is not None
        assert trials.expected(recipe) == 0.0
        selection = replace(recipe.plan.selection, exclude=("y",))
        changed = replace(recipe, plan=replace(recipe.plan, selection=selection))
        assert 0.0 < trials.expected(untuned(changed)) < trials.expected(changed) < 2 * attempt.seconds


@pytest.mark.parametrize(
    ("decibels", "agreement", "expected"),
    [(30.0, 0.5, True), (10.0, 0.95, False), (10.0, np.nan, True), (20.0, np.nan, False)],
)
def test_models_that_share_few_decisions_are_poor(decibels: float, agreement: float, *, expected: bool) -> None:
    measured = Closeness(np.array([decibels]), np.array([agreement]), np.array([np.nan]))
    assert is_poor(measured) == expected


def test_a_model_that_is_far_from_usable_gets_twice_the_time() -> None:
    trials = cast("Trials", SimpleNamespace(seconds=50.0, effort=find_effort("default")))
    assert not Trials.affords(trials, 20.0)
    assert Trials.affords(trials, 20.0, is_urgent=True)
    assert not Trials.affords(trials, 80.0, is_urgent=True)


def test_threads_that_wait_do_not_use_up_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"process_time": 0.0, "perf_counter": 0.0}
    monkeypatch.setattr("quantry.auto.trials.time.process_time", lambda: times["process_time"])
    monkeypatch.setattr("quantry.auto.trials.time.perf_counter", lambda: times["perf_counter"])
    watch = Stopwatch()
    times.update(process_time=13.0, perf_counter=10.0)
    assert watch.seconds == 13.0
    times.update(process_time=90.0, perf_counter=16.0)
    assert watch.seconds == 24.0
    times.update(process_time=90.0, perf_counter=200.0)
    assert watch.seconds == 90.0
