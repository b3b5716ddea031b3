"""A stage whose output changes must have another version, or stores would return its old results."""

from dataclasses import replace
from importlib.util import find_spec
from typing import get_args

import pytest
from golden_stages import NEEDS_TORCH, STAGES, TUNE_STEPS, Golden, current, moved, outdated, read_golden

from quantry import pipeline
from quantry.memo import Stage
from quantry.recipe import TuneStep


@pytest.fixture(scope="module")
def now() -> list[Golden]:
    return current()


def test_output_of_a_stage_changes_only_with_its_version(now: list[Golden]) -> None:
    problems = moved(read_golden(), now)
    assert not problems, "\n".join(problems)


def test_golden_file_has_the_current_versions_and_cases(now: list[Golden]) -> None:
    problems = outdated(read_golden(), now)
    assert not problems, "\n".join(problems)


def test_every_stage_has_golden_digests() -> None:
    # What a device computes is not ours: its key has the version of the device's library instead.
    measured = {"target_outputs", "slow_int8_nodes", "speed_over_float"}
    assert {entry.stage for entry in read_golden()} == set(STAGES) - measured
    used = {value.name for value in vars(pipeline).values() if isinstance(value, Stage)}
    assert used <= set(STAGES)


def test_every_stage_that_uses_a_library_has_its_version_in_the_key() -> None:
    """These decide in plain Python, or only pass on what another stage computed."""
    independent = {"plan", "tuned_model", "tuned_params", "target_outputs"}
    assert {name for name, stage in STAGES.items() if stage.environment is None} == independent


def test_every_tuning_algorithm_has_a_golden_digest() -> None:
    algorithms = set(get_args(TuneStep))
    assert {type(step) for step in TUNE_STEPS} == algorithms
    installed = {step for step in algorithms if find_spec("torch") or step not in NEEDS_TORCH}
    cases = {entry.case for entry in read_golden() if entry.stage == "tune"}
    assert cases == {f"rough-{step.__name__}" for step in installed}


def test_golden_tuning_moves_integers(now: list[Golden]) -> None:
    """Otherwise equal digests would prove nothing."""
    digests = [entry.digest for entry in now if entry.stage == "tune"]
    assert len(set(digests)) == len(digests)


def test_changed_output_names_the_stage_and_the_fix() -> None:
    kept = read_golden()
    changed = [replace(kept[0], digest="0" * 64), *kept[1:]]
    (problem,) = moved(kept, changed)
    assert f"the output of stage {kept[0].stage} moved" in problem
    assert "bump its version in @stage(...)" in problem
    assert "regenerate.py" in problem


def test_raised_version_only_needs_new_golden_files() -> None:
    kept = read_golden()
    raised = [replace(entry, version=entry.version + 1, digest="0" * 64) for entry in kept if entry.stage == "scale"]
    now = [entry for entry in kept if entry.stage != "scale"] + raised
    assert not moved(kept, now)
    (problem,) = outdated(kept, now)
    assert "stage scale" in problem
