"""`quantry search` on tiny models."""

import dataclasses
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import onnxruntime
import pytest
import typer
import yaml
from PIL import Image
from typer.testing import CliRunner

import quantry
from quantry.autosearch import SearchOptions
from quantry.cli.app import app
from quantry.cli.schema import search_schema
from quantry.cli.search_job import SearchJob, load_job
from quantry.cli.search_space_file import space_from_plain
from quantry.data import ImageOptions
from quantry.errors import DataError, RecipeError
from quantry.recipe import CrossLayer, MinMax, Percentile, Recipe, load_recipe, resolve_recipe

NET = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1, 3, 6, 6] x) => (float[1, 3] y)
<float[5, 3, 3, 3] w1, float[5] b1, float[3, 5] w2, float[3] b2>
{
    c = Conv (x, w1, b1)
    r = Relu (c)
    p = GlobalAveragePool (r)
    f = Flatten (p)
    y = Gemm <transB: int = 1> (f, w2, b2)
}
"""
SHAPES = {"w1": (5, 3, 3, 3), "b1": (5,), "w2": (3, 5), "b2": (3,)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model and twelve images in three folders."""
    generator = np.random.default_rng(0)
    model = onnx.parser.parse_model(NET)
    del model.graph.initializer[:]
    for name, shape in SHAPES.items():
        values = generator.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    onnx.save(model, tmp_path / "net.onnx")
    for kind in ("a", "b", "c"):
        (tmp_path / "images" / kind).mkdir(parents=True)
        for number in range(4):
            pixels = generator.integers(0, 255, (6, 6, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / kind / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: object) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(
        app, [str(argument) for argument in arguments], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.output


def test_model_and_images_are_enough(folder: Path) -> None:
    output = run(
        "search", "net.onnx", "--data", "images", "--n-trials", 3, "--pixel-scale", "1/255", "--sampler", "grid"
    )
    assert "3 trials" in output
    assert "best: trial" in output
    assert output.count("trial 2: score") == 1
    assert "3 of 3 trials" in output
    assert "search ends after 3 trials: reached the limit of 3 trials" in output
    assert "stopped: reached the limit of 3 trials; " in output
    found = folder / "quantry_search"
    assert {"best.onnx", "recipe.yaml", "auto_search.log", "search.json"} <= {path.name for path in found.iterdir()}
    command = output.partition("quantize with its recipe: quantry ")[2].splitlines()[0]
    assert command.startswith("quantize net.onnx --data quantry_search/calibration.txt --pixel-scale=0.0039")
    calibrated = (found / "calibration.txt").read_text().splitlines()
    # Folders take turns, and every second image is for the evaluation.
    assert calibrated == [f"images/{one}.png" for one in ("a/0", "c/0", "b/1", "a/2", "c/2", "b/3")]
    # It makes the same model, under another name than the preset that the search started from.
    run(*shlex.split(command))
    (made,) = folder.glob("net.*-found-by-search.onnx")
    assert made.read_bytes() == (found / "best.onnx").read_bytes()


def test_command_to_quantize_again_has_all_image_options() -> None:
    job = SearchJob(Path("a net.onnx"), Path("d"), metric="map", images={"mean": (-1, 2.5, 3), "color": "BGR"})
    given = "--mean=-1,2.5,3 --color=BGR --resize=letterbox"
    assert job.command(Path("o/r.yaml")) == f"quantry quantize 'a net.onnx' --data d {given} --recipe o/r.yaml"


# Values above 1 are all the same to this model, so it sees nothing in pixels 0..255.
COLOURS = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1, 3, 6, 6] x) => (float[1, 3] y)
<float low = {0}, float high = {1}, float[3] b = {0.1, 0.1, 0.1},
 float[3, 3, 1, 1] w = {9, -9, -9, -9, 9, -9, -9, -9, 9}>
{
    c = Clip (x, low, high)
    d = Conv (c, w, b)
    p = GlobalAveragePool (d)
    y = Flatten (p)
}
"""


def test_labels_decide_about_pixels_that_no_option_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(onnx.parser.parse_model(COLOURS), tmp_path / "net.onnx")
    generator = np.random.default_rng(0)
    for number, kind in enumerate(("0", "1", "2")):
        (tmp_path / "images" / kind).mkdir(parents=True)
        for index in range(12):
            pixels = generator.integers(20, 120, (6, 6, 3)).astype(np.uint8)
            pixels[..., number] += 100
            Image.fromarray(pixels).save(tmp_path / "images" / kind / f"{index}.png")
    monkeypatch.chdir(tmp_path)
    trial = ("search", "net.onnx", "--data", "images", "--metric", "top1", "--n-trials", 1)
    output = run(*trial)
    assert re.search(r"--color RGB --pixel-scale \S+ .* is used: with it the float model has top1 1.0000", output)
    assert "--color=RGB" in output.split("quantize with its recipe:")[1]
    assert "float model: top1 1.0000" in output
    # What the user says counts.
    assert "is used: with it" not in run(*trial, "--pixel-scale", 1, "-o", "given")


def test_images_without_a_pixel_option_warn_first(folder: Path) -> None:
    trial = ("search", "net.onnx", "-d", "images", "--n-trials", 1, "--sampler", "grid")
    assert run(*trial).startswith("warning: images are used as RGB pixels 0..255")
    assert "images are used as" not in run(*trial, "--pixel-scale", 1)


def test_float_model_no_better_than_chance_warns(folder: Path) -> None:
    files = sorted((folder / "images").rglob("*.png"))
    session = onnxruntime.InferenceSession(folder / "net.onnx")
    rows = {"right": "", "wrong": ""}
    for file in files:
        with Image.open(file) as image:
            pixels = np.asarray(image, np.float32).transpose(2, 0, 1)[None]
        best = int(session.run(None, {"x": pixels})[0].argmax())
        name = file.relative_to(folder / "images").as_posix()
        rows["right"] += f"{name},{best}\n"
        rows["wrong"] += f"{name},{(best + 1) % 3}\n"
    printed = {}
    for kind, text in rows.items():
        (folder / f"{kind}.csv").write_text(text)
        printed[kind] = run(
            *("search", "net.onnx", "-d", "images", "--labels", f"{kind}.csv", "--pixel-scale", 1),
            *("--n-trials", 1, "--sampler", "grid", "-o", kind),
        )
    assert "no better than chance (0.3333)" in printed["wrong"]
    assert "chance" not in printed["right"]


def test_study_can_be_in_a_database(folder: Path) -> None:
    given = ("search", "net.onnx", "-d", "images", "--pixel-scale", 1, "--n-trials", 1, "--sampler", "grid")
    run(*given, "--storage", "sqlite:///mine.db")
    assert (folder / "mine.db").exists()


@pytest.mark.parametrize("form", ["files and a csv", "files and a list", "folders", "one array", "arrays of classes"])
def test_arrays_have_labels_like_images(folder: Path, form: str) -> None:
    """The float model's own answers are the labels, so that it scores 1."""
    generator = np.random.default_rng(5)
    samples = generator.normal(size=(8, 1, 3, 6, 6)).astype(np.float32)
    session = onnxruntime.InferenceSession(str(folder / "net.onnx"))
    answers = [int(session.run(None, {"x": sample})[0].argmax()) for sample in samples]
    names = [f"s{index}.npy" for index in range(8)]
    where = [f"{answer}/{name}" if form == "folders" else name for answer, name in zip(answers, names, strict=True)]
    for name, sample in zip(where, samples, strict=True):
        (folder / "arrays" / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(folder / "arrays" / name, sample)
    np.save("all.npy", samples[:, 0])
    np.save("classes.npy", np.array(answers))
    Path("list.txt").write_text("".join(f"{answer}\n" for answer in answers))
    pairs = zip(reversed(names), reversed(answers), strict=True)
    Path("labels.csv").write_text("file,label\n" + "".join(f"{name},{answer}\n" for name, answer in pairs))
    given = {
        "files and a csv": ("arrays", "--labels", "labels.csv"),
        "files and a list": ("arrays", "--labels", "list.txt"),
        "folders": ("arrays", "--metric", "top1"),
        "one array": ("all.npy", "--labels", "list.txt"),
        "arrays of classes": ("all.npy", "--labels", "classes.npy"),
    }[form]
    output = run("search", "net.onnx", "--n-trials", 1, "--recipe", "A16W8", "--data", *given)
    assert "float model: top1 1.0" in output
    command = output.partition("quantize with its recipe: quantry ")[2].splitlines()[0]
    run(*shlex.split(command))
    (made,) = folder.glob("net.*-found-by-search.onnx")
    assert made.read_bytes() == (folder / "quantry_search" / "best.onnx").read_bytes()
    run("evaluate", "net.onnx", "--data", *given)


def test_labels_of_arrays_must_name_each_of_them(folder: Path) -> None:
    (folder / "arrays").mkdir()
    for index in range(4):
        np.save(folder / "arrays" / f"{index}.npy", np.zeros((1, 3, 6, 6), np.float32))
    (folder / "labels.csv").write_text("0.npy,1\n1.npy,2\n2.npy,0\n")
    job = SearchJob(Path("net.onnx"), Path("arrays"), labels=folder / "labels.csv")
    with pytest.raises(DataError, match=r"got none for 1 of 4, such as 3.npy; in .*labels.csv"):
        job.run()
    with pytest.raises(DataError, match="ImageOptions need"):
        dataclasses.replace(job, images={"scale": "1/255"}).run()
    with pytest.raises(DataError, match="in a subfolder named after its class"):
        dataclasses.replace(job, labels=None, metric="top1").run()


def test_folders_are_labels_and_calibration_images_are_not_evaluated(folder: Path) -> None:
    output = run("search", "net.onnx", "-d", "images", "--metric", "top1", "--n-trials", 2, "--sampler", "grid")
    assert "top1" in output
    job = SearchJob(Path("net.onnx"), Path("images"), metric="top-1")
    calibration, evaluator, _ = job.evaluation_parts()
    assert (len(calibration), evaluator.size) == (3, 9)
    evaluated = [feeds["x"].tobytes() for _, feeds in evaluator.samples.read(range(9))]
    assert not {feeds["x"].tobytes() for feeds in calibration} & set(evaluated)


def test_order_of_named_classes_is_noted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SearchJob(Path("net.onnx"), Path("images"), metric="top1").evaluation_parts()
    assert "alphabetical order: 0 a, 1 b, 2 c" in capsys.readouterr().err


def test_label_out_of_range_is_an_error_before_an_earlier_search_is_touched(folder: Path) -> None:
    files = [path.relative_to(folder / "images") for path in sorted((folder / "images").rglob("*.png"))]
    (folder / "labels.csv").write_text("".join(f"{file},{30 if file == files[0] else 0}\n" for file in files))
    with pytest.raises(DataError, match=r"0 to 2, got 30 for 0.png; in .*labels.csv"):
        SearchJob(
            Path("net.onnx"),
            Path("images"),
            labels=folder / "labels.csv",
            options=SearchOptions(output_dir=folder / "found"),
        ).run()
    assert not (folder / "found").exists()


def test_separate_evaluation_data_leave_all_data_for_calibration(folder: Path) -> None:
    job = SearchJob(Path("net.onnx"), Path("images/a"), Path("images"), metric="top5")
    calibration, evaluator, _ = job.evaluation_parts()
    assert (len(calibration), evaluator.size, evaluator.k) == (4, 12, 5)


@pytest.mark.parametrize("images", [{"scale": 1.0}, ImageOptions(scale=1.0)], ids=["dict", "options"])
def test_python_takes_labels_like_the_command(folder: Path, images: Any) -> None:
    files = [path.relative_to(folder / "images").as_posix() for path in sorted((folder / "images").rglob("*.png"))]
    (folder / "labels.csv").write_text("".join(f"{file},{index % 3}\n" for index, file in enumerate(files)))
    given: dict[str, Any] = {"labels": folder / "labels.csv", "images": images, "n_trials": 1}
    found = quantry.search(folder / "net.onnx", folder / "images", **given, output_dir=folder / "python")
    options = ("--labels", "labels.csv", "--pixel-scale", 1, "--n-trials", 1, "-o", "cli")
    run("search", "net.onnx", "-d", "images", *options)
    assert found.metric == "top-1"
    read = [json.loads((folder / name / "search.json").read_text())["trials"][0] for name in ("python", "cli")]
    assert read[0]["score"] == read[1]["score"]


def test_coco_file_implies_a_detector(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = sorted(path.name for path in (folder / "images" / "a").iterdir())
    boxes = {
        "images": [{"id": index, "file_name": name, "width": 6, "height": 6} for index, name in enumerate(names)],
        "annotations": [{"id": 1, "image_id": 0, "category_id": 1, "bbox": [1, 1, 3, 3], "area": 9, "iscrowd": 0}],
        "categories": [{"id": 1, "name": "thing"}],
    }
    (folder / "boxes.json").write_text(json.dumps(boxes))
    job = SearchJob(Path("net.onnx"), Path("images/a"), labels=folder / "boxes.json")
    assert job.metric_name == "map"
    assert job.image_options().resize == "letterbox"
    calibration, evaluator, _ = job.evaluation_parts()
    assert "--resize letterbox" in capsys.readouterr().err
    assert (len(calibration), len(evaluator.labels.images)) == (1, 3)


def test_file_describes_the_whole_search(folder: Path) -> None:
    config = {
        "model": "net.onnx",
        "data": "images",
        "metric": "cosine",
        "recipe": "CPU_INT8",
        "space": {
            "scale.activation": ["MinMax", {"kind": "Percentile", "percentile": 99.5}],
            "equalize.cross_layer": [None, "CrossLayer"],
        },
        "sampler": "grid",
        "tolerance": "10%",
        "n_jobs": 1,
        "output_dir": "found",
    }
    (folder / "search.yaml").write_text(yaml.safe_dump(config))
    output = run("search", "search.yaml")
    assert "4 trials" in output
    assert load_recipe(folder / "found" / "recipe.yaml").plan.weight.granularity is not None
    assert "search resumes" not in (folder / "found" / "auto_search.log").read_text()
    again = run("search", "search.yaml")
    assert "4 trials" in again
    assert (folder / "found" / "auto_search.log").read_text().count("trial 0: complete") <= 2


def test_spaces_in_files_have_conditions_and_ranges() -> None:
    base = Recipe()
    space = space_from_plain(
        {
            "equalize.cross_layer": [None, "CrossLayer"],
            "scale.activation": {
                "values": ["MinMax", {"kind": "Percentile"}],
                "only_if": {"equalize.cross_layer": None},
            },
        },
        base,
    )
    assert [dict(assignment) for assignment in space.assignments()] == [
        {"equalize.cross_layer": None, "scale.activation": MinMax()},
        {"equalize.cross_layer": None, "scale.activation": Percentile()},
        {"equalize.cross_layer": CrossLayer()},
    ]
    tuned = load_plain_recipe({"tune": {"steps": [{"kind": "AdaRound"}]}})
    ranged = space_from_plain({"tune.steps.0.learning_rate": {"low": "1e-3", "high": 0.5, "log": True}}, tuned)
    assert not ranged.is_finite
    both = space_from_plain([{"scale.reduce_range": [True]}, {"scale.reduce_range": [False]}], base)
    assert len(both.spaces) == 2


def test_spaces_in_files_can_set_what_comes_first() -> None:
    tuned = load_plain_recipe({"tune": {"steps": [{"kind": "AdaRound"}]}})
    plain = {
        "equalize.cross_layer": [None, "CrossLayer"],
        "tune.steps.0.learning_rate": {"low": "1e-3", "high": 0.5, "log": True},
        "scale.activation": {"values": ["MinMax", {"kind": "Percentile"}], "only_if": {"equalize.cross_layer": None}},
        "first": [
            {"equalize.cross_layer": "CrossLayer", "tune.steps.0.learning_rate": "1e-2"},
            {"equalize.cross_layer": None, "tune.steps.0.learning_rate": 0.5, "scale.activation": "Percentile"},
        ],
    }
    space = space_from_plain(plain, tuned)
    assert [dict(assignment) for assignment in space.first] == [
        {"equalize.cross_layer": CrossLayer(), "tune.steps.0.learning_rate": 0.01},
        {"equalize.cross_layer": None, "tune.steps.0.learning_rate": 0.5, "scale.activation": Percentile()},
    ]


def test_values_can_be_inside_the_value_of_another_parameter() -> None:
    tuned = load_plain_recipe({"tune": {"steps": [{"kind": "AdaRound"}]}})
    gptq = {"only_if": {"tune.steps.0": "Gptq"}}
    plain = {
        "tune.steps.0": ["AdaRound", "Gptq"],
        "tune.steps.0.block_size": {"low": 32, "high": 128, "step": 32, **gptq},
        "tune.steps.0.damping": {"values": [0.01, 0.1], **gptq},
        "first": [{"tune.steps.0": "Gptq", "tune.steps.0.block_size": 64, "tune.steps.0.damping": 0.1}],
    }
    space = space_from_plain(plain, tuned)
    (step,) = space.build(space.first[0]).tune.steps
    assert (step.block_size, step.damping) == (64, 0.1)


def load_plain_recipe(plain: dict) -> Recipe:
    from quantry.recipe import from_plain

    return from_plain(plain)


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"scale.activatoin": ["MinMax"]}, "activation"),
        ({"scale.activation": "MinMax"}, r"write \['MinMax'\]"),
        ({"scale.activation": ["MinMux"]}, "MinMax"),
        ({"scale.activation": {"low": 1}}, "low and high"),
        ({"scale.activation": {"vals": [1]}}, "must hold"),
        ({"scale.activation": {"values": "MinMax"}}, "values of scale.activation of a space must be a list"),
        ({"scale.activation": {"values": ["MinMax"], "only_if": ["x"]}}, "must map paths to values"),
        ({"equalize.cross_layer.steps": {"low": 1, "high": 3, "step": "x"}}, "numbers, got 'x'"),
        ({"tune.steps.x": ["Gptq"]}, "by its index, got 'tune.steps.x'"),
        ({"tune.steps.7": ["Gptq"]}, "by its index, got 'tune.steps.7'"),
        ({}, "mapping of recipe paths"),
        ({"first": []}, "besides 'first'"),
        ({"frist": []}, "did you mean 'first'"),
        ({"scale.activation": ["MinMax"], "first": False}, "list of mappings"),
        ({"scale.reduce_range": [True], "first": [{"scale.reduce_range": 1}]}, "must be bool, got 1"),
        ({"scale.activation": ["MinMax"], "first": "MinMax"}, "list of mappings"),
        (
            {"scale.activation": ["MinMax"], "first": [{"scale.activation": "MinMSE"}]},
            "one of its parameter's values",
        ),
        (
            {"scale.activation": ["MinMax"], "first": [{"scale.activatoin": "MinMax"}]},
            r"each of \['scale.activation'\]",
        ),
    ],
)
def test_mistakes_in_a_space_are_errors(plain: dict, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        space_from_plain(plain, Recipe())


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"modle": "x"}, "did you mean 'model'"),
        ({"data": "x"}, "must name the model"),
        ({"model": "m", "jobs": 2}, "did you mean 'n_jobs'"),
        ({"model": "m", "n_jobs": "two"}, "n_jobs must be a whole number, at least 1, got 'two'"),
        ({"model": "m", "seed": True}, "seed must be a whole number"),
        ({"model": "m", "trial_timeout": "5min"}, "trial_timeout must be a number of seconds"),
        ({"model": "m", "racing": "no"}, "racing must be true or false"),
        ({"model": "m", "objectives": {"latency": 1}}, "objectives must be a list"),
        ({"model": "m", "images": [1]}, r"^images must be a mapping, got \[1\]; in .*search.yaml"),
        ({"model": "m", "metric": 3}, "^metric must be text, got 3; in "),
        ([1], "mapping"),
    ],
)
def test_mistakes_in_a_configuration_are_errors(tmp_path: Path, plain: object, message: str) -> None:
    path = tmp_path / "search.yaml"
    path.write_text(yaml.safe_dump(plain))
    with pytest.raises(RecipeError, match=message):
        load_job(path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"decoder": "yolo9"}, "a decoder must be one of"),
        ({"calibration_samples": 8}, "calibration_samples needs labelled images"),
        ({"images": {"scale": "1/0"}}, "images.scale must be a number"),
    ],
)
def test_options_without_effect_or_with_invalid_values_are_rejected(fields: dict, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        SearchJob(model=Path("m.onnx"), data=Path("images"), **fields).run()


def test_fractions_in_a_configuration_are_numbers() -> None:
    assert SearchJob(model=Path("m.onnx"), images={"scale": "1/255"}).image_options().scale == 1 / 255


def test_negative_tolerance_is_rejected_and_seconds_need_no_unit(folder: Path) -> None:
    with pytest.raises(RecipeError, match="at least 0"):
        SearchJob(Path("net.onnx"), Path("images"), options=SearchOptions(tolerance="-0.5")).run()
    run("search", "net.onnx", "-d", "images", "--budget", "30", "--n-trials", 1, "--pixel-scale", 1)


def test_labels_and_metrics_must_match(folder: Path) -> None:
    (folder / "labels.csv").write_text("a/0.png,0\n")
    with pytest.raises(RecipeError, match="labels need"):
        SearchJob(Path("net.onnx"), Path("images"), labels=folder / "labels.csv", metric="l2").run()
    with pytest.raises(DataError, match="needs a COCO file"):
        SearchJob(Path("net.onnx"), Path("images"), metric="map").run()
    with pytest.raises(DataError, match="must be given"):
        SearchJob(Path("net.onnx"), metric="top1").run()
    with pytest.raises(RecipeError, match="did you mean 'color'"):
        SearchJob(Path("net.onnx"), Path("images"), metric="top1", images={"colour": "RGB"}).run()


def test_documented_configuration_works_and_lists_all_keys() -> None:
    page = (Path(__file__).parents[1] / "docs" / "search.md").read_text()
    plain = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    job = SearchJob.from_plain(plain, Path())
    assert job.image_options().resize == "center-crop"
    base, _ = resolve_recipe(job.recipe)
    space = space_from_plain(job.space, base)
    assert len(list(space.assignments())) == 3 * (1 + 2)
    assert len({space.build(assignment) for assignment in space.assignments()}) == 9
    keys = page.partition("Keys: ")[2].partition("Ranges are")[0]
    names = {part.name for part in dataclasses.fields(SearchJob)} - {"options"}
    assert names == set(re.findall(r"`(\w+)`", keys))
    table = re.findall(r"^\| (`.*?) \|", page.partition("\n## Options\n")[2].partition("\n## ")[0], re.MULTILINE)
    assert {name for row in table for name in re.findall(r"`(\w+)`", row)} == set(SearchOptions.names())
    schema = search_schema()
    assert set(schema["properties"]) == names | set(SearchOptions.names())
    jsonschema.validate({**plain, "n_trials": -1}, schema)
    with pytest.raises(jsonschema.ValidationError, match="0"):
        jsonschema.validate({**plain, "n_trials": 0}, schema)


def test_space_can_be_given_by_name(folder: Path) -> None:
    run("search", "net.onnx", "--data", "images", "--space", "accuracy", "--sampler", "grid", "-o", "out")
    trials = json.loads(Path("out/search.json").read_text())["trials"]
    assert {"equalize", "scale.activation", "tune.steps"} <= trials[0]["assignment"].keys()
    assert len(trials) > 5


def test_unknown_space_names_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean 'accuracy'"):
        space_from_plain("acuracy", Recipe())


def test_options_override_a_configuration_file(folder: Path) -> None:
    plain = {
        "model": "net.onnx",
        "data": "images",
        "images": {"scale": "1/255", "color": "BGR"},
        "output_dir": "theirs",
    }
    Path("search.yaml").write_text(yaml.safe_dump({**plain, "output_dir": "theirs", "n_trials": 5, "sampler": "grid"}))
    output = run("search", "search.yaml", "--n-trials", 2, "-o", "mine", "--pixel-scale", 1, "--tolerance", 1e6)
    assert "2 trials" in output
    assert "--color=BGR --pixel-scale=1.0" in output
    assert (folder / "mine" / "best.onnx").exists()
    assert not (folder / "theirs").exists()


def test_space_can_be_in_a_file(folder: Path) -> None:
    space = {"scale.activation": ["MinMax", "MinMSE"]}
    Path("alone.yaml").write_text(yaml.safe_dump(space))
    Path("whole.yaml").write_text(yaml.safe_dump({"model": "net.onnx", "space": space}))
    Path("named.yaml").write_text(yaml.safe_dump({"model": "net.onnx", "space": "alone.yaml"}))
    for given in ("alone.yaml", "whole.yaml", load_job(folder / "named.yaml").space):
        assert len(list(space_from_plain(given, Recipe()).assignments())) == 2
    Path("empty.yaml").write_text("")
    with pytest.raises(RecipeError, match=r"must hold a space.*empty\.yaml"):
        space_from_plain("empty.yaml", Recipe())


def test_errors_in_a_configuration_name_the_file(folder: Path) -> None:
    Path("search.yaml").write_text("model: net.onnx\nn_jobs: two\n")
    with pytest.raises(RecipeError, match=r"got 'two'; in search\.yaml"):
        load_job(Path("search.yaml"))
    Path("search.yaml").write_text("model: [")
    with pytest.raises(RecipeError) as raised:
        load_job(Path("search.yaml"))
    assert "unicode string" not in str(raised.value)


def test_report_is_imported_before_the_search(folder: Path) -> None:
    program = """
import sys
from pathlib import Path
from quantry.cli import search_job
from quantry.autosearch import SearchOptions
from quantry.cli.app import app

def run(job):
    sys.exit(0 if {"quantry.report", "quantry.evaluate.tasks"} <= sys.modules.keys() else 3)

search_job.SearchJob.run = run
app(["search", "net.onnx", "--data", "images"])
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=folder)


def test_calibration_arrays_are_written_for_the_command(folder: Path) -> None:
    generator = np.random.default_rng(1)
    np.save("data.npy", generator.normal(size=(6, 3, 6, 6)).astype(np.float32))
    output = run("search", "net.onnx", "--data", "data.npy", "--n-trials", 1, "--sampler", "grid")
    command = output.partition("quantize with its recipe: quantry ")[2].splitlines()[0]
    run(*shlex.split(command), "-o", "again.onnx")
    assert Path("again.onnx").read_bytes() == Path("quantry_search/best.onnx").read_bytes()


def test_every_search_option_is_an_option_of_the_command(folder: Path) -> None:
    command = typer.main.get_command(app).commands["search"]  # type: ignore[attr-defined]
    flags = {flag for parameter in command.params for flag in parameter.opts}
    assert {f"--{name.replace('_', '-')}" for name in SearchOptions.names()} <= flags


def test_nothing_within_tolerance_says_what_limits_it_and_what_is_next(folder: Path) -> None:
    arguments = ["search", "net.onnx", "--data", "images", "--pixel-scale", "1/255", "--n-trials", "2"]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*arguments, "--tolerance", "0"], catch_exceptions=False)
    assert result.exit_code == 3, result.output
    assert "not good enough: the best, trial" in result.output
    assert "limited by: " in result.output
    command = result.output.rpartition("next: continue with more trials\n")[2].split("\n")[0].strip()
    assert shlex.split(command)[:3] == ["quantry", "search", "net.onnx"]
    assert "--n-trials=6" in command
    again = CliRunner().invoke(app, shlex.split(command)[1:], catch_exceptions=False)
    assert again.exit_code == 3
    assert "search resumes after 2 finished trials" in (folder / "quantry_search" / "auto_search.log").read_text()


def test_failed_trials_are_shown_and_are_no_success(folder: Path) -> None:
    (folder / "mine.py").write_text("def score(path):\n    return 1.0 if str(path) == 'net.onnx' else float('inf')\n")
    arguments = ["search", "net.onnx", "--data", "images", "--pixel-scale", "1/255", "--metric", "mine:score"]
    result = CliRunner().invoke(app, [*arguments, "--n-trials", "1", "--json"], catch_exceptions=False)
    assert result.exit_code == 3, result.output
    assert "failed: RecipeError: an evaluator must return a number that is finite, got inf" in result.stderr
    written = json.loads(result.stdout)
    assert written["result"]["advice"]["missing"] == "no trial could be evaluated: 1 of 1 failed"
