"""Nothing that docs/stability.md calls stable goes away in silence."""

import pytest

from stable_names import FILE, stable_names


def test_everything_in_the_snapshot_is_still_there() -> None:
    pytest.importorskip("torch")
    recorded = FILE.read_text(encoding="utf-8").splitlines()
    assert len(recorded) > 400
    gone = sorted(set(recorded) - set(stable_names()))
    assert not gone, "docs/stability.md: these stay for one more release, which warns about them"
