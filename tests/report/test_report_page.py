import dataclasses
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import quantry
from quantry.diagnosis import diagnose
from quantry.errors import StoreError
from quantry.recipe import EvaluateOptions, find_preset, from_yaml
from quantry.report import ReportFacts, collect_facts, render_page

MODEL = """
<ir_version: 8, opset_import: ["": 17]>
small (float[1, 2, 6, 6] x) => (float[1, 2, 6, 6] y)
<float[2, 2, 1, 1] weight = {1.5, -0.5, 0.25, 2}>
{
  c = Conv(x, weight)
  r = Relu(c)
  y = Erf(r)
}
"""


@pytest.fixture(scope="module")
def result() -> quantry.QuantizationResult:
    data = [np.random.default_rng(seed).standard_normal((1, 2, 6, 6)).astype(np.float32) for seed in range(3)]
    return quantry.quantize(onnx.parser.parse_model(MODEL), data, "S8S8_AAWS", store=None)


@pytest.fixture(scope="module")
def facts(result: quantry.QuantizationResult) -> ReportFacts:
    return collect_facts(result, diagnose(result), "small.onnx")


class Texts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)
            self.open.append("")


def test_facts_are_plain_data(facts: ReportFacts) -> None:
    assert json.loads(json.dumps(dataclasses.asdict(facts)))["title"] == "small.onnx"


def test_recipe_on_the_page_can_be_run_again(facts: ReportFacts, result: quantry.QuantizationResult) -> None:
    assert from_yaml(facts.recipe) == result.recipe


def test_page_has_all_parts_and_needs_nothing_from_elsewhere(facts: ReportFacts) -> None:
    page = render_page(facts)
    parser = Texts()
    parser.feed(page)
    assert parser.headings == [
        "Why accuracy is lost",
        "Where it is lost",
        "Worst activations",
        "Every quantized tensor",
        "What stayed float",
        "Notes",
        "What ran",
        "Recipe",
    ]
    assert not re.search(r'(src|href)="?http', page)
    assert "Erf" in page  # stayed float, with its reason


def test_names_cannot_break_the_page(facts: ReportFacts) -> None:
    nasty = "</script><b>&"
    page = render_page(dataclasses.replace(facts, title=nasty, notes=(nasty,), declined=((nasty, (nasty,)),)))
    assert nasty not in page
    assert "&lt;/script&gt;&lt;b&gt;&amp;" in page


def test_latency_is_shown_when_measured() -> None:
    recipe = dataclasses.replace(find_preset("S8S8_AAWS").recipe, evaluate=EvaluateOptions(latency_runs=3))
    data = [np.zeros((1, 2, 6, 6), np.float32), np.ones((1, 2, 6, 6), np.float32)]
    result = quantry.quantize(onnx.parser.parse_model(MODEL), data, recipe, store=None)
    assert "x the float time" in render_page(collect_facts(result, diagnose(result), "m"))


def test_report_is_written_with_its_folder(result: quantry.QuantizationResult, tmp_path: Path) -> None:
    path = quantry.write_report(result, tmp_path / "new" / "report.html")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


def test_place_that_cannot_be_written_is_an_error_of_ours(result: quantry.QuantizationResult, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="written to a writable path"):
        quantry.write_report(result, tmp_path / "file" / "report.html")
    (tmp_path / "folder" / "report.html").mkdir(parents=True)
    with pytest.raises(StoreError, match="written to a writable path"):
        quantry.write_report(result, tmp_path / "folder" / "report.html")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["report.html"], "nothing half-written stays"


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no browser")
def test_browser_shows_every_tensor_and_filters_them(result: quantry.QuantizationResult, tmp_path: Path) -> None:
    page = quantry.write_report(result, tmp_path / "report.html")
    probe = page.read_text(encoding="utf-8").replace(
        "</html>",
        "<script>const f = document.getElementById('filter'); f.value = 'weight'; f.dispatchEvent(new Event('input'));"
        "document.title = [...document.querySelectorAll('#main tbody tr')].filter(r => !r.hidden).length;"
        "</script></html>",
    )
    page.write_text(probe, encoding="utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    command += ["--disable-background-networking", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}"]
    shown = subprocess.run(
        [*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=60, check=True
    )
    assert "<title>1</title>" in shown.stdout


def test_model_that_grew_is_called_larger(facts: ReportFacts) -> None:
    assert "1.04x larger" in render_page(dataclasses.replace(facts, sizes=(1000, 1040)))
    assert "4.0x smaller" in render_page(dataclasses.replace(facts, sizes=(1000, 250)))


def test_one_sample_has_no_interval() -> None:
    data = [np.ones((1, 2, 6, 6), np.float32)]
    alone = quantry.quantize(onnx.parser.parse_model(MODEL), data, "S8S8_AAWS", store=None)
    page = render_page(collect_facts(alone, diagnose(alone), "small.onnx"))
    assert "one sample" in page
    assert "95 %" not in page


def test_time_of_the_diagnosis_is_in_the_trace(result: quantry.QuantizationResult, tmp_path: Path) -> None:
    page = quantry.write_report(result, tmp_path / "report.html").read_text()
    assert result.trace.computed("diagnose")
    assert "<td>diagnose</td>" in page
