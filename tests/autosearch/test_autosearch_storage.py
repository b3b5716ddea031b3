"""Studies in a database instead of the output directory."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from small_network import Distance, random_samples, small_space

from quantry.autosearch import SearchOptions, run_search
from quantry.autosearch.storage import StudyLease, _is_held, without_password
from quantry.errors import MissingExtraError, RecipeError, StoreError

HERE = socket.gethostname()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database: SQLite, or PostgreSQL at $QUANTRY_POSTGRES_URL or started here if it is installed."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'study.db'}"
        return
    pytest.importorskip("psycopg")
    if "QUANTRY_POSTGRES_URL" in os.environ:
        yield os.environ["QUANTRY_POSTGRES_URL"]
        return
    if shutil.which("initdb") is None or shutil.which("pg_ctl") is None or os.getuid() == 0:
        pytest.skip("needs PostgreSQL's programs, and a user other than root")
    data, sockets = tmp_path / "data", tmp_path / "s"
    sockets.mkdir()
    subprocess.run(["initdb", "-D", data, "-A", "trust", "-U", "tester"], check=True, capture_output=True)
    options = f"-k {sockets} -c listen_addresses=''"
    control = ["pg_ctl", "-D", str(data), "-l", str(tmp_path / "server.log"), "-w"]
    subprocess.run([*control, "-o", options, "start"], check=True, capture_output=True)
    yield f"postgresql+psycopg://tester@/postgres?host={sockets}"
    subprocess.run([*control, "-m", "immediate", "stop"], check=True, capture_output=True)


def test_another_machine_resumes_the_study_of_a_database(
    url: str, network: Path, distance: Distance, tmp_path: Path
) -> None:
    options = SearchOptions("grid", output_dir=tmp_path / "one", storage=url, n_trials=9)
    first = run_search(network, random_samples(4), distance, small_space(), options)
    seen = distance.seen
    assert first.best is not None
    assert first.best_model is not None
    # Another machine has another folder and knows the trials only from the database.
    elsewhere = replace(options, output_dir=tmp_path / "two", n_trials=None)
    second = run_search(network, random_samples(4), distance, small_space(), elsewhere)
    assert [trial.score for trial in second.trials[:9]] == [trial.score for trial in first.trials]
    assert distance.seen - seen <= 3 * distance.size
    alone = run_search(
        network, random_samples(4), Distance(network), small_space(), SearchOptions("grid", output_dir=tmp_path / "own")
    )
    assert [trial.score for trial in second.trials] == [trial.score for trial in alone.trials]
    assert second.best_model is not None
    assert alone.best_model is not None
    assert second.best_model.read_bytes() == alone.best_model.read_bytes()


def test_study_is_reserved_until_its_search_ends_or_dies() -> None:
    import optuna

    study = optuna.create_study()
    lease = StudyLease(study)
    with pytest.raises(RecipeError, match="one search at a time"):
        StudyLease(study)
    lease.close()
    StudyLease(study).close()
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    later = time.time() + 30
    assert not _is_held({"host": HERE, "process": int(gone.stdout), "until": later})
    assert _is_held({"host": "elsewhere", "process": int(gone.stdout), "until": later})
    assert not _is_held({"host": "elsewhere", "process": 1, "until": time.time() - 1})


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("sqlite:////nowhere/at/all/study.db", StoreError, "must be reachable"),
        ("unknown+driver://me:secret@host/name", (MissingExtraError, StoreError), "database of a search"),
    ],
)
def test_unusable_database_is_an_error(
    url: str, error: type[Exception], message: str, network: Path, distance: Distance, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message) as raised:
        run_search(network, random_samples(2), distance, small_space(), SearchOptions(output_dir=tmp_path, storage=url))
    assert "secret" not in str(raised.value)


def test_storage_is_a_url_whose_password_is_not_shown() -> None:
    with pytest.raises(RecipeError, match="storage must be text such as"):
        SearchOptions(storage="study.db")
    assert without_password("postgresql+psycopg://me:secret@host/name") == "postgresql+psycopg://me@host/name"
    assert without_password("sqlite:///study.db") == "sqlite:///study.db"
