"""`quantry demo` and the examples of automatic search, in small forms."""

import contextlib
import io
import json
import runpy
import sys
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from quantry.cli import demo as command
from quantry.cli.app import app
from quantry.cli.json_schemas import output_schema
from quantry.errors import RecipeError
from quantry.recipe import load_recipe

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_demo_ends_with_the_table_the_model_and_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = command.TARGETS["npu"][1]
    short = {name: values[:1] for name, values in fields.items()} | {
        "prepare.npu.sigmoid_to_hard_sigmoid": [True, False]
    }
    monkeypatch.setitem(command.TARGETS, "npu", ("XINT8", short))
    arguments = ["demo", "-o", str(tmp_path), "--scenes", "6", "--samples", "2", "--jobs", "1", "--target", "npu"]
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert "2 trials; float model: mAP" in result.output
    assert "best: trial" in result.output
    assert (tmp_path / "npu" / "best.onnx").exists()
    assert load_recipe(tmp_path / "npu" / "recipe.yaml").scale.npu is not None
    # The same again is resumed, so that it costs nothing.
    again = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    jsonschema.validate(json.loads(again.stdout), output_schema("demo"))


def test_presets_of_the_demo_are_a_table_and_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "RECIPES", command.RECIPES[:1])
    arguments = ["demo", "--presets", "-o", str(tmp_path), "--scenes", "3", "--samples", "2", "--json"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    printed = json.loads(done.stdout)
    jsonschema.validate(printed, output_schema("demo"))
    assert [row["recipe"] for row in printed["result"]["presets"]] == ["float", command.NAIVE.name]


@pytest.mark.parametrize("target", command.TARGETS)
def test_every_configuration_of_the_demo_is_valid(target: str) -> None:
    space = command._space(target)
    recipes = {space.build(assignment) for assignment in space.assignments()}
    assert len(recipes) == len(list(space.assignments())) >= 16


def test_an_unknown_target_raises() -> None:
    from quantry.errors import RecipeError

    with pytest.raises(RecipeError, match="did you mean 'npu'"):
        command._space("npus")


def test_detector_example_runs_on_the_embedded_model(tmp_path: Path) -> None:
    script = EXAMPLES / "auto_search_detector" / "quark_quantize.py"
    arguments = ["--scenes", "4", "--samples", "1", "--trials", "1"]
    done = _run([str(script), *arguments], tmp_path)
    assert "difference" in done
    assert (tmp_path / "auto_search_detector" / "best.onnx").exists()


@pytest.mark.parametrize("form", ["plain", "two-stage", "advanced", "joint"])
def test_example_runs_in_every_form(tmp_path: Path, form: str, small_model: list[str]) -> None:
    script = EXAMPLES / "auto_search" / "auto_search.py"
    done = _run([str(script), form, *small_model, "--samples", "2", "--iterations", "2", "--trials", "2"], tmp_path)
    assert "difference" in done
    assert "computed" in done


@pytest.fixture
def small_model(tmp_path: Path) -> list[str]:
    import numpy as np
    import onnx

    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[1, 3, 6, 6] x) => (float[1, 4, 1, 1] y) <float[4, 3, 3, 3] w, float[4] b>
    { c = Conv (x, w, b) r = Relu (c) y = GlobalAveragePool (r) }
    """
    model = onnx.parser.parse_model(text)
    generator = np.random.default_rng(0)
    del model.graph.initializer[:]
    for name, shape in {"w": (4, 3, 3, 3), "b": (4,)}.items():
        values = generator.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    onnx.save(model, tmp_path / "net.onnx")
    np.save(tmp_path / "data.npy", generator.normal(size=(3, 3, 6, 6)).astype(np.float32))
    return ["--model", str(tmp_path / "net.onnx"), "--data", str(tmp_path / "data.npy")]


def _run(arguments: list[str], folder: Path) -> str:
    """Run a script in this process, which has the libraries loaded already, and return what it prints."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.chdir(folder)
        patch.setattr(sys, "argv", arguments)
        runpy.run_path(arguments[0], run_name="__main__")
    return printed.getvalue()


@pytest.mark.parametrize("option", ["--scenes", "--samples", "--jobs"])
def test_counts_below_one_raise_before_any_work(option: str) -> None:
    with pytest.raises(RecipeError, match=f"{option} must be at least 1, got 0"):
        CliRunner().invoke(app, ["demo", option, "0"], catch_exceptions=False)
