"""Trials with equal models: detected before the model is written, evaluated once, kept on request."""

import json
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from small_network import Distance, random_samples, write_network

import quantry
from quantry.autosearch import SearchOptions, Space, racing, run_search
from quantry.autosearch.output_directory import copy_model, model_size
from quantry.autosearch.trial_runner import model_content
from quantry.memo import Handle
from quantry.notes import Note
from quantry.numerics.tensor_params import QuantParams
from quantry.recipe import CrossLayer, EmitOptions, MinMax, MinMSE, Percentile, QOperator, Recipe, find_preset

METHODS = [MinMax(), Percentile(100.0), MinMSE()]  # the first two give the same ranges


def grid(directory: Path, **changes: Any) -> SearchOptions:
    return SearchOptions(**{"sampler": "grid", "output_dir": directory, **changes})


def methods(base: Recipe | None = None) -> Space:
    return Space.of(base or Recipe(), {"scale.activation": METHODS})


def gated_network(path: Path) -> Path:
    """Write a network that cross-layer equalization cannot change, because of the Sigmoid between its layers."""
    model = onnx.load(write_network(path))
    model.graph.node[1].op_type = "Sigmoid"
    onnx.save(model, path)
    return path


def test_duplicate_is_neither_written_nor_measured_and_has_all_objectives(
    network: Path, distance: Distance, tmp_path: Path
) -> None:
    objectives = ("accuracy", "latency", "size", "bit_operations")
    found = run_search(network, random_samples(4), distance, methods(), grid(tmp_path, objectives=objectives))
    first, duplicate, other = found.trials
    assert (duplicate.same_as, other.same_as) == (0, None)
    assert "emit" in first.computed
    assert "emit" not in duplicate.computed
    assert duplicate.objectives == first.objectives
    assert set(duplicate.objectives) == set(objectives)
    assert (duplicate.score, duplicate.interval, duplicate.samples, duplicate.drop) == (
        first.score,
        first.interval,
        first.samples,
        first.drop,
    )
    assert distance.seen == 2 * distance.size


def test_equalization_without_effect_gives_duplicates_and_no_second_observation(tmp_path: Path) -> None:
    network = gated_network(tmp_path / "gated.onnx")
    ways = [None, CrossLayer(), CrossLayer(steps=2)]
    space = Space.of(Recipe(), {"scale.activation": [MinMax(), MinMSE()], "equalize.cross_layer": ways})
    found = run_search(network, random_samples(4), Distance(network), space, grid(tmp_path / "out"))
    assert sum("observe" in trial.computed for trial in found.trials) == 1
    assert sum("scale" in trial.computed for trial in found.trials) == 2
    assert sum(trial.same_as is None for trial in found.trials) == 2
    noted = quantry.quantize(network, random_samples(4), found.trials[-1].recipe, store=tmp_path / "out" / "store")
    assert any("cross-layer" in str(note) for note in noted.notes)


@pytest.mark.parametrize("fails", [False, True])
def test_workers_with_equal_models_at_the_same_time_evaluate_one(network: Path, tmp_path: Path, *, fails: bool) -> None:
    book, failed = tmp_path / "evaluated", tmp_path / "failed"

    def evaluator(path: Path) -> float:
        if Path(path) == network:
            return 1.0
        with book.open("a") as file:
            file.write(f"{Path(path).stem}\n")
        time.sleep(0.5)
        if fails:
            with suppress(FileExistsError):
                failed.mkdir()
                raise ValueError("the first evaluation fails")
        return 0.5

    options = grid(tmp_path / "out", n_jobs=2, keep_models="all")
    found = run_search(network, random_samples(4), evaluator, methods(), options)
    alone = [trial for trial in found.trials if trial.same_as is None]
    assert len(book.read_text().split()) == len(alone)
    assert sorted(trial.score or 0.0 for trial in found.trials) == [0.0 if fails else 0.5, 0.5, 0.5]
    assert '"state":"waiting"' not in (tmp_path / "out" / "study.journal").read_text().replace(" ", "")
    if not fails:
        # Whichever of the two was evaluated, the first has its own model.
        assert [trial.same_as for trial in found.trials] == [None, 0, None]
        assert all(trial.model_path is not None for trial in found.trials)


@pytest.mark.parametrize("racing", [False, True])
def test_several_workers_evaluate_no_more_samples_than_one(tmp_path: Path, *, racing: bool) -> None:
    network = gated_network(tmp_path / "gated.onnx")
    ways = [None, CrossLayer(), CrossLayer(steps=2)]
    space = Space.of(Recipe(), {"scale.activation": METHODS, "equalize.cross_layer": ways})

    class Counted(Distance):
        fingerprint = "counted"
        book: Path

        def per_sample(self, model_path: Path, indices: Any) -> list[float]:
            with self.book.open("a") as file:
                file.write(f"{len(indices)}\n")
            return super().per_sample(model_path, indices)

    facts = []
    for jobs in (1, 2, 3):
        evaluator = Counted(network, 64)
        evaluator.book = tmp_path / f"book{jobs}"
        options = grid(tmp_path / str(jobs), racing=racing, n_jobs=jobs, keep_models="all")
        found = run_search(network, random_samples(2), evaluator, space, options)
        seen = sum(map(int, evaluator.book.read_text().split()))
        trials = [(trial.state, trial.score, trial.interval, trial.samples, trial.same_as) for trial in found.trials]
        stages = sum(len(trial.computed.keys() & {"observe", "scale"}) for trial in found.trials)
        models = [trial.model_path.read_bytes() for trial in found.trials if trial.model_path is not None]
        facts.append((seen, trials, stages, models))
    assert facts[1] == facts[0]
    assert facts[2] == facts[0]


@pytest.mark.parametrize("preset", ["XINT8", "S8S8_AAWS", "A8W8"])
@pytest.mark.parametrize("keep", [{"keep_models": "all"}, {"tolerance": 1e9}])
def test_kept_model_of_a_duplicate_equals_that_of_its_recipe(
    network: Path, tmp_path: Path, preset: str, keep: dict[str, Any]
) -> None:
    space, samples = methods(find_preset(preset).recipe), random_samples(4)
    found = run_search(network, samples, Distance(network), space, grid(tmp_path / "out", **keep))
    assert any(trial.same_as is not None for trial in found.trials)
    summary = json.loads((tmp_path / "out" / "search.json").read_text())
    for trial, summarized in zip(found.trials, summary["trials"], strict=True):
        assert trial.model_path == tmp_path / "out" / f"iter_{trial.number}.onnx"
        assert summarized["model"] == trial.model_path.name
        quantry.quantize(network, samples, trial.recipe, store=None).save(tmp_path / "alone.onnx")
        assert trial.model_path.read_bytes() == (tmp_path / "alone.onnx").read_bytes()


def test_duplicate_that_is_not_kept_leaves_no_file(network: Path, distance: Distance, tmp_path: Path) -> None:
    found = run_search(network, random_samples(4), distance, methods(), grid(tmp_path))
    assert found.best is not None
    assert [path.name for path in tmp_path.glob("iter_*")] == [f"iter_{found.best.number}.onnx"]
    assert [trial.model_path is None for trial in found.trials] == [trial is not found.best for trial in found.trials]


def test_resumed_search_with_other_content_digests_repeats_nothing(network: Path, tmp_path: Path) -> None:
    distance = Distance(network)
    options = grid(tmp_path, keep_models="all", n_trials=2)
    first = run_search(network, random_samples(4), distance, methods(), options)
    assert [trial.same_as for trial in first.trials] == [None, 0]
    journal, seen = tmp_path / "study.journal", distance.seen
    content = journal.read_text().split('"content":"')[1][:32]
    journal.write_text(journal.read_text().replace(content, "0" * 32))
    (tmp_path / "iter_1.onnx").unlink()
    more = run_search(network, random_samples(4), distance, methods(), grid(tmp_path, keep_models="all"))
    assert [trial.same_as for trial in more.trials] == [None, 0, None]
    assert [trial.score for trial in more.trials[:2]] == [trial.score for trial in first.trials]
    assert distance.seen - seen == distance.size
    assert (tmp_path / "iter_1.onnx").exists()


@pytest.mark.parametrize("jobs", [1, 2])
def test_race_evaluates_duplicates_in_a_cohort_once(network: Path, tmp_path: Path, jobs: int) -> None:
    evaluator = Distance(network, 40)
    many = [MinMax(), Percentile(100.0), MinMSE()]
    space = Space.of(Recipe(), {"scale.activation": many, "observe.samples": [None, 4]})
    found = run_search(network, random_samples(4), evaluator, space, grid(tmp_path, racing=True, n_jobs=jobs))
    alone = [trial for trial in found.trials if trial.same_as is None]
    assert len(alone) == 2
    if jobs == 1:
        assert evaluator.seen == sum(trial.samples or 0 for trial in alone)
        assert "same model as trial 0" in (tmp_path / "auto_search.log").read_text()


class Breaks(Distance):
    """Fails for the first trial, after the first rung of a race."""

    def per_sample(self, model_path: Path, indices: Any) -> list[float]:
        if Path(model_path).name == "iter_0.onnx" and len(indices) < 32:
            raise ZeroDivisionError("bad sample")
        return super().per_sample(model_path, indices)


@pytest.mark.parametrize("jobs", [1, 2])
def test_duplicate_of_a_model_that_fails_in_a_later_rung_fails_too(network: Path, tmp_path: Path, jobs: int) -> None:
    space = Space.of(Recipe(), {"scale.activation": [MinMax(), Percentile(100.0)]})
    options = grid(tmp_path, racing=True, n_jobs=jobs)
    found = run_search(network, random_samples(4), Breaks(network, 40), space, options)
    assert [trial.state for trial in found.trials] == ["failed", "failed"]
    assert "same model as trial 0, which failed: ZeroDivisionError: bad sample" in str(found.trials[1].error)


def test_duplicate_of_a_failed_model_in_a_later_cohort_is_evaluated(
    network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(racing, "_COHORT", 2)
    space = Space.of(Recipe(), {"scale.activation": [MinMax(), MinMSE(), Percentile(100.0)]})
    options = grid(tmp_path, racing=True, objectives=("accuracy", "size"))
    found = run_search(network, random_samples(4), Breaks(network, 40), space, options)
    assert found.trials[0].state == "failed"
    assert (found.trials[2].same_as, found.trials[2].error) == (None, None)
    assert set(found.trials[2].objectives) == {"accuracy", "size"}


@pytest.mark.parametrize("jobs", [1, 2])
def test_trial_pruned_for_a_model_that_fails_later_races_on(network: Path, tmp_path: Path, jobs: int) -> None:
    space = Space.of(Recipe(), {"scale.activation": [MinMax(), MinMSE(), Percentile(60.0)]})
    evaluator, options = Distance(network, 80), grid(tmp_path / "whole", racing=True, n_jobs=jobs)
    whole = run_search(network, random_samples(4), evaluator, space, options)
    assert [trial.state for trial in whole.trials] == ["complete", "pruned", "pruned"]
    options = replace(options, output_dir=tmp_path / "broken")
    found = run_search(network, random_samples(4), Breaks(network, 80), space, options)
    assert [trial.state for trial in found.trials] == ["failed", "complete", "pruned"]
    assert found.best is not None
    assert (found.best.number, found.best.samples) == (1, 80)


@pytest.mark.parametrize("preset", ["S8S8_AAWS", "XINT8"])
def test_size_does_not_count_the_recipe(network: Path, tmp_path: Path, preset: str) -> None:
    files = [tmp_path / "short.onnx", tmp_path / "long.onnx"]
    result = quantry.quantize(network, random_samples(2), preset, store=None)
    result.save(files[0])
    copy_model(files[0], files[1], {"quantry.recipe": "much " * 500, "author": "me"})
    sizes = [model_size([file]) for file in files]
    proto = onnx.load(files[1])
    assert [entry.key for entry in proto.metadata_props] == ["author", "quantry.recipe"]
    del proto.metadata_props[:]
    assert sizes == [proto.ByteSize()] * 2
    assert files[1].stat().st_size > files[0].stat().st_size


def test_copy_of_a_model_with_external_data_has_its_own_data_file(tmp_path: Path) -> None:
    from quantry.graph.load import read_model
    from quantry.graph.save import write_model

    network = write_network(tmp_path / "net.onnx")
    source, target = tmp_path / "iter_0.onnx", tmp_path / "iter_1.onnx"
    model = onnx.load(network)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4096, np.float32), "unused"))
    onnx.save(model, network)
    write_model(read_model(network), source, external_data_threshold=0)
    copy_model(source, target, {"quantry.recipe": "other"})
    source.with_name("iter_0.onnx.data").unlink()
    assert {entry.key: entry.value for entry in onnx.load(target).metadata_props} == {"quantry.recipe": "other"}


def test_content_depends_on_numbers_and_format_but_not_on_notes(network: Path) -> None:
    stages = quantry.quantize(network, random_samples(1), "S8S8_AAWS", store=None).stages
    params = stages.params.value
    first = model_content(stages, EmitOptions())

    def with_params(changed: QuantParams) -> str:
        handle = Handle.of_value("scale", changed)
        return model_content(replace(stages, params=handle), EmitOptions())

    assert with_params(replace(params, notes=(Note.of("a rule moved a scale"),))) == first
    wider = replace(params.tensors["x"], scale=2 * params.tensors["x"].scale)
    assert with_params(QuantParams({**params.tensors, "x": wider})) != first
    assert model_content(stages, EmitOptions(QOperator())) != first
