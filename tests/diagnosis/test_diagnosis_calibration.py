"""The check of calibration data: number of samples, similarity, colour order and pixel values."""

import json
import shutil
from itertools import combinations
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from PIL import Image
from typer.testing import CliRunner

import quantry
from quantry.cli.app import app
from quantry.diagnosis.calibration import expected_largest
from quantry.recipe import Recipe

# What the classifier below was "trained" on: one mean colour per class, pixels 0..1 in RGB, a little noise.
COLOURS = np.array(
    [[0.9, 0.5, 0.1], [0.2, 0.8, 0.3], [0.6, 0.6, 0.05], [0.35, 0.2, 0.1], [0.8, 0.75, 0.5], [0.5, 0.3, 0.02]]
)
NOISE = 0.15


def classifier() -> onnx.ModelProto:
    """Scores fall with the distance from the colour of a class, so it is certain of nothing that it does not know."""
    text = """
    <ir_version: 8, opset_import: ["": 17]> g (float[1,3,16,16] x) => (float[1,6] y)
    { a = Conv(x, eye, zero)  p = GlobalAveragePool(a)  f = Flatten(p)  m = Gemm(f, w, b)
      s = ReduceSumSquare<axes=[1]>(f)  h = Mul(s, half)  d = Sub(m, h)  e = Exp(d)  y = Mul(e, eight) }
    """
    model = onnx.parser.parse_model(text)
    arrays = {
        "eye": np.eye(3)[:, :, None, None],
        "zero": np.full(3, 0.01),
        "w": COLOURS.T / NOISE**2,
        "b": -np.square(COLOURS).sum(axis=1) / 2 / NOISE**2,
        "half": np.array(0.5 / NOISE**2),
        "eight": np.array(8.0),
    }
    model.graph.initializer.extend(
        numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()
    )
    return model


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for number in range(18):
        colour = COLOURS[number % 6] + rng.normal(0, 0.04, 3)
        picture = colour + rng.normal(0, 0.05, (16, 16, 3))
        Image.fromarray((255 * np.clip(picture, 0, 1)).astype(np.uint8)).save(folder / f"{number:02}.png")
    return folder


def checked(folder: Path, **images: object) -> quantry.CalibrationCheck:
    options = quantry.ImageOptions(**images)
    result = quantry.quantize(classifier(), folder, Recipe(), images=options, store=None)
    check = quantry.check_calibration(result)
    assert check is not None
    first = quantry.diagnose(result).findings[:1]
    assert first[:1] == check.findings[:1]
    return check


def test_right_images_have_no_finding(pictures: Path) -> None:
    check = checked(pictures, scale=1 / 255)
    assert check.findings == ()
    assert check.pixels is not None
    assert check.pixels.better is None
    assert check.pixels.current.certainty == max(
        one.certainty for one in (check.pixels.current, *check.pixels.alternatives)
    )


def test_images_in_folders_of_classes_have_no_finding(pictures: Path, tmp_path: Path) -> None:
    # 24 of each class: those of the first folder alone would look as if the model could not tell images apart.
    for number in range(144):
        folder = tmp_path / f"class{number % 6}"
        folder.mkdir(exist_ok=True)
        shutil.copy(pictures / f"{number % 18:02}.png", folder / f"{number:03}.png")
    assert checked(tmp_path, scale=1 / 255).findings == ()


def test_wrong_colour_order_is_the_first_finding_with_the_options_to_use(pictures: Path) -> None:
    check = checked(pictures, scale=1 / 255, color="BGR")
    assert "colour order of the images looks wrong" in check.findings[0].title
    assert "--color RGB --pixel-scale 1/255" in check.findings[0].fix


@pytest.mark.parametrize("scale", [1.0, 1 / 64])
def test_wrong_pixel_scale_is_the_first_finding(pictures: Path, scale: float) -> None:
    check = checked(pictures, scale=scale)
    assert "pixel values of the images look wrong" in check.findings[0].title
    assert "--color RGB --pixel-scale 1/255" in check.findings[0].fix


def test_arrays_are_not_taken_for_images() -> None:
    data = [*np.random.default_rng(0).random((8, 1, 3, 16, 16)).astype(np.float32)]
    check = quantry.check_calibration(quantry.quantize(classifier(), data, Recipe(), store=None))
    assert check is not None
    assert check.pixels is None


def test_without_calibration_there_is_nothing_to_check() -> None:
    result = quantry.quantize(classifier(), np.zeros((1, 1, 3, 16, 16), np.float32), "UINT8_DYNAMIC_QUANT", store=None)
    assert quantry.check_calibration(result) is None


@pytest.mark.parametrize("taken", [1, 2, 4, 5])
def test_expected_largest_is_the_mean_over_all_choices(taken: int) -> None:
    values = np.random.default_rng(1).exponential(size=5)
    expected = np.mean([max(chosen) for chosen in combinations(values, taken)])
    assert expected_largest(values, taken) == pytest.approx(expected)


def test_values_outside_and_similarity_are_those_of_the_values() -> None:
    rng = np.random.default_rng(2)
    fitted, later = rng.random((2, 20, 1, 3, 16, 16)).astype(np.float32)
    later[:, :, :, 0, 0] += 3
    result = quantry.quantize(classifier(), fitted, Recipe(), evaluation_data=later, store=None)
    check = quantry.check_calibration(result)
    assert check is not None
    assert check.evaluated == 20
    assert "x" in check.exceeded
    assert "outside" in check.findings[0].title
    assert check.similarity is not None
    assert 0.8 < check.similarity < 1
    same = quantry.check_calibration(
        quantry.quantize(classifier(), fitted, Recipe(), evaluation_data=fitted.copy(), store=None)
    )
    assert same is not None
    assert (same.outside, same.similarity, same.findings) == (0, pytest.approx(1), ())
    assert same.settled_after is not None
    assert same.settled_after < 10


def test_command_checks_the_data_and_names_the_options(pictures: Path, tmp_path: Path) -> None:
    model = tmp_path / "colours.onnx"
    onnx.save(classifier(), model)
    arguments = ["diagnose", str(model), "--data", str(pictures), "--store", "none", "--calibration", "--json"]
    runner = CliRunner()
    wrong = runner.invoke(app, [*arguments, "--pixel-scale", "1/255", "--color", "BGR"])
    assert wrong.exit_code == 3
    assert "--color RGB --pixel-scale 1/255" in json.loads(wrong.stdout)["result"]["findings"][0]["fix"]
    right = runner.invoke(app, [*arguments, "--pixel-scale", "1/255"])
    assert right.exit_code == 0
    assert json.loads(right.stdout)["result"]["findings"] == []


def test_without_pixel_options_the_likely_ones_are_named(pictures: Path, tmp_path: Path) -> None:
    model = tmp_path / "colours.onnx"
    onnx.save(classifier(), model)
    result = CliRunner().invoke(
        app, ["quantize", str(model), "--data", str(pictures), "-o", str(tmp_path / "q.onnx"), "-p", "S8S8_AAWS"]
    )
    assert "probably it was trained with --color RGB --pixel-scale 1/255" in " ".join(result.stderr.split())
