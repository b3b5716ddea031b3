"""What docs/stability.md calls stable does not change by accident, and nothing of it goes away in silence."""

import pytest

from stable_names import FILE, stable_names


def test_stable_names_are_those_of_the_snapshot() -> None:
    pytest.importorskip("torch")
    recorded, present = FILE.read_text(encoding="utf-8").splitlines(), stable_names()
    gone = sorted(set(recorded) - set(present))
    assert not gone, "docs/stability.md: these stay for one more release, which warns about them"
    assert present == recorded, "new names: python tests/stable_names.py"
