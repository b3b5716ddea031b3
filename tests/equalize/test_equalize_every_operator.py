"""Every operator between two layers: all equalizations keep the function, and change what they changed before."""

import pytest
from operators_between_layers import CASES, FILE, changed_by


@pytest.mark.parametrize("name", CASES)
def test_function_stays_and_the_same_equalizations_change_the_model(name: str) -> None:
    lines = dict(line.split(": ") for line in FILE.read_text(encoding="utf-8").splitlines())
    assert " ".join(changed_by(name)) == lines[name], "if that is right, write the file again"


def test_file_has_all_cases() -> None:
    lines = FILE.read_text(encoding="utf-8").splitlines()
    assert [line.split(": ")[0] for line in lines] == list(CASES)
