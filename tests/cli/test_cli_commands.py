"""Commands that look after recipes, stores, metrics and the installation."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
import scipy.stats
import yaml
from typer.testing import CliRunner

import quantry
from quantry.cli.app import app
from quantry.data.open_data import calibration_data
from quantry.data.sample_cache import SampleCache
from quantry.errors import DataError, RecipeError
from quantry.evaluate.tasks import RankCorrelation, number_labels
from quantry.graph.float_model import input_signatures
from quantry.graph.load import model_source
from quantry.notes import Note, NoteKind, grouped_notes, one_per_reason
from quantry.recipe import PRESETS, to_plain
from quantry.recipe.json_schema import recipe_schema
from test_quantize_api import float_model, images


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    onnx.save(float_model(), tmp_path / "m.onnx")
    np.save(tmp_path / "data.npy", np.concatenate(images()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, code: int = 0) -> Any:
    done = CliRunner().invoke(app, (*arguments, "--json"), catch_exceptions=False)
    printed = json.loads(done.stdout)
    assert done.exit_code == printed["exit_code"] == code
    return printed["result"]


def test_recipes_are_shown_compared_and_validated(folder: Path) -> None:
    Path("mine.yaml").write_text(CliRunner().invoke(app, ("recipe", "show", "XINT8")).stdout, encoding="utf-8")
    Path("wrong.yaml").write_text("scale: {activaton: MinMax}", encoding="utf-8")
    assert run("recipe", "diff", "XINT8", "mine.yaml")["differences"] == []
    paths = {one["path"] for one in run("recipe", "diff", "XINT8", "recommended-npu")["differences"]}
    assert "equalize.smooth" in paths
    files = run("recipe", "validate", "mine.yaml", "wrong.yaml", code=2)["files"]
    assert [file["valid"] for file in files] == [True, False]
    assert "did you mean 'activation'" in files[1]["error"]


@pytest.mark.parametrize("name", ["XINT8", "BFP16", "MATMUL_NBITS", "RECOMMENDED-CPU", "S8S8_AAWS_ADAROUND"])
def test_schema_accepts_what_the_codec_writes_and_refuses_misspelt_keys(name: str) -> None:
    plain = to_plain(PRESETS[name].recipe)
    jsonschema.validate(plain, recipe_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**plain, "scal": {}}, recipe_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**plain, "scale": {"activation": {"kind": "Percentil"}}}, recipe_schema())


def test_schema_of_searches_accepts_the_documented_file() -> None:
    text = """
    model: model.onnx
    data: images
    labels: labels.csv
    tolerance: 1%
    budget: 30min
    n_jobs: 2
    images: {scale: 1/255, mean: [0.5, 0.5, 0.5]}
    space:
      scale.activation: [MinMax, {kind: Percentile, percentile: 99.99}]
    """
    schema = run("schema", "search")
    jsonschema.validate(yaml.safe_load(text), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"model": "m.onnx", "n_trial": 3}, schema)


def test_cache_is_measured_verified_pruned_and_cleared(folder: Path) -> None:
    store = ("--store", "kept")
    quantry.quantize("m.onnx", np.load("data.npy"), "XINT8", store="kept")
    before = run("cache", "size", *store)["usage"]
    assert before["blobs"] > 0
    assert run("cache", "verify", *store)["damaged"] == []
    victim = next(Path("kept").glob("blobs/*/*/meta.json"))
    victim.write_bytes(b"damaged")
    assert len(run("cache", "verify", *store, code=3)["damaged"]) == 1
    Path("kept/mine.txt").touch()
    assert run("cache", "prune", "--to", "1kB", *store)["after"]["bytes_on_disk"] <= 1000
    run("cache", "clear", *store)
    assert run("cache", "size", *store)["usage"] == {"results": 0, "blobs": 0, "bytes_on_disk": 0}
    assert Path("kept/mine.txt").exists(), "only files of the store are deleted"


def test_doctor_finds_this_installation_healthy() -> None:
    states = {finding["what"]: finding["state"] for finding in run("doctor")["findings"]}
    assert states["onnxruntime"] == states["cache"] == "good"


def test_evaluate_compares_outputs_and_exits_with_3_beyond_the_accepted_drop(folder: Path) -> None:
    quantry.quantize("m.onnx", np.load("data.npy"), "XINT8", store=None).save("q.onnx")
    command = ("evaluate", "q.onnx", "--float", "m.onnx", "-d", "data.npy", "--metric", "l2")
    result = run(*command)
    assert result["drop"] == pytest.approx(result["model"]["score"])
    assert result["float"]["score"] == 0
    run(*command, "--max-drop", "1000")
    run(*command, "--max-drop", "0", code=3)


def test_metric_may_be_a_function_of_the_user(folder: Path) -> None:
    Path("my_metric.py").write_text("def size(path):\n    return path.stat().st_size\n", encoding="utf-8")
    result = run("evaluate", "m.onnx", "-d", "data.npy", "--metric", "my_metric:size")
    assert result["model"]["score"] == Path("m.onnx").stat().st_size
    with pytest.raises(RecipeError, match="module:function"):
        run("evaluate", "m.onnx", "-d", "data.npy", "--metric", "my_metric:siez")


def test_rank_correlation_is_that_of_scipy(folder: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[n,2] x) => (float[n,2] y) { y = Identity(x) }'
    onnx.save(onnx.parser.parse_model(text), "vectors.onnx")
    vectors = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    np.save("vectors.npy", vectors)
    scores = np.round(np.random.default_rng(1).normal(size=20), 1)
    Path("scores.csv").write_text("pair,score\n" + "\n".join(f"{i},{s}" for i, s in enumerate(scores)))
    cosine = (vectors[0::2] * vectors[1::2]).sum(1) / np.prod(np.linalg.norm(vectors.reshape(20, 2, 2), axis=2), axis=1)
    result = run("evaluate", "vectors.onnx", "-d", "vectors.npy", "--labels", "scores.csv", "--metric", "spearman")
    assert result["model"]["score"] == pytest.approx(scipy.stats.spearmanr(cosine, scores).statistic)
    data = SampleCache(calibration_data("vectors.npy", input_signatures(model_source("vectors.onnx").load())))
    with pytest.raises(DataError, match="one target per sample"):
        RankCorrelation(data, number_labels("scores.csv")[:7])(Path("vectors.onnx"))


def test_size_of_images_for_a_model_with_dynamic_sides(folder: Path) -> None:
    from PIL import Image

    model = float_model()
    for side in (2, 3):
        model.graph.input[0].type.tensor_type.shape.dim[side].dim_param = f"s{side}"
    del model.graph.value_info[:]
    onnx.save(model, "dynamic.onnx")
    Path("pictures").mkdir()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8)).save("pictures/0.png")
    command = ("quantize", "dynamic.onnx", "-d", "pictures", "--pixel-scale", "1/255", "-o", "q.onnx")
    with pytest.raises(DataError):
        run(*command)
    assert run(*command, "--size", "8x8")["written"] == ["q.onnx"]
    with pytest.raises(RecipeError, match="--size must be HEIGHTxWIDTH"):
        run(*command, "--size", "8")


def test_notes_are_grouped_with_the_important_ones_first() -> None:
    notes = grouped_notes(
        (
            Note.of("raised opset {old} to {new}", NoteKind.GRAPH, old=11, new=13),
            Note.of("SmoothQuant divided the channels of {count} tensors", NoteKind.IDLE, count=0),
            Note.of("cross-layer equalization changed {count} layers", count=65),
            *one_per_reason(
                "no cross-layer equalization after {count} layers: {reason}",
                {"no layer": 1, "Clip is not homogeneous": 27, "no reader": 3, "an output": 2},
                NoteKind.NOT_EQUALIZED,
            ),
            Note.of("replaced {count} Sigmoid nodes", NoteKind.IMPORTANT, count=1),
            *(
                Note.of("for {target}: {change}", NoteKind.TARGET, target="ort-cpu", change=change)
                for change in ("a is 1", "b is 2")
            ),
        )
    )
    assert notes == (
        "replaced 1 Sigmoid nodes",
        "cross-layer equalization changed 65 layers",
        "for ort-cpu: a is 1, b is 2",
        "33 layers not equalized: Clip is not homogeneous (27), no reader (3), an output (2), other reasons (1)",
        "graph: raised opset 11 to 13",
    )


def test_recommended_recipes_are_listed_first() -> None:
    names = [preset["name"].lower() for preset in run("presets")["presets"]]
    recommended = [name for name in names if name.startswith("recommended")]
    assert recommended
    assert all(name.startswith(("auto", "recommended")) for name in names[: len(recommended)])
