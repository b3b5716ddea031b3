"""Pages of compare and diagnose, placement and boxes in the page of a model."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tools import docs_folder
from typer.testing import CliRunner

from quantry.cli.app import app


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    docs_folder.prepare(folder)
    return folder / "detection"


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def run(line: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, line.split(), catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.output


def facts(page: Path) -> dict:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"(?:src|href)=.?https?:", text)
    return json.loads(re.search(r"id=facts>(.*?)</script>", text, re.DOTALL)[1])


def test_report_of_a_detector_draws_boxes_and_shows_where_nodes_run(here: Path) -> None:
    run("quantize model.onnx -d images --pixel-scale 1 -p XINT8 -o q.onnx --report q.html --decoder yolox --store none")
    text = (here / "q.html").read_text(encoding="utf-8")
    assert "<rect x=" in text
    assert "Calibration data" in text
    assert "It costs:" in text
    placement = text[text.index("id=where-it-runs") :]
    assert "ort-cpu" in placement[: placement.index("</section>")]


def test_decoder_needs_a_report_and_a_known_name(here: Path) -> None:
    assert "needs --report" in str(
        CliRunner().invoke(app, ["quantize", "model.onnx", "-d", "images", "--decoder", "yolox"]).exception
    )
    unknown = ["quantize", "model.onnx", "-d", "images", "--decoder", "yolo", "--report", "r.html"]
    assert "yolox" in str(CliRunner().invoke(app, unknown).exception)


def test_compare_and_diagnose_write_pages_with_every_common_tensor(here: Path) -> None:
    run("quantize model.onnx -d images --pixel-scale 1 -p XINT8 -o two.onnx --store none")
    run("compare model.onnx two.onnx -d images --pixel-scale 1 --report compare.html")
    run("diagnose model.onnx two.onnx -d images --pixel-scale 1 --report pair.html")
    compared, pair = facts(here / "compare.html"), facts(here / "pair.html")
    assert [layer["tensor"] for layer in compared["strip"]] == [layer["tensor"] for layer in pair["strip"]]
    assert {"s8", "rows"} <= {layer["tensor"] for layer in pair["strip"]}
    assert all(np.isfinite(float(layer["gathered"])) for layer in pair["strip"])
    assert "model.onnx and two.onnx" in (here / "compare.html").read_text(encoding="utf-8")


def test_diagnose_writes_the_page_of_the_model_it_diagnosed(here: Path) -> None:
    said = run("diagnose model.onnx -d images --pixel-scale 1 -p XINT8 --report d.html --store none")
    assert "wrote d.html" in said
    first = next(line for line in said.splitlines() if line.startswith("1. "))
    assert first[:40] in (here / "d.html").read_text(encoding="utf-8")
