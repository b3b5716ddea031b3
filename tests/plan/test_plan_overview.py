"""`quantry nodes` and the overview that it prints."""

import json
from pathlib import Path

import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

from quantry.cli.app import app
from quantry.errors import RecipeError
from quantry.recipe import DataType, LayerTypes, PlanOptions, Recipe, TensorSpec, save_recipe

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[N,4,6,6] x) => (float[N,4,6,6] y) {
    [first] a = Conv(x, w, b)
    [relu] r = Relu(a)
    [second] c = Conv(r, v, d)
    [power] e = Exp(r)
    [sum] s = Add(c, e)
    [third] y = Conv(s, u)
}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    import numpy as np

    proto = onnx.parser.parse_model(TEXT)
    for name, shape in {"w": (4, 4, 1, 1), "b": (4,), "v": (4, 4, 1, 1), "d": (4,), "u": (4, 4, 1, 1)}.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    onnx.save(proto, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def printed(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["nodes", *map(str, arguments)], env={"COLUMNS": "200"}, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_nodes_are_listed_with_types_and_reasons(model: Path) -> None:
    text = printed(model)
    assert "6 nodes, 1 of them float" in text
    assert "spans orders of magnitude" in text


def test_types_of_single_layers_are_shown(model: Path, tmp_path: Path) -> None:
    wide = TensorSpec(DataType.INT16)
    recipe = Recipe(plan=PlanOptions(layers=(LayerTypes(("second",), activation=wide, weight=wide),)))
    save_recipe(recipe, tmp_path / "recipe.yaml")
    rows = {
        row["node"]: row
        for row in json.loads(printed(model, "--recipe", tmp_path / "recipe.yaml", "--json"))["result"]["nodes"]
    }
    assert rows["first"]["reads"] == ["int8"]
    assert rows["first"]["constants"] == ["int8", "int32"]
    assert rows["first"]["writes"] == []
    assert rows["second"]["reads"] == ["int16"]
    assert rows["second"]["constants"] == ["int16", "int32"]
    assert rows["second"]["outputs"] == ["c"]


def test_only_float_nodes_can_be_asked_for(model: Path) -> None:
    rows = json.loads(printed(model, "--float", "--json"))["result"]["nodes"]
    assert [row["node"] for row in rows] == ["power"]
    assert rows[0]["reason"]


def test_preset_and_recipe_together_are_refused(model: Path) -> None:
    with pytest.raises(RecipeError, match="not both"):
        printed(model, "--preset", "XINT8", "--recipe", "r.yaml")


def test_recipe_may_be_the_name_of_a_preset(model: Path) -> None:
    assert printed(model, "--recipe", "XINT8", "--json") == printed(model, "--preset", "XINT8", "--json")


def test_names_stay_whole_where_the_table_is_not_for_a_terminal(model: Path, tmp_path: Path) -> None:
    proto = onnx.load(model)
    name = "/backbone/" + "very_long_name/" * 12 + "Conv"
    proto.graph.node[0].name = name
    onnx.save(proto, tmp_path / "long.onnx")
    outcome = CliRunner().invoke(app, ["nodes", str(tmp_path / "long.onnx")], env={"COLUMNS": "80"})
    assert name in outcome.output
