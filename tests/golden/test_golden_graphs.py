"""Graphs and scales of tiny models as text, so that changes are visible in review."""

import math

import pytest
from golden_graphs import PRESETS, golden_file, graph_text
from golden_models import MODELS


def same(ours: str, theirs: str) -> bool:
    """Whether two words are equal; scales may differ in their last digits, as processors do."""
    if ours == theirs:
        return True
    try:
        return math.isclose(float(ours.strip(",")), float(theirs.strip(",")), rel_tol=1e-5)
    except ValueError:
        return False


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("model", MODELS)
def test_graph_and_scales_equal_the_reviewed_text(model: str, preset: str) -> None:
    kept = golden_file(model, preset).read_text(encoding="utf-8").splitlines()
    now = graph_text(model, preset).splitlines()
    advice = "the graph moved; if that is meant, run `python tests/golden/regenerate.py` and review the text"
    assert len(now) == len(kept), advice
    for line, expected in zip(now, kept, strict=True):
        words, wanted = line.split(), expected.split()
        assert len(words) == len(wanted), f"{advice}: {line!r} was {expected!r}"
        assert all(map(same, words, wanted)), f"{advice}: {line!r} was {expected!r}"
