"""An output folder from a stranger: what is planted in it is refused by name, never written through or waited for."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_network import Distance

from quantry.autosearch import SearchOptions, SearchResult, Space, run_search
from quantry.autosearch.control import request, requested
from quantry.autosearch.output_directory import OutputDirectory
from quantry.autosearch.storage import JournalFile
from quantry.errors import DataError, StoreError
from quantry.report.search_facts import read_facts
from quantry.report.write import render_folders

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes and needs rights for links"),
    pytest.mark.timeout(60),
]
HERE = Path(__file__).parent
Search = Callable[[], SearchResult]
FILES = ("study.journal", "iter_0.onnx", "best.onnx", "recipe.yaml", "search.json", "search.lock", "auto_search.log")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "outside").write_bytes(b"precious")
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.fixture
def search(folder: Path, network: Path, samples: list[Any], distance: Distance, space: Space) -> Search:
    """Return a search of two trials in the folder."""
    options = SearchOptions(sampler="grid", n_trials=2, output_dir=folder)
    return lambda: run_search(network, samples, distance, space, options)


@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("name", FILES)
def test_planted_file_stops_the_search_with_its_name(name: str, kind: str, folder: Path, search: Search) -> None:
    if kind == "link":
        (folder / name).symlink_to(folder.parent / "outside")
    else:
        os.mkfifo(folder / name)
    with pytest.raises(StoreError, match=rf"a {kind}; at {folder / name}"):
        search()
    assert (folder.parent / "outside").read_bytes() == b"precious"


@pytest.mark.parametrize("name", ["scores", "store", "scores/study"])
def test_planted_link_to_a_folder_stops_the_search(name: str, folder: Path) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(folder.parent)
    with pytest.raises(StoreError, match=rf"a link; at {folder / name}"):
        OutputDirectory(folder).open()


def test_names_of_earlier_temporary_files_are_not_used(folder: Path, search: Search) -> None:
    for name in (".best.onnx.tmp", f".recipe.yaml.{os.getpid()}.tmp", f".search.json.{os.getpid()}.tmp"):
        (folder / name).symlink_to(folder.parent / "outside")
    assert search().best_model == folder / "best.onnx"
    assert (folder.parent / "outside").read_bytes() == b"precious"


def test_journal_with_a_second_name_is_refused(folder: Path) -> None:
    (folder / "study.journal").hardlink_to(folder.parent / "outside")
    with pytest.raises(StoreError, match="hard link"):
        JournalFile(folder / "study.journal")
    assert (folder.parent / "outside").read_bytes() == b"precious"


def test_pipe_as_a_request_is_no_request(folder: Path) -> None:
    os.mkfifo(folder / "control.json")
    assert requested(folder) == "run"
    with pytest.raises(StoreError, match=r"a pipe; at .*control\.json"):
        request(folder, "stop")


def test_pipe_as_the_result_of_a_search_is_no_report(folder: Path) -> None:
    os.mkfifo(folder / "search.json")
    with pytest.raises(DataError, match="a pipe"):
        read_facts(folder)


def test_report_does_not_show_what_a_planted_recipe_leads_to(folder: Path, search: Search) -> None:
    search()
    (folder / "recipe.yaml").unlink()
    (folder / "recipe.yaml").symlink_to(folder.parent / "outside")
    with pytest.raises(StoreError, match=r"a link; at .*recipe\.yaml"):
        render_folders([folder])


def test_killed_while_a_model_is_written_leaves_nothing_after_the_next_run(
    folder: Path, network: Path, search: Search
) -> None:
    script = """
import sys, time
from pathlib import Path
from quantry.graph.load import read_model
from quantry.graph.save import model_parts
from quantry.files import write_file
def slowly():
    for chunk in model_parts(read_model(Path(sys.argv[1]))).chunks():
        yield chunk
        print("writing", flush=True)
        time.sleep(60)
write_file(sys.argv[2], slowly())
"""
    command = [sys.executable, "-c", script, str(network), str(folder / "iter_2.onnx")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert [file.name for file in folder.iterdir() if file.name.startswith(".iter_2.onnx.")]
    search()
    assert not [file.name for file in folder.iterdir() if file.name.startswith(".")]


def test_kill_at_a_random_moment_leaves_no_temporary_file_after_the_next_run(tmp_path: Path, network: Path) -> None:
    output = tmp_path / "out"
    command = [sys.executable, str(HERE / "killed_search.py"), str(network), str(output), "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while not (output / "iter_1.onnx").exists() and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert not [file for file in output.rglob("*") if file.name.startswith(".") or file.parent.name == "temp"]
