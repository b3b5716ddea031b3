"""Workers on a Ray cluster: a small local one, if Ray is installed."""

import sys
from pathlib import Path

import pytest
from small_network import Distance, random_samples, small_space

from quantry.autosearch import SearchOptions, run_search
from quantry.errors import MissingExtraError


def test_cluster_without_ray_is_an_error(
    network: Path, distance: Distance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    options = SearchOptions("grid", output_dir=tmp_path, cluster="auto")
    with pytest.raises(MissingExtraError, match=r"quantry\[ray\]"):
        run_search(network, random_samples(2), distance, small_space(), options)


@pytest.mark.filterwarnings("ignore")
def test_actors_find_the_same_as_this_process(network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    # The actors must be able to import the evaluator's module.
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    found = [
        run_search(network, random_samples(4), Distance(network), small_space(), options)
        for options in (
            SearchOptions("grid", output_dir=tmp_path / "here", n_trials=4),
            SearchOptions("grid", output_dir=tmp_path / "there", n_trials=4, cluster="local", n_jobs=2),
        )
    ]
    assert [trial.score for trial in found[0].trials] == [trial.score for trial in found[1].trials]
    assert [trial.error for trial in found[1].trials] == [None] * 4
    assert found[0].best_model is not None
    assert found[1].best_model is not None
    assert found[0].best_model.read_bytes() == found[1].best_model.read_bytes()
