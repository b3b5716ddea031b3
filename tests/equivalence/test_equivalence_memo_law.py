"""The law of the memo: with a store, without one, and in any order of trials, models have the same bytes."""

import json
import os
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trials
import tuned_trial
from equivalence_models import cnn, samples, transformer
from trials import MODELS, RECIPES, TRIALS, Trial, run_trials, shuffled

from quantry import QuantizationResult, quantize
from quantry.data.open_data import calibration_data
from quantry.graph.load import model_source
from quantry.memo import DirectoryStore, Memo, MemoryStore, Trace
from quantry.pipeline import run_evaluate, run_prepare, run_quantize
from quantry.recipe import (
    BiasCorrection,
    CrossLayer,
    EqualizeOptions,
    EvaluateOptions,
    MinMax,
    Percentile,
    Recipe,
    ScaleOptions,
    Selection,
    TuneOptions,
)
from quantry.tune import Tuned, tune

STAGES = ("prepare", "plan", "observe", "scale", "emit")
"""The stages of the default recipe, which has no conversions and no equalization."""
Digests = dict[Trial, str]


@pytest.fixture(scope="module")
def expected() -> Digests:
    """The digests of all trials without a store."""
    return run_trials(list(TRIALS), None)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that holds the results of all trials."""
    path = tmp_path_factory.mktemp("filled")
    run_trials(shuffled(2), DirectoryStore(path))
    return path


@pytest.fixture
def copy_of_filled(filled: Path, tmp_path: Path) -> Path:
    return shutil.copytree(filled, tmp_path / "store")


def test_trials_are_different_models(expected: Digests) -> None:
    """Otherwise equal bytes would prove nothing. Only the CNN has a BatchNormalization to keep."""
    same = {("transformer", "batch-norm-kept"): ("transformer", "U8S8_AAWS")}
    others = [trial for trial in TRIALS if trial not in same]
    assert len({expected[trial] for trial in others}) == len(others)
    for trial, other in same.items():
        # The recipe is written into the model, so even these two differ in a few bytes.
        assert expected[trial] != expected[other]


@pytest.mark.parametrize(("kind", "seed"), [("memory", 0), ("memory", 1), ("directory", 2)])
def test_no_byte_depends_on_the_store_or_on_the_order_of_trials(
    kind: str, seed: int, tmp_path: Path, expected: Digests
) -> None:
    store = MemoryStore() if kind == "memory" else DirectoryStore(tmp_path)
    assert run_trials(shuffled(seed), store) == expected


def test_second_round_of_trials_only_writes_graphs_with_the_same_bytes(filled: Path, expected: Digests) -> None:
    for name, recipe in shuffled(3):
        model = MODELS[name]()
        result = quantize(model, samples(model), RECIPES[recipe], store=DirectoryStore(filled))
        assert {entry.stage for entry in result.trace.entries if entry.outcome == "computed"} == {"emit"}
    assert run_trials(shuffled(4), DirectoryStore(filled)) == expected


def test_store_that_evicts_almost_everything_changes_no_byte(expected: Digests) -> None:
    assert run_trials(shuffled(5), MemoryStore(limit_bytes=20_000)) == expected


def test_threads_that_share_a_store_change_no_byte(expected: Digests) -> None:
    store = MemoryStore()
    order = shuffled(6)
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda trial: run_trials([trial], store), order))
    assert {trial: digest for part in parts for trial, digest in part.items()} == expected


def test_processes_with_other_hash_seeds_share_a_store_and_change_no_byte(tmp_path: Path, expected: Digests) -> None:
    programs = [
        subprocess.Popen(
            [sys.executable, trials.__file__, str(tmp_path / "store"), seed],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        for seed in ("7", "8")
    ]
    for program in programs:
        output, _ = program.communicate(timeout=120)
        assert program.returncode == 0
        assert {(model, recipe): digest for model, recipe, digest in json.loads(output)} == expected


def test_machines_with_and_without_kernels_share_a_store_and_change_no_byte(tmp_path: Path) -> None:
    """AdaRound computes other bytes with compiled kernels than with NumPy, so each has its own key."""
    store = tmp_path / "store"
    for lost in (False, True):
        if lost:
            shutil.rmtree(store / "blobs")
        for kernels in ("on", "off"):
            program = subprocess.run(
                # A recomputed result that differs is a warning; here it would be an error.
                [sys.executable, "-W", "error::UserWarning", tuned_trial.__file__, str(store)],
                env={**os.environ, "QUANTRY_NATIVE": kernels},
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
            assert program.returncode == 0, program.stderr
            alone, shared = program.stdout.split()
            assert shared == alone


def test_recomputed_result_that_differs_replaces_the_old_one_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A difference that no key covers, such as another BLAS library, must not stop the user."""
    monkeypatch.setattr(tune, "environment", None)
    store, recipe = tmp_path / "store", replace(Recipe(), tune=TuneOptions((BiasCorrection(),)))

    def run() -> QuantizationResult:
        return quantize(cnn(), samples(cnn()), recipe, store=DirectoryStore(store))

    first = run().to_bytes()
    shutil.rmtree(store / "blobs")
    plain = tune.function
    monkeypatch.setattr(tune, "function", lambda *arguments: _shifted(plain(*arguments)))
    with pytest.warns(UserWarning, match="stage 'tune' must return the same result"):
        second = run()
    assert second.to_bytes() != first
    evaluation = second.evaluation
    # Everything is known under the new digests now, and model and evaluation belong together.
    third = run()
    assert third.to_bytes() == second.to_bytes()
    assert third.trace.computed("tune") == 0
    assert third.evaluation.metrics["sqnr"].value == evaluation.metrics["sqnr"].value
    assert third.trace.reused("evaluate") == 1


def _shifted(tuned: Tuned) -> Tuned:
    return replace(tuned, weights={name: array + np.float32(0.5) for name, array in tuned.weights.items()})


def test_notes_do_not_depend_on_the_store_or_on_the_order_of_trials(tmp_path: Path) -> None:
    """Trials that share the results of stages, because only their notes differ, keep their own notes."""
    recipes = [
        replace(Recipe(), equalize=equalize, tune=tune_options)
        for equalize in (EqualizeOptions(), EqualizeOptions(CrossLayer()), EqualizeOptions(CrossLayer(steps=2)))
        for tune_options in (TuneOptions(), TuneOptions((BiasCorrection(),)))
    ]
    alone = [quantize(transformer(), samples(transformer()), recipe, store=None).notes for recipe in recipes]
    assert len(set(alone)) > 2
    for order in (recipes, recipes[::-1]):
        # A new store object for each call, so that nothing comes from memory.
        found = {
            recipe: quantize(transformer(), samples(transformer()), recipe, store=DirectoryStore(tmp_path)).notes
            for recipe in order
        }
        assert [found[recipe] for recipe in recipes] == alone


@pytest.mark.parametrize("seed", [0, 1])
def test_damage_to_the_store_changes_no_byte(seed: int, copy_of_filled: Path, expected: Digests) -> None:
    _damage(copy_of_filled, random.Random(seed))
    assert run_trials(shuffled(seed), DirectoryStore(copy_of_filled)) == expected


def _damage(store: Path, rng: random.Random) -> None:
    for file in sorted(path for path in store.rglob("*") if path.is_file()):
        content = file.read_bytes()
        kind = rng.choice(["keep", "keep", "delete", "truncate", "flip", "empty"])
        if kind == "delete":
            file.unlink()
        elif kind == "truncate":
            file.write_bytes(content[: len(content) // 2])
        elif kind == "empty":
            file.write_bytes(b"")
        elif kind == "flip" and content:
            position = rng.randrange(len(content))
            file.write_bytes(content[:position] + bytes([content[position] ^ 0x41]) + content[position + 1 :])


def test_index_without_any_blob_changes_no_byte(copy_of_filled: Path, expected: Digests) -> None:
    shutil.rmtree(copy_of_filled / "blobs")
    assert run_trials(shuffled(9), DirectoryStore(copy_of_filled)) == expected


@pytest.mark.parametrize("name", MODELS)
def test_no_stage_changes_its_inputs_and_every_value_survives_the_store(name: str) -> None:
    model = MODELS[name]()
    store = MemoryStore()
    for _ in range(2):
        # The second round reads every input back from the store and compares its digest.
        memo = Memo(store, Trace(), verify_inputs=True)
        for recipe in (RECIPES["XINT8"], RECIPES["CPU_INT8"], RECIPES["entropy"]):
            prepared = run_prepare(model_source(model), recipe, memo)
            data = calibration_data(samples(model), prepared.value.inputs)
            stages = run_quantize(prepared, data, recipe, memo)
            run_evaluate(stages, data, recipe, memo)


def outcomes(recipe: Recipe, store: MemoryStore) -> dict[str, str]:
    model = MODELS["cnn"]()
    trace = quantize(model, samples(model), recipe, store=store).trace
    assert len(trace.entries) == len(STAGES)
    return {entry.stage: entry.outcome for entry in trace.entries}


def only(*computed: str) -> dict[str, str]:
    # Quantized models are never stored.
    return {stage: "computed" if stage in (*computed, "emit") else "reused" for stage in STAGES}


def test_first_run_computes_every_stage_once() -> None:
    assert outcomes(Recipe(), MemoryStore()) == only(*STAGES)


def test_same_recipe_again_only_writes_the_graph() -> None:
    store = MemoryStore()
    outcomes(Recipe(), store)
    assert outcomes(Recipe(), store) == only()


def test_name_of_a_recipe_is_not_part_of_keys() -> None:
    store = MemoryStore()
    outcomes(Recipe(name="one"), store)
    assert outcomes(Recipe(name="two"), store) == only()


@pytest.mark.parametrize("method", [Percentile(99.9), MinMax(moving_average=0.5)])
def test_another_method_computes_only_scale_and_emit(method: Percentile | MinMax) -> None:
    store = MemoryStore()
    outcomes(Recipe(), store)
    assert outcomes(Recipe(scale=ScaleOptions(activation=method)), store) == only("scale", "emit")


def test_exclusion_reuses_the_observation() -> None:
    store = MemoryStore()
    outcomes(Recipe(), store)
    base = Recipe()
    changed = replace(base, plan=replace(base.plan, selection=Selection(exclude=("head",))))
    assert outcomes(changed, store) == only("plan", "scale", "emit")


def test_evaluation_options_compute_nothing_before_evaluation() -> None:
    store = MemoryStore()
    outcomes(Recipe(), store)
    assert outcomes(Recipe(evaluate=EvaluateOptions(metrics=("l1",))), store) == only()


def test_fewer_samples_observe_again() -> None:
    store = MemoryStore()
    outcomes(Recipe(), store)
    base = Recipe()
    changed = outcomes(replace(base, observe=replace(base.observe, samples=2)), store)
    assert changed["prepare"] == changed["plan"] == "reused"
    assert changed["observe"] == "computed"


def test_evaluation_is_added_to_the_trace_once() -> None:
    store = MemoryStore()
    model = MODELS["transformer"]()
    first = quantize(model, samples(model), Recipe(), store=store)
    score = first.evaluation.metrics["sqnr"].value
    assert score == first.evaluation.metrics["sqnr"].value
    assert first.trace.computed("evaluate") == 1
    second = quantize(model, samples(model), Recipe(), store=store)
    assert second.evaluation.metrics["sqnr"].value == score
    assert second.trace.reused("evaluate") == 1
    assert second.trace.computed("observe") == 0
