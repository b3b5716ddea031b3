"""The YOLOX example: model, pictures, table and notebook."""

import json
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


def test_notebook_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from quantry import demo

    inputs = demo.calibration_inputs
    monkeypatch.setattr(demo, "calibration_inputs", lambda count: inputs(min(count, 2)))
    monkeypatch.chdir(tmp_path)
    cells = json.loads((EXAMPLE / "PTQ_QAT.ipynb").read_text())["cells"]
    names: dict[str, Any] = {"__name__": "notebook"}
    for index, cell in enumerate(cells):
        if cell["cell_type"] != "code":
            continue
        text = "".join(cell["source"])
        for size in ("limit=50", "scenes=128", "steps=50", "batch=8"):
            text = text.replace(size, f"{size.split('=')[0]}=2")
        exec(compile(text, f"cell {index}", "exec"), names)
    assert [row[0] for row in names["rows"]] == ["FP32", "PTQ int8", "QAT int8"]
    assert (tmp_path / "yolox_export" / "quark_model.onnx").is_file()
    assert "mAP 0.50:0.95" in capsys.readouterr().out
    assert names["done"].is_exact
