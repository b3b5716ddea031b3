"""A process that is killed during tuning resumes; weights that cannot be tuned are skipped with a reason."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tune_models import chain, inputs, task_of

from quantry.memo import DirectoryStore, Memo
from quantry.recipe import AdaQuant, AdaRound, DataType, Distill, PerBlock, PerTensor, TensorSpec
from quantry.tune import adaround_and_adaquant, tune

KILLED = """
import os, signal, sys
sys.path.insert(0, "tests/tune")
from tune_models import chain, inputs, task_of
from quantry.memo import DirectoryStore, Memo
from quantry.recipe import AdaRound
from quantry.tune import adaround_and_adaquant, tune

original = adaround_and_adaquant.train_layer


def dying(visit, step):
    if visit.layer.weight == "wc":
        os.kill(os.getpid(), signal.SIGKILL)
    return original(visit, step)


adaround_and_adaquant.train_layer = dying
task = task_of(chain(), inputs((3, 8, 8), 4))
arguments = (task.reference, task.model, task.plan, task.params, task.data, AdaRound(iterations=30))
Memo(DirectoryStore(sys.argv[1])).run(tune, *arguments)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="processes are not killed by signals here")
def test_killed_run_resumes_after_the_last_finished_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    task = task_of(chain(), inputs((3, 8, 8), 4))
    arguments = (task.reference, task.model, task.plan, task.params, task.data, AdaRound(iterations=30))
    visited: list[str] = []
    original = adaround_and_adaquant.train_layer

    def counted(visit, step):  # type: ignore[no-untyped-def]
        visited.append(visit.layer.weight)
        return original(visit, step)

    monkeypatch.setattr(adaround_and_adaquant, "train_layer", counted)
    resumed = Memo(DirectoryStore(tmp_path)).run(tune, *arguments).value
    assert visited == ["wc"]
    assert resumed.to_blob() == tune(*arguments).to_blob()


def test_interrupted_distillation_resumes_in_the_middle_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph_training = pytest.importorskip("quantry.tune.graph_training")
    task = task_of(chain(), inputs((3, 8, 8), 4))
    arguments = (task.reference, task.model, task.plan, task.params, task.data, Distill(iterations=20, evaluations=10))
    original, evaluated = graph_training.evaluate, []

    def counted(*given):  # type: ignore[no-untyped-def]
        evaluated.append(given)
        if len(evaluated) == 7:
            raise KeyboardInterrupt
        return original(*given)

    monkeypatch.setattr(graph_training, "evaluate", counted)
    with pytest.raises(KeyboardInterrupt):
        Memo(DirectoryStore(tmp_path)).run(tune, *arguments)
    # At the start, then after 2, 4, .. 12 iterations: two of four parts are stored.
    resumed = Memo(DirectoryStore(tmp_path)).run(tune, *arguments).value
    assert len(evaluated) == 7 + 1 + 5
    assert resumed.to_blob() == tune(*arguments).to_blob()


@pytest.mark.parametrize("dtype", [DataType.BFLOAT16, DataType.BFP16, DataType.MX9], ids=lambda dtype: dtype.value)
def test_weights_without_an_integer_type_are_skipped_with_the_reason(dtype: DataType) -> None:
    task = task_of(chain(), inputs((3, 8, 8), 2))
    spec = TensorSpec(dtype, granularity=PerBlock() if dtype.is_block else PerTensor())
    weights = {name: replace(weight, spec=spec) for name, weight in task.plan.weights.items()}
    plan = replace(task.plan, weights=weights)
    tuned = tune(task.reference, task.model, plan, task.params, task.data, AdaQuant(iterations=5))
    assert not tuned.weights
    assert any(f"has the type {dtype.value}, which is not an integer type" in str(note) for note in tuned.notes)
