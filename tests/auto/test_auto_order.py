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

from quantry.auto.candidates import Candidate, fixes
from quantry.auto.effort import find_effort
from quantry.auto.recipe_search import AutoReport, RecipeSearch
from quantry.auto.run import AutoInputs, trial_inputs
from quantry.auto.speed import SpeedCheck
from quantry.auto.trials import HeldOutTrials, Stopwatch, TrialResult
from quantry.autosearch.variants import NO_EQUALIZATION
from quantry.diagnosis import Diagnosis, Fix
from quantry.diagnosis.evidence import Finding
from quantry.diagnosis.fix import float_fix
from quantry.diagnosis.general_fixes import _promising
from quantry.evaluate.levels import CLOSE, is_below
from quantry.evaluate.tasks import Closeness
from quantry.recipe import EqualizeOptions, MinMax, Recipe, Selection, SmoothQuant, TuneOptions, find_preset


def first_layers(count: int, expected: float) -> Fix:
    nodes = tuple(f"layer {number}" for number in range(count))
    return Fix(f"first {count}", float_nodes=nodes, depth=count, expected=expected)


def last_nodes(count: int, expected: float) -> Fix:
    return Fix(f"last {count}", float_nodes=tuple(f"node {number}" for number in range(count)), expected=expected)


def labels(findings: tuple[Finding, ...], general: tuple[Fix, ...]) -> list[str]:
    diagnosis = cast("Diagnosis", SimpleNamespace(findings=findings, general_fixes=general))
    return [candidate.label for candidate in fixes(diagnosis)]


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
    """Trials of recipes whose decibels depend on the nodes in float, and on whether they are tuned."""

    is_single = is_swapped = False
    seconds = 0.0
    calibrated = 20
    effort = find_effort("default")

    def __init__(self, decibels: Mapping[tuple[str, ...], float], tuned: Mapping[tuple[str, ...], float]) -> None:
        self._decibels = decibels, tuned
        self._recipes: set[Recipe] = set()

    def run(self, label: str, recipe: Recipe) -> TrialResult:
        self._recipes.add(recipe)
        decibels = self._decibels[bool(recipe.tune.steps)][recipe.plan.selection.exclude]
        unknown = np.full(20, np.nan)
        return TrialResult(label, recipe, Closeness(np.full(20, decibels), unknown, unknown), 0.0)

    def has_run(self, recipe: Recipe) -> bool:
        return recipe in self._recipes

    def quantized(self, recipe: Recipe) -> Recipe:
        return recipe

    def affords(self, _: float, *, is_urgent: bool) -> bool:
        return is_urgent or True

    def expected(self, _: Recipe) -> float:
        return 0.0


class RefusedSpeed:
    """Nodes that would be faster in float, but the model is not."""

    name = "here"

    def slow_nodes(self, _: Recipe) -> list[tuple[tuple[str, ...], str]]:
        return [(("a",), "Conv")]

    def is_faster(self, *_: Recipe) -> bool:
        return False

    def slow_because(self, recipe: Recipe) -> str:
        return f"slow with {recipe.plan.selection.exclude} in float, {len(recipe.tune.steps)} steps of tuning"


def searched(trials: MeasuredTrials, *general: Fix, speed: object = None) -> AutoReport:
    diagnosis = cast("Diagnosis", SimpleNamespace(findings=(), general_fixes=general, falls=()))
    search = RecipeSearch(cast("HeldOutTrials", trials), None, cast("SpeedCheck", speed))
    search._diagnosed = lambda *, brief: diagnosis  # type: ignore[method-assign,assignment]
    recipe = find_preset("RECOMMENDED-NPU").recipe
    plain = replace(find_preset("XINT8").recipe, plan=replace(recipe.plan, selection=Selection(exclude=("plain",))))
    return search.run(Candidate.whole("start", recipe), Candidate.whole("plain", plain))


def test_changes_are_screened_without_tuning_and_one_tuned_trial_decides() -> None:
    screened = {(): 10.0, ("plain",): 5.0, ("a",): 14.0, ("a", "b"): 14.1}
    tuned = {(): 15.0, ("a",): 18.0, ("a", "b"): 18.1}
    report = searched(MeasuredTrials(screened, tuned), float_fix(("a",)), float_fix(("b",)))
    assert report.kept == ("a in float", "tuning")
    assert report.recipe.tune.steps
    assert report.recipe.plan.selection.exclude == ("a",)


def test_what_tuning_makes_up_for_does_not_stay_in_float() -> None:
    report = searched(
        MeasuredTrials({(): 10.0, ("plain",): 5.0, ("a",): 14.0}, {(): 17.9, ("a",): 18.0}), float_fix(("a",))
    )
    assert report.kept == ("tuning",)
    assert report.recipe.plan.selection.exclude == ()


def test_the_speed_that_is_reported_is_that_of_the_best_model_not_of_what_was_refused() -> None:
    screened = {(): 10.0, ("plain",): 5.0, ("a",): 10.01}
    report = searched(MeasuredTrials(screened, {(): 11.0}), speed=RefusedSpeed())
    assert report.kept == ("tuning",)
    assert report.slow_because == "slow with () in float, 0 steps of tuning"


def test_tuning_that_does_harm_is_left_out() -> None:
    report = searched(MeasuredTrials({(): 10.0, ("plain",): 5.0}, {(): 9.0}))
    assert report.kept == ()
    assert not report.recipe.tune.steps
    assert [step.label for step in report.steps] == ["start, not tuned", "plain", "tuning"]


def test_what_the_rounding_of_weights_hid_is_tried_after_tuning() -> None:
    screened = {(): 10.0, ("plain",): 5.0, ("a",): 10.01}
    report = searched(MeasuredTrials(screened, {(): 16.0, ("a",): 22.0}), float_fix(("a",)))
    assert report.kept == ("tuning", "a in float")


def test_noise_is_screened_with_tuning() -> None:
    tuned = {(): 8.0, ("a",): 12.0}
    report = searched(MeasuredTrials({(): 1.0, ("plain",): -5.0}, tuned), float_fix(("a",)))
    assert report.kept == ("tuning", "a in float")


def test_after_three_candidates_in_vain_the_others_are_not_tried() -> None:
    names = "abcde"
    screened = {(): 10.0, ("plain",): 5.0} | {(name,): 10.01 + (name == "e") * 9 for name in names}
    report = searched(
        MeasuredTrials(screened, {(): 9.0}),
        *(replace(float_fix((name,), f"{name} of {names}"), expected=6.0 - place) for place, name in enumerate(names)),
    )
    assert [step.label[0] for step in report.steps[2:-1]] == ["a", "b", "c"]


def test_what_gains_nothing_is_not_tried_and_what_is_not_measured_is() -> None:
    unknown = float_fix(("a",))
    assert list(_promising([last_nodes(1, 0.0), unknown])) == [unknown]


def test_largest_gain_is_tried_first_and_a_free_one_counts_twice() -> None:
    def caused(cost: float) -> tuple[Finding, ...]:
        return (Finding("cut off", ("x",), "", (Fix("ranges", {"scale.activation": MinMax()}),), cost=cost),)

    general = (last_nodes(2, 6.3), last_nodes(5, 7.1))
    assert labels(caused(0.5), general) == ["last 2", "last 5", "ranges"]
    assert labels(caused(4.0), general) == ["ranges", "last 2", "last 5"]


def test_several_equalizations_are_left_out_together() -> None:
    best = find_preset("RECOMMENDED-NPU").recipe
    kept = NO_EQUALIZATION.applied(best).equalize
    assert (kept.smooth, kept.joint, kept.cross_layer) == (None, None, None)
    assert (kept.powers, kept.rotate) == (best.equalize.powers, best.equalize.rotate)
    single = replace(best, equalize=EqualizeOptions(smooth=SmoothQuant()))
    assert NO_EQUALIZATION.applied(single) is single


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
    recipe = find_preset("RECOMMENDED-CPU").recipe
    with trial_inputs(AutoInputs(layers(tmp_path), samples, store=None), recipe) as inputs:
        trials = HeldOutTrials(inputs, find_effort("default"), tmp_path / "trials")
        result = trials.run("start", recipe)
        assert result.closeness is not None
        assert trials.expected(recipe) == 0.0
        selection = replace(recipe.plan.selection, exclude=("y",))
        changed = replace(recipe, plan=replace(recipe.plan, selection=selection))
        assert (
            0.0 < trials.expected(replace(changed, tune=TuneOptions())) < trials.expected(changed) < 2 * result.seconds
        )


@pytest.mark.parametrize(
    ("decibels", "agreement", "expected"),
    [(30.0, 0.5, True), (10.0, 0.95, False), (10.0, np.nan, True), (20.0, np.nan, False)],
)
def test_models_that_share_few_decisions_are_not_close(decibels: float, agreement: float, *, expected: bool) -> None:
    measured = Closeness(np.array([decibels]), np.array([agreement]), np.array([np.nan]))
    assert is_below(measured, CLOSE) == expected


def test_a_model_that_is_far_from_usable_gets_twice_the_time() -> None:
    trials = cast("HeldOutTrials", SimpleNamespace(seconds=50.0, effort=find_effort("default")))
    assert not HeldOutTrials.affords(trials, 20.0)
    assert HeldOutTrials.affords(trials, 20.0, is_urgent=True)
    assert not HeldOutTrials.affords(trials, 80.0, is_urgent=True)


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
