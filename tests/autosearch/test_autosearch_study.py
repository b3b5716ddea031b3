"""A search in a folder that already holds one."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_network import Distance, random_samples, small_space

from quantry.autosearch import SearchOptions, SearchResult, run_search
from quantry.memo import function_digest

Evaluator = Callable[[Path], float]


def defined(text: str) -> Evaluator:
    """Return the function that some code defines, as a changed script would."""
    names: dict[str, Any] = {"__name__": "script"}
    exec(text, names)
    evaluator: Evaluator = names["evaluator"]
    return evaluator


@pytest.mark.parametrize(
    "other",
    [
        "def evaluator(path): return 2.0",
        "def evaluator(path, k=1): return 1.0",
        "def evaluator(path): return path.stem",
        "def evaluator(path): return [1.0 for _ in path][0]",
        "WEIGHT = 3\ndef evaluator(path): return WEIGHT",
        "WEIGHT = 4\ndef evaluator(path): return WEIGHT",
        "def half(): return 0.5\ndef evaluator(path): return half()",
        "def half(): return 0.25\ndef evaluator(path): return half()",
        "def outer(k):\n    def evaluator(path): return k\n    return evaluator\nevaluator = outer(1)",
        "def outer(k):\n    def evaluator(path): return k\n    return evaluator\nevaluator = outer(2)",
    ],
)
def test_digest_changes_with_what_a_function_does(other: str) -> None:
    digests = {
        function_digest(defined(text))
        for text in (
            "def evaluator(path): return 1.0",
            "def evaluator(path): return path.name",
            "def evaluator(path): return [2.0 for _ in path][0]",
            "WEIGHT = 2\ndef evaluator(path): return WEIGHT",
            "def half(): return 0.75\ndef evaluator(path): return half()",
            "def outer(k):\n    def evaluator(path): return k\n    return evaluator\nevaluator = outer(3)",
        )
    }
    assert len(digests) == 6
    assert function_digest(defined(other)) not in digests
    assert function_digest(defined(other)) == function_digest(defined(f"# a comment\n\n{other}"))


def test_digest_covers_partials_and_objects_but_not_counters() -> None:
    count = 0

    def counting(_: Path, weight: float) -> float:
        nonlocal count
        count += 1
        return weight

    before = function_digest(functools.partial(counting, weight=1))
    counting(Path(), 1)
    assert function_digest(functools.partial(counting, weight=1)) == before
    assert function_digest(functools.partial(counting, weight=2)) != before

    class Other(Distance):
        def __call__(self, model_path: Path) -> float:
            return 2 * super().__call__(model_path)

    assert function_digest(Other.__new__(Other)) != function_digest(Distance.__new__(Distance))


def searched(network: Path, directory: Path, evaluator: Evaluator, trials: int = 2, jobs: int = 1) -> SearchResult:
    options = SearchOptions("grid", output_dir=directory, n_trials=trials, n_jobs=jobs)
    return run_search(network, random_samples(4), evaluator, small_space(), options)


def test_changed_function_of_the_same_name_moves_the_earlier_search(network: Path, tmp_path: Path) -> None:
    first = searched(network, tmp_path, defined("def evaluator(path): return 1.0"), trials=3)
    assert first.best_model is not None
    winner = first.best_model.read_bytes()
    (tmp_path / "mine.txt").write_text("not of a search")
    with pytest.warns(UserWarning, match="moved to .*previous-1.* starts from scratch"):
        second = searched(network, tmp_path, defined("def evaluator(path): return 2.0"), trials=1)
    assert [trial.score for trial in second.trials] == [2.0]
    assert any("previous-1" in note for note in second.notes)
    log = (tmp_path / "auto_search.log").read_text()
    assert "previous-1" in log
    assert "search resumes" not in log
    older = tmp_path / "previous-1"
    assert (older / "best.onnx").read_bytes() == winner
    assert {"study.journal", "recipe.yaml", "search.json", "auto_search.log"} <= {path.name for path in older.iterdir()}
    assert [path.name for path in tmp_path.glob("iter_*")] == ["iter_0.onnx"]
    assert (tmp_path / "mine.txt").exists()
    # The earlier search can be resumed in its new folder.
    assert len(searched(network, older, defined("def evaluator(path): return 1.0"), trials=4).trials) == 4


def test_changed_evaluation_data_start_from_scratch(network: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"

    def evaluator(_: Path) -> float:
        return float(labels.read_text())

    labels.write_text("0.5")
    searched(network, tmp_path / "out", evaluator)
    labels.write_text("0.75")
    with pytest.warns(UserWarning, match="float model's score is 0.75 now and was 0.5"):
        found = searched(network, tmp_path / "out", evaluator)
    assert {trial.score for trial in found.trials} == {0.75}
    assert found.reference.value == 0.75
    assert len(searched(network, tmp_path / "out", evaluator, 3, jobs=2).trials) == 3
    assert not (tmp_path / "out" / "previous-2").exists()
