"""What notebooks show: HTML of results, searches, recipes and diagnoses; the notebooks of the documentation."""

import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import quantry
from quantry.recipe import MinMax, MinMSE, find_preset
from test_quantize_api import float_model, images

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


class Checked(HTMLParser):
    """Fails if tags are not nested."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def text_of(shown: object) -> str:
    parser = Checked()
    parser.feed(shown._repr_html_())  # type: ignore[attr-defined]
    assert parser.open == []
    return parser.text


def test_result_shows_metrics_once_they_are_known() -> None:
    result = quantry.quantize(float_model(), images(), "XINT8", store=None)
    assert ".evaluation" in text_of(result)
    assert result.evaluation.samples
    assert "sqnr" in text_of(result)
    assert "XINT8" in text_of(result)


def test_recipe_and_diagnosis_are_shown() -> None:
    recipe = find_preset("XINT8").recipe
    assert "prepare.npu" in text_of(recipe)
    result = quantry.quantize(float_model(), images(), recipe, store=None)
    assert "Where it is lost" in text_of(quantry.diagnose(result))


def test_search_shows_its_best_trials(tmp_path: Path) -> None:
    space = {"scale.activation": [MinMax(), MinMSE()]}
    found = quantry.search(float_model(), images(), space=space, output_dir=tmp_path / "<out>")
    shown = text_of(found)
    assert "2 trials" in shown
    assert "MinMSE" in shown


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_was_executed_without_errors(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert any("text/html" in output.get("data", {}) for output in outputs)


def test_there_are_three_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["classifier", "detector", "torch_training"]


def test_progress_bar_of_a_kernel(tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    code = (
        "import time\nfrom quantry.runtime.progress import progress\n"
        "for i in progress(range(3), 'calibrate', 3): time.sleep(0.15)"
    )
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(book, timeout=60).execute()
    shown = [output for output in book.cells[0].outputs if "text/html" in output.get("data", {})]
    assert shown
    assert np.all([output["data"]["text/html"] == "" for output in shown]), "the bar is removed at the end"
