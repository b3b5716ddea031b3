"""A stage whose output moves must have another version, or stores would hand out what it used to return."""

from dataclasses import replace

import pytest
from golden_stages import STAGES, Golden, current, moved, outdated, read_golden

from quantry import pipeline
from quantry.memo import Stage


@pytest.fixture(scope="module")
def now() -> list[Golden]:
    return current()


def test_output_of_a_stage_moves_only_with_its_version(now: list[Golden]) -> None:
    problems = moved(read_golden(), now)
    assert not problems, "\n".join(problems)


def test_golden_file_has_the_versions_and_cases_of_today(now: list[Golden]) -> None:
    problems = outdated(read_golden(), now)
    assert not problems, "\n".join(problems)


def test_every_stage_of_the_pipeline_is_watched() -> None:
    used = {value.name for value in vars(pipeline).values() if isinstance(value, Stage)}
    assert used == set(STAGES) == {entry.stage for entry in read_golden()}


def test_moved_output_names_the_stage_and_the_remedy() -> None:
    kept = read_golden()
    changed = [replace(kept[0], digest="0" * 64), *kept[1:]]
    (problem,) = moved(kept, changed)
    assert f"the output of stage {kept[0].stage} moved" in problem
    assert "bump its version in @stage(...)" in problem
    assert "regenerate.py" in problem


def test_raised_version_asks_for_new_golden_files_only() -> None:
    kept = read_golden()
    raised = [replace(entry, version=entry.version + 1, digest="0" * 64) for entry in kept if entry.stage == "scale"]
    now = [entry for entry in kept if entry.stage != "scale"] + raised
    assert not moved(kept, now)
    (problem,) = outdated(kept, now)
    assert "stage scale" in problem
