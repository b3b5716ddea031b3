"""The leaders of a search are scored on the target, and the best there wins."""

import re
import time
from pathlib import Path
from typing import Any

import pytest

import quantry
from quantry.autosearch import SearchResult
from quantry.testing.small_model import small_model, small_samples

# A device that computes 16-bit activations badly, as some do.
BACKEND = """
import numpy as np
from quantry.runtime.sessions import deployment_session, run_session
from quantry.targets import Backend, Runner, Target

class Noisy(Runner):
    def __init__(self, model):
        self.session = deployment_session(model)
        self.wide = b"uint16" in bytes(model.read_bytes())

    def run(self, feeds):
        outputs = run_session(self.session, feeds)
        return {name: array + self.wide * array.std() for name, array in outputs.items()}

class Device(Backend):
    name, product, licence, install, device = "noisy", "a noisy device", "none", "", "device"

    def version(self):
        return "1"

    def open(self, model, threads=None):
        return Noisy(model)

    def placement(self, model, feeds):
        return ()

TARGET = Target("noisy", "16 bits are noisy", ("CPU_INT8", "RECOMMENDED-HTP-16"), backend=Device())
"""


def searched(folder: Path, target: str, samples: int = 4, **more: Any) -> SearchResult:
    options = {"metric": "sqnr", "evaluation_data": small_samples(samples, seed=2), "n_trials": 2, **more}
    return quantry.search(
        small_model().SerializeToString(), small_samples(4), target=target, output_dir=folder / "found", **options
    )


def test_best_on_the_target_wins_over_the_best_in_simulation(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(BACKEND)
    found = searched(tmp_path, str(tmp_path / "noisy.py"))
    assert found.best is not None
    simulated = max(found.trials, key=lambda trial: trial.score or 0.0)
    assert simulated.recipe.name == "RECOMMENDED-HTP-16"
    assert found.best.recipe.name == "CPU_INT8"
    assert any(f"trial {found.best.number} is best on" in note for note in found.notes)
    assert "dtype: uint8" in (tmp_path / "found" / "recipe.yaml").read_text()
    # The model on disk is the winner's.
    expected = quantry.quantize(
        small_model().SerializeToString(), small_samples(4), tmp_path / "found" / "recipe.yaml", store=None
    )
    assert (tmp_path / "found" / "best.onnx").stat().st_size == pytest.approx(len(expected.to_bytes()), rel=0.05)


@pytest.mark.parametrize("limit", [{}, {"budget": 30}])
def test_trial_that_does_not_run_on_the_target_never_wins(tmp_path: Path, limit: dict[str, int]) -> None:
    refused = BACKEND.replace(
        "        self.session",
        "        if b'uint16' in model.read_bytes():\n            raise ModelError('no')\n        self.session",
        1,
    )
    (tmp_path / "noisy.py").write_text(f"from quantry.errors import ModelError\n{refused}")
    found = searched(tmp_path, str(tmp_path / "noisy.py"), **limit)
    assert found.best is not None
    assert found.best.recipe.name == "CPU_INT8"
    assert any("does not run" in note for note in found.notes)


def test_search_says_that_no_trial_runs_on_the_target(tmp_path: Path) -> None:
    refused = BACKEND.replace("        self.session", "        raise ModelError('no')\n        self.session", 1)
    (tmp_path / "noisy.py").write_text(f"from quantry.errors import ModelError\n{refused}")
    found = searched(tmp_path, str(tmp_path / "noisy.py"))
    assert found.best is not None
    assert any(f"runs there, so trial {found.best.number} stays the best" in note for note in found.notes)


def test_target_with_rules_only_is_not_run(tmp_path: Path) -> None:
    found = searched(tmp_path, "stm32n6")
    assert not any(note.startswith("on stm32n6") for note in found.notes)


def test_time_on_the_target_is_part_of_the_budget(tmp_path: Path) -> None:
    slow = BACKEND.replace("outputs = run_session", "time.sleep(0.5)\n        outputs = run_session")
    (tmp_path / "noisy.py").write_text(f"import time\n{slow}")
    started = time.monotonic()
    # All 40 samples of two trials would take 40 s.
    found = searched(tmp_path, str(tmp_path / "noisy.py"), 40, budget=16)
    assert time.monotonic() - started < 16 * 1.3
    said = next(note for note in found.notes if "trial(s) run on" in note)
    samples = int(re.findall(r"on (\d+) sample", said)[0])
    assert 1 <= samples < 40
    assert any(f"on the same {samples} samples" in note for note in found.notes)
