"""The YOLOX example: model, pictures, table and notebook."""

import ast
import inspect
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

EXAMPLE = Path(__file__).parents[2] / "examples" / "yolox"


@pytest.fixture(autouse=True)
def _on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)


def test_model_returns_one_row_per_cell() -> None:
    import yolox_model

    model = yolox_model.Yolox(yolox_model.NANO).eval()
    assert sum(part.numel() for part in model.parameters()) == 912_159
    with torch.no_grad():
        assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 64 + 16 + 4, 85)


def test_weights_come_from_a_checkpoint(tmp_path: Path) -> None:
    import yolox_model

    model = yolox_model.Yolox(yolox_model.NANO).eval()
    torch.save({"model": model.base_model.state_dict()}, tmp_path / "nano.pth")
    again = yolox_model.load(tmp_path / "nano.pth", yolox_model.NANO)
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(again(images), model(images))


def test_pictures_are_scaled_and_padded(tmp_path: Path) -> None:
    import detection_tasks

    Image.fromarray(np.full((104, 208, 3), (10, 20, 30), np.uint8)).save(tmp_path / "picture.png")
    picture, factor = detection_tasks.prepared(tmp_path / "picture.png")
    assert factor == 2.0
    assert picture[0, :, 100, 100].tolist() == [30.0, 20.0, 10.0]
    assert picture[0, :, 300, 100].tolist() == [114.0, 114.0, 114.0]


def test_table_shows_percentages_of_the_float_model() -> None:
    import detection_tasks

    shown = detection_tasks.table([("FP32", 0.4, 0.8), ("PTQ int8", 0.3, 0.8)])
    assert "0.3000 ( 75.0%)   0.8000 (100.0%)" in shown


def code_of_the_notebook() -> list[str]:
    cells = json.loads((EXAMPLE / "PTQ_QAT.ipynb").read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_notebook_calls_functions_of_the_script_with_their_arguments() -> None:
    import PTQ_QAT_exp as steps

    calls = [
        node
        for text in code_of_the_notebook()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("steps.")
    ]
    assert len(calls) > 3
    for call in calls:
        function = getattr(steps, ast.unparse(call.func).removeprefix("steps."))
        inspect.signature(function).bind(*call.args, **{word.arg: word.value for word in call.keywords if word.arg})


@pytest.mark.skipif("QUANTRY_SLOW_TESTS" not in os.environ, reason="takes half a minute; part of `make notebooks`")
def test_notebook_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from quantry import demo

    inputs = demo.calibration_inputs
    monkeypatch.setattr(demo, "calibration_inputs", lambda count: inputs(min(count, 2)))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "notebook"}
    for index, text in enumerate(code_of_the_notebook()):
        small = re.sub(r"\b(limit=50|scenes=128|steps=50|batch=8)", lambda size: f"{size[1].split('=')[0]}=2", text)
        exec(compile(small, f"cell {index}", "exec"), names)
    assert [row[0] for row in names["rows"]] == ["FP32", "PTQ int8", "QAT int8"]
    assert (tmp_path / "yolox_export" / "quark_model.onnx").is_file()
    assert "mAP 0.50:0.95" in capsys.readouterr().out
    assert names["done"].is_exact
