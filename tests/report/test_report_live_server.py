"""The live server: what it serves, to whom; and what a search leaves for optuna-dashboard, MLflow and others."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx.parser
import optuna
import pytest
from test_report_search_page import MODEL

from quantry.autosearch import SearchResult, search
from quantry.autosearch.control import request, requested
from quantry.errors import MissingExtraError, RecipeError
from quantry.recipe import MinMax, MinMSE
from quantry.report import LiveServer


def run(folder: Path, **options: object) -> SearchResult:
    data = [np.random.default_rng(seed).standard_normal((1, 2, 6, 6)).astype(np.float32) for seed in range(6)]
    space = {"scale.activation": [MinMax(), MinMSE()], "scale.reduce_range": [False, True]}
    return search(onnx.parser.parse_model(MODEL), data, space=space, output_dir=folder, **options)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> SearchResult:
    return run(tmp_path_factory.mktemp("live") / "out")


@pytest.fixture
def server(result: SearchResult) -> Iterator[LiveServer]:
    live = LiveServer(result.output_dir)
    live.start()
    yield live
    live.close()


def status(address: str, body: bytes | None = None, **headers: str) -> tuple[int, str]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(address, body, named), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_page_is_served_and_nothing_else(server: LiveServer, result: SearchResult) -> None:
    code, page = status(server.address)
    assert code == 200
    assert page.count("<tr id=trial-") == len(result.trials)
    for path in ("best.onnx", "search.json", "../out/search.json", "%2e%2e/", "//etc/passwd", "control"):
        assert status(server.address + path)[0] == 404, path


def test_website_cannot_reach_the_server_through_a_browser(server: LiveServer) -> None:
    assert status(server.address, Host="attacker.example")[0] == 403
    stop = json.dumps({"action": "stop"}).encode()
    assert status(f"{server.address}control", stop)[0] == 403, "a form of another site has no token"
    assert status(f"{server.address}control", stop, X_Quantry_Token=server.token)[0] == 200
    assert requested(server.folder) == "stop"
    wrong = status(f"{server.address}control", b'{"action": "delete"}', X_Quantry_Token=server.token)
    assert wrong[0] == 400
    assert "run, pause, stop" in wrong[1]
    request(server.folder, "run")


def test_other_machines_need_the_token(result: SearchResult) -> None:
    live = LiveServer(result.output_dir, host="0.0.0.0")
    live.start()
    try:
        local = f"http://127.0.0.1:{live.port}/"
        assert status(local)[0] == status(f"{local}events")[0] == status(f"{local}?token=guess")[0] == 403
        assert status(f"{local}?token={live.token}")[0] == 200
        assert live.token in live.address
    finally:
        live.close()


def test_events_tell_the_state(server: LiveServer) -> None:
    with urllib.request.urlopen(f"{server.address}events", timeout=10) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert answer.readline() == b"event: state\n"
        assert json.loads(answer.readline().removeprefix(b"data: ")) == {"running": False, "action": "run"}


def test_used_port_is_an_error_of_ours(server: LiveServer) -> None:
    with pytest.raises(RecipeError, match="free address"):
        LiveServer(server.folder, port=server.port)


def test_dashboard_study_has_the_numbers_of_the_search(result: SearchResult) -> None:
    journal = optuna.storages.journal.JournalFileBackend(str(result.output_dir / "dashboard.journal"))
    storage = optuna.storages.JournalStorage(journal)
    (study,) = optuna.get_all_study_summaries(storage)
    trials = optuna.load_study(study_name=study.study_name, storage=storage).trials
    assert [trial.number for trial in trials] == [trial.number for trial in result.trials]
    assert [trial.value for trial in trials] == [trial.score for trial in result.trials]
    assert trials[0].params.keys() == result.trials[0].assignment.keys()


def test_unknown_tracker_and_missing_package_are_errors_of_ours(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="mlflow"):
        run(tmp_path / "out", log_to="mlflo")
    try:
        import mlflow  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtraError, match=r"quantry\[mlflow\]"):
            run(tmp_path / "out", log_to="mlflow")


def test_trials_are_logged_to_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "runs").as_uri())
    found = run(tmp_path / "out", log_to="mlflow")
    runs = mlflow.MlflowClient().search_runs(["0"])
    scores = sorted(one.data.metrics["score"] for one in runs if "score" in one.data.metrics)
    assert scores == pytest.approx(sorted(trial.score for trial in found.trials if trial.score is not None))


def test_trials_are_logged_to_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run(tmp_path / "out", log_to="wandb")
    assert list((tmp_path / "out" / "wandb").glob("offline-run-*"))
