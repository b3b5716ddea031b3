"""Worker processes: equal results, deaths, hangs, and searches that are killed at random moments."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from killed_search import Witness, killed_options
from small_network import Distance, VisibleDevice, random_samples, small_space

from quantry.autosearch import SearchOptions, Space, run_search, workers
from quantry.autosearch.output import ProgressLog
from quantry.autosearch.trial import Trial
from quantry.autosearch.trial_runner import _one_thread_of_training
from quantry.autosearch.workers import device_of
from quantry.recipe import AdaRound, MinMax, Percentile, Recipe, TuneOptions, from_plain
from quantry.runtime import devices as devices_module

HERE = Path(__file__).parent
GPU = ("cuda:7",)


def options(directory: Path, **changes: Any) -> SearchOptions:
    return SearchOptions(**{"sampler": "grid", "output_dir": directory, **changes})


@pytest.mark.parametrize(("racing", "forks"), [(False, True), (True, True), (False, False)])
def test_two_workers_find_the_same_as_one(
    network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, racing: bool, forks: bool
) -> None:
    if not forks:  # as on Windows and macOS
        monkeypatch.setattr(workers, "forks_safely", lambda: False)
    evaluator = Distance(network, 64)
    one, two = (
        run_search(
            network,
            random_samples(2),
            evaluator,
            small_space(),
            options(tmp_path / str(jobs), sampler="tpe", n_jobs=jobs, racing=racing),
        )
        for jobs in (1, 2)
    )
    facts = [
        [(trial.recipe, trial.state, trial.score, trial.interval, trial.samples, trial.same_as) for trial in run.trials]
        for run in (one, two)
    ]
    assert facts[0] == facts[1]
    assert one.best_model is not None
    assert two.best_model is not None
    assert one.best_model.read_bytes() == two.best_model.read_bytes()


def test_workers_compute_a_shared_stage_once(network: Path, distance: Distance, tmp_path: Path) -> None:
    found = run_search(network, random_samples(2), distance, small_space(), options(tmp_path, n_jobs=2))
    assert sum("observe" in trial.computed for trial in found.trials) == 2


def test_workers_do_not_run_trials_with_the_same_ranges_together(network: Path, tmp_path: Path) -> None:
    book = tmp_path / "times"

    def evaluator(path: Path) -> float:
        begun = time.monotonic()
        time.sleep(0.3)
        with book.open("a") as file:
            file.write(f"{Path(path).stem} {begun} {time.monotonic()}\n")
        return 0.0

    methods = [Percentile(value) for value in (90.0, 92.0, 94.0, 96.0, 98.0, 99.0)]
    space = Space.of(Recipe(), {"scale.activation": methods, "scale.weight": [MinMax(), Percentile(80.0)]})
    found = run_search(network, random_samples(2), evaluator, space, options(tmp_path / "out", n_jobs=2))
    assert all(trial.same_as is None for trial in found.trials)
    times = {name: (float(begun), float(ended)) for name, begun, ended in map(str.split, book.read_text().splitlines())}
    chosen = [(trial.recipe.scale.activation, f"iter_{trial.number}") for trial in found.trials]
    pairs = [[name for method, name in chosen if method == one] for one in methods]
    together = [pair for pair in pairs if max(times[n][0] for n in pair) < min(times[n][1] for n in pair)]
    # The first trials share the float pass with all others, and the last ones have no alternative.
    assert len(together) <= len(pairs) / 2


def test_worker_has_one_thread_and_does_not_spin(network: Path, tmp_path: Path) -> None:
    def evaluator(path: Path) -> float:
        import onnxruntime

        given = onnxruntime.InferenceSession(path).get_session_options()
        assert given.get_session_config_entry("session.intra_op.allow_spinning") == "0"
        return float(given.intra_op_num_threads)

    found = run_search(network, random_samples(2), evaluator, small_space(), options(tmp_path, n_jobs=2, n_trials=2))
    assert [trial.score for trial in found.trials] == [1.0, 1.0]


def test_evaluator_prepares_once_for_all_workers(network: Path, tmp_path: Path) -> None:
    class Prepared:
        ready_in = 0

        def prepare(self, float_path: Path) -> None:
            assert float_path == network
            self.ready_in = os.getpid()

        def __call__(self, _: Path) -> float:
            return float(self.ready_in)

    found = run_search(network, random_samples(2), Prepared(), small_space(), options(tmp_path, n_jobs=2, n_trials=2))
    assert [trial.score for trial in found.trials] == [os.getpid()] * 2


def test_worker_that_dies_while_idle_is_replaced(
    network: Path, distance: Distance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_trial(_: ProgressLog, __: Any, trial: Trial) -> None:
        for child in multiprocessing.active_children() if trial.number == 1 else ():
            child.kill()
            child.join()

    monkeypatch.setattr(ProgressLog, "on_trial", on_trial)
    found = run_search(network, random_samples(2), distance, small_space(), options(tmp_path, threads=1, n_trials=3))
    assert [trial.state for trial in found.trials] == ["complete"] * 3


def test_hanging_trial_is_stopped_and_the_search_continues(network: Path, distance: Distance, tmp_path: Path) -> None:
    def evaluator(path: Path) -> float:
        if Path(path).name == "iter_1.onnx":
            time.sleep(60)
        return -distance(path)

    found = run_search(
        network, random_samples(2), evaluator, small_space(), options(tmp_path, trial_timeout=3, n_trials=3)
    )
    assert [trial.state for trial in found.trials] == ["complete", "failed", "complete"]
    assert found.trials[1].error == "stopped after the timeout of 3 s"


def test_trial_that_kills_its_worker_is_retried_once_and_recorded(
    network: Path, distance: Distance, tmp_path: Path
) -> None:
    book = tmp_path / "deaths"

    def evaluator(path: Path) -> float:
        if Path(path).name == "iter_1.onnx":
            with book.open("a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)
        return -distance(path)

    found = run_search(network, random_samples(2), evaluator, small_space(), options(tmp_path, n_jobs=2, n_trials=3))
    assert [trial.state for trial in found.trials] == ["complete", "failed", "complete"]
    assert found.trials[1].error == "its process died with exit code -9, 2 times"
    assert book.read_text() == "xx"


def finished(output: Path) -> set[str]:
    """Return the models of trials whose result is in the journal."""
    numbers: dict[int, int] = {}
    done: set[int] = set()
    journal = output / "study.journal"
    entries = 0
    for line in journal.read_text().splitlines() if journal.exists() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if record["op_code"] == 4:  # a new trial
            attributes = record.get("user_attrs") or {}
            if "number" in attributes:
                numbers[entries] = attributes["number"]
            entries += 1
        attribute = record.get("user_attr") or {}
        if "number" in attribute:
            numbers[record["trial_id"]] = attribute["number"]
        if "result" in attribute:
            done.add(record["trial_id"])
    return {f"iter_{numbers[entry]}.onnx" for entry in done}


def evaluated(output: Path) -> list[str]:
    book = output.with_suffix(".book")
    return [line.split()[0] for line in book.read_text().splitlines()] if book.exists() else []


@pytest.mark.parametrize("jobs", [1, 2])
def test_search_killed_at_random_moments_repeats_no_finished_trial(network: Path, tmp_path: Path, jobs: int) -> None:
    output = tmp_path / "search"
    command = [sys.executable, str(HERE / "killed_search.py"), str(network), str(output), str(jobs)]
    moments = random.Random(jobs)
    for kill in (True,) * jobs + (False,):
        known, before = finished(output), len(evaluated(output))
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if kill:
            # Counted from the first trial of this run, because starting Python takes long.
            while process.poll() is None and len(evaluated(output)) == before:
                time.sleep(0.005)
            time.sleep(moments.uniform(0, 0.2))
            process.send_signal(signal.SIGKILL)
        printed, _ = process.communicate(timeout=200)
        time.sleep(0.7)  # workers notice that their parent is gone
        assert process.returncode in (0, -signal.SIGKILL), printed
        assert not set(evaluated(output)[before:]) & known
    whole = run_search(
        network, random_samples(2), Witness(network, tmp_path / "book"), small_space(), killed_options(tmp_path, 1)
    )
    summary = json.loads((output / "search.json").read_text())
    assert summary["stopped_by"] == "reached the limit of 9 trials"
    assert summary["stop"] == "trials"
    assert [trial["score"] for trial in summary["trials"]] == [trial.score for trial in whole.trials]
    assert [from_plain(trial["recipe"]) for trial in summary["trials"]] == [trial.recipe for trial in whole.trials]


@contextmanager
def missing_devices(*devices: str) -> Iterator[None]:
    """Expect one warning for each device that this machine does not have."""
    import torch

    missing = [device for device in devices if int(device.partition(":")[2]) >= torch.cuda.device_count()]
    devices_module._warn_of_missing.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert [str(entry.message).split("'")[1] for entry in caught] == missing


def test_devices_that_do_not_exist_fall_back_to_the_cpu_with_one_warning(
    network: Path, distance: Distance, tmp_path: Path
) -> None:
    steps = [
        (AdaRound(iterations=count, device=device, inference_device=device),) for count in (5, 6) for device in GPU
    ]
    space = Space.of(Recipe(), {"tune.steps": steps})
    for jobs in (1, 2):
        options = SearchOptions("grid", n_jobs=jobs, devices=GPU, output_dir=tmp_path / str(jobs))
        with missing_devices(*GPU):
            found = run_search(network, random_samples(4), lambda path: -distance(path), space, options)
        assert [trial.state for trial in found.trials] == ["complete"] * 2


def test_workers_get_devices_in_turn_and_are_spawned(network: Path, tmp_path: Path) -> None:
    options = SearchOptions("grid", n_jobs=2, devices=("cuda:3", "cuda:1"), output_dir=tmp_path, n_trials=4)
    data = iter(random_samples(4))  # such as a reader, whose samples can be read once
    with missing_devices("cuda:3", "cuda:1"):
        found = run_search(network, data, VisibleDevice(), small_space(), options)
    assert [trial.error for trial in found.trials] == [None] * 4
    assert {trial.score for trial in found.trials} <= {3.0, 1.0}


@pytest.mark.parametrize(
    ("devices", "index", "expected"),
    [
        ((), 5, None),
        (("cuda:0", "cuda:1"), 0, "cuda:0"),
        (("cuda:0", "cuda:1"), 3, "cuda:1"),
        (("cuda:2",), 1, "cuda:2"),
    ],
)
def test_device_of_a_worker(devices: tuple[str, ...], index: int, expected: str | None) -> None:
    assert device_of(devices, index) == expected


def test_training_has_one_thread_for_any_number_of_workers() -> None:
    import torch

    trained, before = Recipe(tune=TuneOptions((AdaRound(),))), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with _one_thread_of_training(trained):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
