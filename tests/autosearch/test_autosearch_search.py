"""Complete searches in this process."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from small_network import Distance, random_samples, small_space

import quantry
from quantry.autosearch import (
    Choice,
    SearchOptions,
    SearchResult,
    Space,
    SpaceUnion,
    Uniform,
    run_search,
    search,
)
from quantry.autosearch.evaluator import EvaluatorAdapter
from quantry.data.images import ImageOptions
from quantry.errors import DataError, RecipeError, StageError, StoreError
from quantry.recipe import MinMax, MinMSE, Percentile, Recipe, load_recipe

Samples = list[dict[str, Any]]


def grid(directory: Path, **changes: Any) -> SearchOptions:
    return SearchOptions(**{"sampler": "grid", "output_dir": directory, **changes})


@pytest.fixture(scope="module")
def finished(network: Path, tmp_path_factory: pytest.TempPathFactory) -> SearchResult:
    """A finished grid, for tests that only look at its result."""
    options = grid(tmp_path_factory.mktemp("finished"))
    return run_search(network, random_samples(4), Distance(network), small_space(), options)


def test_grid_finds_the_best_of_all_configurations(
    finished: SearchResult, network: Path, distance: Distance, space: Space, tmp_path: Path
) -> None:
    store = quantry.MemoryStore()
    by_hand = {}
    for assignment in space.assignments():
        recipe = space.build(assignment)
        quantry.quantize(network, random_samples(4), recipe, store=store).save(tmp_path / "hand.onnx")
        by_hand[recipe] = distance(tmp_path / "hand.onnx")
    assert {trial.recipe: trial.score for trial in finished.trials} == by_hand
    assert finished.best is not None
    assert finished.best.score == min(by_hand.values())
    assert str(finished.stopped_by) == "every configuration was tried"


def test_best_model_and_recipe_are_on_disk_and_belong_together(
    finished: SearchResult, network: Path, tmp_path: Path
) -> None:
    assert finished.best is not None
    assert finished.best_model is not None
    assert finished.best_recipe is not None
    recipe = load_recipe(finished.best_recipe)
    assert recipe == finished.best.recipe
    quantry.quantize(network, random_samples(4), recipe, store=None).save(tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == finished.best_model.read_bytes()


def test_stages_are_shared_between_trials(finished: SearchResult) -> None:
    assert sum("observe" in trial.computed for trial in finished.trials) == 2
    assert sum("observe" in trial.reused for trial in finished.trials) == len(finished.trials) - 2


def test_every_score_has_an_interval_around_it(finished: SearchResult) -> None:
    for trial in finished.trials:
        assert trial.interval is not None
        assert trial.score is not None
        assert trial.interval[0] < trial.score < trial.interval[1]


def test_log_and_summary_describe_all_trials(finished: SearchResult) -> None:
    log = (finished.output_dir / "auto_search.log").read_text()
    assert "12 configurations to try" in log
    assert "computed plan" in log
    assert "reused prepare, plan, observe" in log
    assert "search ends after 12 trials" in log
    summary = json.loads((finished.output_dir / "search.json").read_text())
    assert summary["best"] == (finished.best.number if finished.best else None)
    assert summary["candidates"] == [trial.number for trial in finished.candidates]
    assert [entry["score"] for entry in summary["trials"]] == [trial.score for trial in finished.trials]


def test_without_a_tolerance_only_the_best_model_stays_on_disk(finished: SearchResult) -> None:
    assert finished.best is not None
    assert [path.name for path in finished.output_dir.glob("iter_*")] == [f"iter_{finished.best.number}.onnx"]


def test_racing_reaches_the_winner_with_less_evaluation(network: Path, samples: Samples, tmp_path: Path) -> None:
    space = Space.of(
        Recipe(),
        {
            "scale.activation": [MinMax(), Percentile(90.0), Percentile(95.0), Percentile(99.0), MinMSE()],
            "scale.reduce_range": [False, True],
        },
    )
    evaluator = Distance(network, 128)
    everything = run_search(network, samples, evaluator, space, grid(tmp_path / "all"))
    raced = run_search(network, samples, evaluator, space, grid(tmp_path / "pruned", racing=True))
    assert everything.best is not None
    assert raced.best is not None
    assert raced.best.recipe == everything.best.recipe
    assert raced.best.score == pytest.approx(everything.best.score)
    assert everything.evaluation_share == 1
    assert raced.evaluation_share is not None
    assert raced.evaluation_share <= 0.5
    stopped = [trial for trial in raced.trials if trial.state == "pruned"]
    assert stopped
    assert not any(trial.accepted for trial in stopped)


def test_tolerance_respects_the_direction(network: Path, samples: Samples, space: Space, tmp_path: Path) -> None:
    distance = Distance(network)

    def closeness(path: Path) -> float:
        return 1 / (1 + distance(path)) if Path(path) != network else 1.0

    found = run_search(network, samples, closeness, space, grid(tmp_path, tolerance="90%"))
    assert found.reference.value == 1.0
    assert {trial.accepted for trial in found.trials} == {True, False}
    for trial in found.trials:
        assert trial.drop == pytest.approx(1.0 - (trial.score or 0))
        assert trial.accepted == (trial.drop is not None and trial.drop <= 0.9)


def test_nothing_within_tolerance_returns_the_best_and_says_how_far(
    network: Path, samples: Samples, distance: Distance, space: Space, tmp_path: Path
) -> None:
    found = run_search(network, samples, distance, space, grid(tmp_path, tolerance=1e-9))
    assert found.candidates == ()
    assert found.best is not None
    assert any("nothing is within the tolerance of 1e-09" in note for note in found.notes)


@pytest.mark.parametrize(
    ("stop", "trials"),
    [
        ({"n_trials": 2}, 2),
        ({"n_candidates": 1}, 1),
        ({"patience": 2}, None),
        ({"budget": 1e-6}, 0),
    ],
)
def test_search_stops_at_its_limit(
    network: Path, distance: Distance, space: Space, tmp_path: Path, stop: dict[str, Any], trials: int | None
) -> None:
    samples = random_samples(4)
    found = run_search(network, samples, distance, space, grid(tmp_path, **stop))
    if trials is not None:
        assert len(found.trials) == trials
    else:
        assert found.best is not None
        assert len(found.trials) == found.best.number + 3


def test_failing_trial_is_recorded_and_the_search_continues(
    network: Path, samples: Samples, distance: Distance, space: Space, tmp_path: Path
) -> None:
    def moody(path: Path) -> float:
        if Path(path).name == "iter_1.onnx":
            raise ZeroDivisionError("bad sample")
        return -distance(path)

    found = run_search(network, samples, moody, space, grid(tmp_path, n_trials=3))
    assert [trial.number for trial in found.trials if trial.state == "failed"] == [1]
    assert found.trials[1].error == "ZeroDivisionError: bad sample"
    assert len(found.trials) == 3
    assert "bad sample" in (tmp_path / "auto_search.log").read_text()


def test_evaluator_that_exits_fails_only_its_trial(
    network: Path, samples: Samples, space: Space, tmp_path: Path
) -> None:
    def leaves(path: Path) -> float:
        if path != network:
            raise SystemExit(3)
        return 1.0

    found = run_search(network, samples, leaves, space, grid(tmp_path, n_trials=2))
    assert [trial.error for trial in found.trials] == ["SystemExit: 3"] * 2


@pytest.mark.parametrize(
    "answer",
    [
        *("much", "0.5", float("nan"), None, float("inf"), float("-inf")),
        *([], [0.5, float("inf")], [[0.1], [0.2]]),
        *({}, {"top1": float("inf")}, {"top1": 0.5, "top5": None}),
    ],
)
def test_score_that_is_not_a_number_fails_the_trial(
    network: Path, samples: Samples, space: Space, tmp_path: Path, answer: object
) -> None:
    def evaluator(path: Path) -> object:
        return 1.0 if Path(path) == network else answer

    found = run_search(network, samples, evaluator, space, grid(tmp_path, n_trials=2))
    assert found.best is None
    assert all("an evaluator must return" in (trial.error or "") for trial in found.trials)
    assert any("no trial could be evaluated: 2 of 2 failed" in note for note in found.notes)


def test_mean_of_returned_samples_is_the_score(
    network: Path, samples: Samples, distance: Distance, space: Space, tmp_path: Path
) -> None:
    def each(path: Path) -> list[float]:
        return [-number for number in distance.per_sample(path, range(distance.size))]

    found = run_search(network, samples, each, space, grid(tmp_path / "each", n_trials=3))
    number = run_search(network, samples, lambda path: -distance(path), space, grid(tmp_path / "number", n_trials=3))
    assert [trial.score for trial in found.trials] == pytest.approx([trial.score for trial in number.trials])
    for trial in found.trials:
        assert trial.interval is not None
        assert trial.interval[0] < trial.score < trial.interval[1]
        assert trial.samples == distance.size


def test_one_of_several_named_scores_is_optimized_and_all_are_recorded(
    network: Path, samples: Samples, distance: Distance, space: Space, tmp_path: Path
) -> None:
    def named(path: Path) -> dict[str, object]:
        each = distance.per_sample(path, range(distance.size))
        return {"closeness": -float(np.mean(each)), "worst": [-max(each)], "distance": each}

    first = run_search(network, samples, named, space, grid(tmp_path / "first", n_trials=4))
    chosen = EvaluatorAdapter.of(named, "worst")
    worst = run_search(network, samples, chosen, space, grid(tmp_path / "worst", n_trials=4))
    assert first.best is not None
    assert worst.best is not None
    assert first.reference.named["distance"] == 0.0
    assert first.best.scores["closeness"] == first.best.score == max(trial.score for trial in first.trials)
    assert worst.best.scores["worst"] == worst.best.score == max(trial.scores["worst"] for trial in first.trials)
    written = json.loads((tmp_path / "first" / "search.json").read_text())
    assert [trial["scores"] for trial in written["trials"]] == [dict(trial.scores) for trial in first.trials]
    with pytest.raises(StageError, match="closenes"):
        run_search(network, samples, EvaluatorAdapter.of(named, "closenes"), space, grid(tmp_path / "none"))


def test_evaluator_that_cannot_score_the_float_model_is_an_error_at_once(
    network: Path, samples: Samples, space: Space, tmp_path: Path
) -> None:
    def evaluator(_: Path) -> float:
        raise OSError("no labels")

    with pytest.raises(StageError, match="no labels"):
        run_search(network, samples, evaluator, space, grid(tmp_path))


def test_second_call_resumes_and_repeats_nothing(
    network: Path, samples: Samples, distance: Distance, space: Space, tmp_path: Path
) -> None:
    first = run_search(network, samples, distance, space, grid(tmp_path, n_trials=4))
    seen = distance.seen
    second = run_search(network, samples, distance, space, grid(tmp_path, n_trials=6))
    assert len(second.trials) == 6
    assert [trial.score for trial in second.trials[:4]] == [trial.score for trial in first.trials]
    evaluated = [trial for trial in second.trials[4:] if trial.same_as is None]
    assert distance.seen - seen == distance.size * len(evaluated)
    log = (tmp_path / "auto_search.log").read_text()
    assert log.count("trial 0: complete") == 1
    assert "search resumes after 4 finished trials" in log


def test_best_on_disk_never_goes_back_to_an_earlier_one(
    network: Path, samples: Samples, distance: Distance, space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quantry.autosearch import state

    options = grid(tmp_path, n_trials=8)
    found = run_search(network, samples, distance, space, options)
    assert found.best_model is not None
    before = found.best_model.read_bytes()
    copied: list[str] = []
    copy = state.copy_model
    monkeypatch.setattr(state, "copy_model", lambda source, target: (copied.append(source.name), copy(source, target)))
    run_search(network, samples, distance, space, options)
    assert found.best is not None
    assert set(copied) <= {f"iter_{found.best.number}.onnx"}
    assert found.best_model.read_bytes() == before


def test_another_evaluator_starts_from_scratch(
    network: Path, samples: Samples, distance: Distance, space: Space, tmp_path: Path
) -> None:
    options = grid(tmp_path, n_trials=2)
    run_search(network, samples, distance, space, options)
    distance.fingerprint = "other labels"  # type: ignore[attr-defined]
    seen = distance.seen
    with pytest.warns(UserWarning, match="previous-1"):
        run_search(network, samples, distance, space, options)
    assert distance.seen > seen


def test_directory_is_used_by_one_search_at_a_time(
    network: Path, samples: Samples, space: Space, tmp_path: Path
) -> None:
    def greedy(_: Path) -> float:
        run_search(network, samples, greedy, space, grid(tmp_path))
        return 0.0

    with pytest.raises(StageError, match="one search at a time"):
        run_search(network, samples, greedy, space, grid(tmp_path))


def test_incomplete_line_of_a_killed_process_is_cut_off(
    network: Path, samples: Samples, distance: Distance, space: Space, tmp_path: Path
) -> None:
    options = grid(tmp_path, n_trials=2)
    run_search(network, samples, distance, space, options)
    with (tmp_path / "study.journal").open("ab") as file:
        file.write(b'{"op_code": 4, "worker')
    more = grid(tmp_path, n_trials=3)
    assert len(run_search(network, samples, distance, space, more).trials) == 3


def test_full_disk_is_a_clear_error_and_keeps_existing_results(
    network: Path, samples: Samples, distance: Distance, space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quantry.autosearch import output_directory

    write = output_directory.write_file

    def full(path: Path, content: bytes, *, synced: bool) -> None:
        if path.name == "1.npy":
            raise OSError(28, "No space left on device")
        write(path, content, synced=synced)

    monkeypatch.setattr(output_directory, "write_file", full)
    options = grid(tmp_path, n_trials=3)
    with pytest.raises(StoreError, match="No space left"):
        run_search(network, samples, distance, space, options)
    monkeypatch.undo()
    seen = distance.seen
    found = run_search(network, samples, distance, space, options)
    assert [trial.state for trial in found.trials] == ["complete"] * 3
    assert distance.seen - seen <= distance.size * 2


def test_pareto_front_has_no_dominated_trials(
    network: Path, samples: Samples, distance: Distance, tmp_path: Path
) -> None:
    from quantry.recipe import DataType, TensorSpec

    types = [TensorSpec(DataType.INT8), TensorSpec(DataType.INT4)]
    space = Space.of(Recipe(), {"plan.weight": types, "scale.activation": [MinMax(), Percentile(90.0)]})
    options = grid(tmp_path, objectives=("accuracy", "size", "bit_operations"))
    found = run_search(network, samples, distance, space, options)
    points = {trial.number: tuple(trial.objectives.values()) for trial in found.trials}
    for trial in found.pareto:
        ours = points[trial.number]
        assert not any(
            all(o <= t for o, t in zip(other, ours, strict=True)) and other != ours for other in points.values()
        )
    assert {trial.recipe.plan.weight.dtype for trial in found.pareto} == {DataType.INT8, DataType.INT4}
    # First convolution: 8 x 6 x 6 outputs of 27 products; second: 8 x 6 x 6 of 8; 8 bits by 8 or 4.
    assert {trial.objectives["bit_operations"] for trial in found.trials} == {288 * 35 * 64.0, 288 * 35 * 32.0}


def test_latency_is_relative_to_the_float_model(
    network: Path, samples: Samples, distance: Distance, space: Space, tmp_path: Path
) -> None:
    options = grid(tmp_path, objectives=("accuracy", "latency"), n_trials=2)
    found = run_search(network, samples, distance, space, options)
    assert all(0 < trial.objectives["latency"] < 100 for trial in found.trials)


def test_spaces_of_a_union_are_tried_in_order(
    network: Path, samples: Samples, distance: Distance, tmp_path: Path
) -> None:
    first = Space.of(Recipe(), {"scale.activation": [MinMSE(), MinMax()]}, name="first")
    second = Space.of(Recipe(), {"scale.activation": [MinMax(), Percentile()]}, name="second")
    found = run_search(network, samples, distance, SpaceUnion((first, second)), grid(tmp_path))
    assert [trial.space for trial in found.trials] == ["first", "first", "second"]


def test_grid_over_a_continuous_parameter_is_rejected(
    network: Path, samples: Samples, distance: Distance, tmp_path: Path
) -> None:
    space = Space.of(Recipe(), {"scale.activation": [Percentile()], "scale.activation.percentile": Uniform(90, 100)})
    with pytest.raises(RecipeError, match="can be listed"):
        run_search(network, samples, distance, space, grid(tmp_path))


def test_space_without_a_valid_configuration_says_why(
    network: Path, samples: Samples, distance: Distance, tmp_path: Path
) -> None:
    space = Space.of(Recipe(), {"scale.weight": Choice([Percentile()]), "scale.reduce_range": [True]})
    with pytest.raises(RecipeError, match="reduce_range goes with"):
        run_search(network, samples, distance, space, grid(tmp_path))


def test_with_a_tolerance_all_candidates_stay_on_disk(
    network: Path, samples: Samples, distance: Distance, space: Space, tmp_path: Path
) -> None:
    options = grid(tmp_path, tolerance=1e9, n_candidates=3)
    found = run_search(network, samples, distance, space, options)
    assert len(list(tmp_path.glob("iter_*"))) == len(found.candidates) == 3


def test_equal_models_are_evaluated_once(network: Path, samples: Samples, distance: Distance, tmp_path: Path) -> None:
    space = Space.of(Recipe(), {"observe.samples": [None, 4], "scale.activation": [MinMax()]})
    found = run_search(network, samples, distance, space, grid(tmp_path))
    assert [trial.same_as for trial in found.trials] == [None, 0]
    assert found.trials[0].score == found.trials[1].score
    assert distance.seen == distance.size


def test_search_holds_out_samples_for_evaluation(network: Path, tmp_path: Path) -> None:
    found = quantry.search(
        network,
        random_samples(10),
        "cosine",
        {"scale.activation": [MinMax(), MinMSE()]},
        budget="1min",
        output_dir=tmp_path,
        sampler="grid",
    )
    assert found.direction == "maximize"
    assert found.best is not None
    assert found.best.samples == 5
    assert "5 calibration samples" in (tmp_path / "auto_search.log").read_text()
    assert (tmp_path / "calibration.txt").read_text().split("\n")[:2] == ["sample 0", "sample 2"]


def test_search_takes_models_in_memory_and_has_a_default_space(network: Path, tmp_path: Path) -> None:
    found = quantry.search(onnx.load(network), random_samples(4), output_dir=tmp_path, n_trials=3)
    assert len(found.trials) == 3
    assert np.isfinite([trial.score or np.nan for trial in found.trials]).all()


def test_search_names_the_nearest_spelling_of_unknown_arguments(network: Path) -> None:
    with pytest.raises(RecipeError, match="did you mean 'budget'"):
        quantry.search(network, bugdet="1h")  # type: ignore[call-arg]
    names = {"output": "output_dir", "jobs": "n_jobs", "timeout": "trial_timeout", "trials": "n_trials"}
    for given, meant in names.items():
        with pytest.raises(RecipeError, match=f"did you mean '{meant}'"):
            quantry.search(network, **{given: 1})  # type: ignore[arg-type]


def test_finished_trials_are_logged_at_info(
    network: Path, samples: Samples, distance: Distance, space: Space, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = grid(tmp_path, n_trials=2)
    run_search(network, samples, distance, space, options)
    assert not caplog.records
    caplog.set_level("INFO", logger="quantry")
    run_search(network, samples, distance, space, grid(tmp_path, n_trials=3))
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("trial ")]
    assert [line.partition(":")[0] for line in lines] == ["trial 2"]
    assert "3 of 3 trials" in lines[0]


def test_trial_reads_in_one_line(finished: SearchResult) -> None:
    assert repr(finished.trials[0]).startswith("Trial(0, complete, score ")
    assert max(len(repr(trial)) for trial in finished.trials) < 120


def test_images_without_pixel_options_warn_before_any_work(network: Path, tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "images").mkdir()
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 256, (6, 6, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.png")
    options: dict[str, Any] = {"sampler": "grid", "n_trials": 1}
    with pytest.warns(UserWarning, match="used as RGB pixels"):
        found = search(network, tmp_path / "images", output_dir=tmp_path / "warned", **options)
    assert "used as RGB pixels" in found.notes[0]
    listed = (tmp_path / "warned" / "calibration.txt").read_text().splitlines()
    assert [Path(line).name for line in listed] == ["0.png", "2.png"]
    quiet = search(network, tmp_path / "images", output_dir=tmp_path / "quiet", images=ImageOptions(), **options)
    assert not any("pixels" in note for note in quiet.notes)


def test_interrupted_search_logs_the_best_so_far_and_when_it_resumes(
    network: Path, space: Space, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    distance = Distance(network)
    distance.fingerprint = "same"

    class Interrupted(Distance):
        fingerprint = "same"

        def per_sample(self, model_path: Path, indices: Any) -> list[float]:
            if Path(model_path).stem == "iter_2":
                raise KeyboardInterrupt
            return super().per_sample(model_path, indices)

    Interrupted.__qualname__ = "Distance"
    caplog.set_level("INFO", "quantry.autosearch")
    with pytest.raises(KeyboardInterrupt):
        run_search(network, random_samples(4), Interrupted(network), space, grid(tmp_path))
    assert "after 2 trials: interrupted; best so far: trial" in caplog.text
    assert f"{tmp_path / 'best.onnx'}; run it again in the same way to resume" in caplog.text
    caplog.clear()
    run_search(network, random_samples(4), distance, space, grid(tmp_path))
    assert "search resumes after 2 finished trials" in caplog.text


def test_log_without_a_tolerance_mentions_none(finished: SearchResult) -> None:
    log = (finished.output_dir / "auto_search.log").read_text()
    assert "no tolerance was given: all 12 complete trials are accepted" in log
    assert "within tolerance" not in log
    assert "None" not in log.partition("no tolerance was given")[2]


def test_found_recipe_has_its_own_name(finished: SearchResult) -> None:
    assert finished.best is not None
    assert finished.best_recipe is not None
    assert load_recipe(finished.best_recipe).name == f"{finished.best.recipe.name}-found-by-search"
    assert load_recipe(finished.best_recipe) == finished.best.recipe


def test_limits_may_be_none(network: Path, tmp_path: Path) -> None:
    only = {"scale.activation": [MinMax()]}
    limits: dict[str, Any] = {"budget": "1h", "n_trials": None, "patience": None}
    found = search(network, random_samples(4), "l2", only, **limits, output_dir=tmp_path, recipe="XINT8")
    assert len(found.trials) == 1


def test_racing_on_few_samples_is_noted(network: Path, tmp_path: Path) -> None:
    only = Space.of(Recipe(), {"scale.activation": [MinMax()]})
    found = run_search(network, random_samples(2), Distance(network, 40), only, grid(tmp_path, racing=True))
    assert any("from as few as 32 samples" in note for note in found.notes)


def test_evaluator_errors_are_raised_before_an_earlier_search_is_moved(network: Path, tmp_path: Path) -> None:
    only = Space.of(Recipe(), {"scale.activation": [MinMax()]})
    run_search(network, random_samples(2), Distance(network), only, grid(tmp_path))

    class Broken(Distance):
        def prepare(self, float_path: Path) -> None:
            raise DataError("labels are wrong")

    with pytest.raises(DataError):
        run_search(network, random_samples(2), Broken(network), only, grid(tmp_path))
    assert not (tmp_path / "previous-1").exists()
