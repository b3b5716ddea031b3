"""The scripts of examples/accuracy in a small form."""

import runpy
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser
from PIL import Image

from quantry import demo

EXAMPLES = Path(__file__).parents[2] / "examples" / "accuracy"
SMALL = ["--samples", "1", "--scenes", "1"]
OWN = {
    "smooth_quant": ([], {"U8S8 per channel", "... with SmoothQuant"}),
    "mixed_precision": (["--layers", "1"], {"A8W8", "A16W8 mixed with A8W8", "A16W8"}),
    "fast_finetune": (["--iterations", "20"], {"A16W8", "... with adaround", "... with adaquant"}),
    "cross_layer_equalization": ([], {"power-of-two U8S8", "... with CLE"}),
}
RELU_NETWORK = """
<ir_version: 8, opset_import: ["" : 17]>
cnn (float[batch, 3, 8, 8] image) => (float[batch, 4, 8, 8] result)
<float[4, 3, 3, 3] w1, float[4, 4, 3, 3] w2>
{
    c1 = Conv <pads: ints = [1, 1, 1, 1]> (image, w1)
    r1 = Relu (c1)
    result = Conv <pads: ints = [1, 1, 1, 1]> (r1, w2)
}
"""


def run(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


def table(printed: str) -> dict[str, float]:
    rows = (line.rsplit(maxsplit=1) for line in printed.splitlines()[1:] if line[-1:].isdigit())
    return {name.strip(): float(score) for name, score in rows}


def test_script_prints_before_and_after_on_the_embedded_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("cross_layer_equalization", SMALL, monkeypatch, tmp_path)
    printed = capsys.readouterr().out
    assert set(table(printed)) == {"float", "power-of-two U8S8", "... with CLE"}
    assert "lets no factor pass" in printed


def test_outputs_of_the_embedded_model_are_scored_for_mixed_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    names = runpy.run_path(str(EXAMPLES / "mixed_precision.py"), run_name="example")
    session = onnxruntime.InferenceSession(str(demo.model_path()), providers=["CPUExecutionProvider"])
    outputs = np.concatenate([session.run(None, sample)[0] for sample in demo.calibration_inputs(3)])
    assert names["precision"](outputs) > 0.5
    assert names["precision"](np.zeros_like(outputs)) == 0


@pytest.fixture
def own(tmp_path: Path) -> list[str]:
    """A network whose channels are uneven, with images."""
    model = parser.parse_model(RELU_NETWORK)
    del model.graph.initializer[:]
    generator = np.random.default_rng(0)
    uneven = np.array([1.0, 30.0, 0.05, 5.0], np.float32).reshape(4, 1, 1, 1)
    for name, shape, factor in (("w1", (4, 3, 3, 3), uneven), ("w2", (4, 4, 3, 3), 1 / uneven.reshape(1, 4, 1, 1))):
        values = (generator.normal(size=shape) * factor).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    onnx.save(model, tmp_path / "float.onnx")
    (tmp_path / "images").mkdir()
    for number in range(6):
        pixels = generator.integers(0, 255, (8, 8, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.png")
    return ["--model", "float.onnx", "--images", "images", "--samples", "4", "--pixel-scale", "0.01"]


@pytest.mark.parametrize("name", OWN)
def test_script_takes_a_model_and_images_of_the_users(
    name: str,
    own: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments, rows = OWN[name]
    run(name, [*own, *arguments], monkeypatch, tmp_path)
    scores = table(capsys.readouterr().out)
    assert set(scores) == rows
    assert len(list((tmp_path / "accuracy-out").glob("*.onnx"))) == len(rows)
    if name == "cross_layer_equalization":
        assert scores["... with CLE"] > scores["power-of-two U8S8"] + 3
