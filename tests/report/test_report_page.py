import dataclasses
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import quantry
from quantry.diagnosis import diagnose
from quantry.errors import StoreError
from quantry.evaluate import quality
from quantry.recipe import EvaluateOptions, find_preset, from_yaml
from quantry.report import ReportFacts, collect_facts, render_page
from quantry.report.pictures import changed_images

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
        "Calibration data",
        "Where it is lost",
        "Values and ranges",
        "Every quantized tensor",
        "What stayed float",
        "Notes",
        "What ran",
        "Recipe",
    ]
    # The chart library contains addresses of XML namespaces, which are names and are never loaded.
    markup = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r'(src|href)="?http', markup)
    assert "Erf" in page  # stayed float, with its reason


def test_page_starts_with_whether_the_model_is_good_where_it_is_and_what_is_next(
    result: quantry.QuantizationResult, tmp_path: Path
) -> None:
    from_file = dataclasses.replace(result, float_file=tmp_path / "small.onnx")
    from_file.save(tmp_path / "small.int8.onnx")
    known = collect_facts(from_file, diagnose(result), "small.onnx")
    first = render_page(known).partition("<div class=cards>")[0]
    assert known.quality.words in first.lower()
    assert "<code>small.int8.onnx</code>" in first
    good = dataclasses.replace(known, quality=quality(40.0, 1.0))
    assert "quantry evaluate small.int8.onnx" in render_page(good).partition("<div class=cards>")[0]
    far = dataclasses.replace(known, quality=quality(4.0, 0.5))
    assert "quantry search small.onnx" in render_page(far).partition("<div class=cards>")[0]


@pytest.mark.parametrize(
    ("decibels", "agreement", "level"),
    [
        (math.inf, None, "good"),
        (35.0, 1.0, "good"),
        (35.0, 0.8, "fair"),
        (15.0, 1.0, "fair"),
        (25.0, 0.3, "bad"),
        (7.5, 0.64, "fair"),  # a detector that keeps 97 % of its AP
        (math.nan, None, "bad"),
    ],
)
def test_verdict_is_the_worse_of_decibels_and_decisions(decibels: float, agreement: float | None, level: str) -> None:
    assert quality(decibels, agreement).level == level


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
    with pytest.raises(StoreError, match="must be a regular file, got a folder"):
        quantry.write_report(result, tmp_path / "folder" / "report.html")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["report.html"], "nothing half-written stays"


def test_images_with_other_classes_are_shown() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 17]>
    g (float[1, 3, 8, 8] x) => (float[1, 2] y)
    <float[2, 3, 1, 1] w = {1, -1, 0.5, -1, 1, -0.5}>
    { c = Conv(x, w)  p = GlobalAveragePool(c)  y = Flatten(p) }
    """
    data = [np.random.default_rng(seed).standard_normal((1, 3, 8, 8)).astype(np.float32) for seed in range(6)]
    coarse = {"scale": {"activation": {"kind": "Percentile", "percentile": 50.0}}}
    result = quantry.quantize(onnx.parser.parse_model(text), data, coarse, store=None)
    pictures = changed_images(result)
    assert pictures
    assert pictures[0]["float"].startswith("class ")
    page = render_page(dataclasses.replace(collect_facts(result, diagnose(result), "g"), pictures=pictures))
    assert "data:image/jpeg;base64," in page


def test_boxes_of_a_detector_are_drawn() -> None:
    from quantry import demo
    from quantry.evaluate.tasks import RowDecoder

    result = quantry.quantize(demo.model_path(), demo.calibration_inputs(2), "XINT8", store=None)
    boxes = [
        box for picture in changed_images(result, RowDecoder(strides=(4, 8, 16))) for box in picture["float_boxes"]
    ]
    assert boxes
    assert all(box["width"] > 0 and box["label"] for box in boxes)


def test_decoder_of_another_detector_costs_the_boxes_alone(caplog: pytest.LogCaptureFixture) -> None:
    from quantry import demo

    result = quantry.quantize(demo.model_path(), demo.calibration_inputs(2), "XINT8", store=None)
    assert changed_images(result, "yolox") == ()
    assert "the report shows no boxes" in caplog.text


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
