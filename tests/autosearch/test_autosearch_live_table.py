"""What people see of a running search: the table, its header, and lines without a terminal."""

import io
import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from small_network import Distance, random_samples, small_space

from quantry.autosearch import SearchOptions, Space, run_search
from quantry.autosearch.differences import assignment_text, difference_text
from quantry.autosearch.live_table import LiveTable
from quantry.recipe import AdaRound, CrossLayer, EqualizeOptions, MinMax, MinMSE, Percentile, Recipe, SmoothQuant


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal_shows_the_best_differences_and_errors(
    network: Path, distance: Distance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sometimes(path: Path) -> float:
        if Path(path).name == "iter_2.onnx":
            raise OSError("the labels are gone")
        return -distance(path)

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "180")
    monkeypatch.setenv("TERM", "xterm")
    options = SearchOptions("grid", n_trials=4, tolerance=1e9, budget=1000, output_dir=tmp_path)
    run_search(network, random_samples(4), sometimes, small_space(), options)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    assert "the labels are gone" in shown
    assert "what differs from the best before it" in shown
    assert "best: trial" in shown
    assert "float: " in shown
    assert "tolerance: 1e+09" in shown
    assert "of the budget left" in shown
    assert "4 of 4 trials" in shown
    assert "1 failed" in shown
    assert not re.search(r"[0-9a-f]{16}", shown), "no hashes"
    assert "percentile=99.0, symmetric=True" not in shown, "no dataclass reprs"


def test_lines_without_a_terminal_name_differences_and_errors(
    network: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def bad(path: Path) -> float:
        return 1.0 if Path(path) == network else float("inf")

    with caplog.at_level(logging.INFO, "quantry.autosearch"):
        run_search(network, random_samples(4), bad, small_space(), SearchOptions(n_trials=2, output_dir=tmp_path))
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("trial ")]
    assert len(lines) == 2
    assert all(
        "failed: RecipeError: an evaluator must return a number that is finite, got inf" in line for line in lines
    )


def test_differences_are_short() -> None:
    best = {"scale.activation": MinMSE(), "equalize.cross_layer": None, "scale.reduce_range": False}
    assert difference_text({**best, "scale.activation": MinMax()}, best) == "activation MinMax"
    assert difference_text({**best, "equalize.cross_layer": CrossLayer()}, best) == "cross_layer CrossLayer"
    assert difference_text({**best, "equalize": EqualizeOptions()}, best) == "equalize none"
    both = EqualizeOptions(CrossLayer(), smooth=SmoothQuant())
    assert difference_text({**best, "equalize": both}, best) == "equalize CrossLayer and SmoothQuant"
    assert difference_text(best, best) == "the same"
    assert assignment_text({"recipe": "XINT8", "tune.steps": (AdaRound(iterations=5),)}).startswith("XINT8, steps Ada")


def test_notebook_shows_a_table_that_is_updated(
    network: Path, distance: Distance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = LiveTable()
    pages: list[str] = []

    class Handle:
        def update(self, page: Any) -> None:
            pages.append(page)

    monkeypatch.setitem(sys.modules, "IPython", FakeIPython())
    monkeypatch.setitem(sys.modules, "IPython.display", FakeDisplay(Handle(), pages))
    monkeypatch.setattr("quantry.autosearch.engine.LiveTable", lambda: table)
    space = Space.of(Recipe(), {"scale.activation": [MinMax(), Percentile(99.0)]})
    run_search(network, random_samples(4), distance, space, SearchOptions("grid", output_dir=tmp_path))
    assert "<th>what differs from the best before it</th>" in pages[-1]
    assert "activation Percentile(percentile=99.0)" in pages[-1]
    assert "every configuration was tried" in pages[-1]


class ZMQInteractiveShell:
    """Has the name of the shell that runs notebooks."""


class FakeIPython:
    @staticmethod
    def get_ipython() -> ZMQInteractiveShell:
        return ZMQInteractiveShell()


class FakeDisplay:
    HTML = str

    def __init__(self, handle: Any, pages: list[str]) -> None:
        self.handle = handle
        self.pages = pages

    def display(self, page: str, display_id: bool) -> Any:
        assert display_id
        self.pages.append(page)
        return self.handle
