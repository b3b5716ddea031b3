"""What every reader of Q/DQ pairs returns, so that a change of one reader is seen."""

from golden_pairs import current, read_pairs


def test_readers_of_pairs_return_the_reviewed_digests() -> None:
    expected, now = read_pairs(), dict(current())
    assert set(now) == set(expected)
    moved = [name for name, digest in now.items() if digest != expected[name]]
    assert not moved, "readers moved; if that is meant, run `python tests/golden/regenerate.py`"
