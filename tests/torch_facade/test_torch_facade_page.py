"""Every Python block of docs/torch.md runs."""

import re
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "torch.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_page_has_an_example_with_a_preset_and_one_by_hand() -> None:
    first, second, _ = BLOCKS
    assert 'ModelQuantizer("XINT8")' in first
    assert len(first.splitlines()) <= 20
    assert "QTensorConfig(" in second


@pytest.mark.parametrize("index", range(len(BLOCKS)))
def test_block_of_the_page_runs_and_leaves_a_model(
    index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {"__name__": "page"}
    exec(compile(BLOCKS[index], str(PAGE), "exec"), names)
    assert "quark_model.onnx" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(tmp_path / "out" / "quark_model.onnx")
    source = session.get_inputs()[0]
    (output,) = session.run(None, {source.name: np.ones(source.shape, np.float32)})
    assert np.isfinite(output).all()
