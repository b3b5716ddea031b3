"""The native API as the README shows it, and what it says to bad input."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from PIL import Image

import quantry
from quantry.errors import (
    DataError,
    InternalError,
    ModelError,
    ModelNotFoundError,
    RecipeError,
    SelectionError,
    StoreError,
    UserError,
)
from quantry.notes import Note
from quantry.quantization import default_store_path
from quantry.recipe import (
    EvaluateOptions,
    ObserveOptions,
    PlanOptions,
    Recipe,
    Selection,
    save_recipe,
    to_plain,
)

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3,8,8] image) => (float[N,5] classes) {
    [conv] t = Conv<pads = [1,1,1,1]>(image, w, b)
    [relu] r = Relu(t)
    [pool] p = GlobalAveragePool(r)
    [flat] f = Flatten(p)
    [exp] e = Exp(f)
    [fc] classes = Gemm<transB = 1>(e, v, c)
}
"""
SHAPES = {"w": (4, 3, 3, 3), "b": (4,), "v": (5, 4), "c": (5,)}


def float_model() -> onnx.ModelProto:
    rng = np.random.default_rng(7)
    model = onnx.parser.parse_model(TEXT)
    for name, shape in SHAPES.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    return model


def images(count: int = 4) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.normal(size=(1, 3, 8, 8)).astype(np.float32) for _ in range(count)]


class Reader:
    """What onnxruntime calls a calibration data reader."""

    def __init__(self) -> None:
        self._samples = iter([{"image": image} for image in images()])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._samples, None)


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(float_model(), path)
    return path


def test_readme_snippet_quantizes_evaluates_and_saves(model_file: Path) -> None:
    result = quantry.quantize(model_file, data=Reader(), recipe="S8S8_AAWS")
    target = model_file.with_name("model.int8.onnx")
    assert result.save(target) == (target,)
    assert target.read_bytes() == result.to_bytes()

    assert result.evaluation.samples == 4
    assert result.evaluation.metrics["sqnr"].value > 20
    assert result.trace.entries[0].stage == "prepare"
    assert result.trace.computed("observe") == 1
    assert result.trace.computed("evaluate") == 1
    assert [(entry.node, entry.operator) for entry in result.declined] == [("exp", "Exp")]
    assert result.declined[0].reason
    assert all(isinstance(note, Note) and str(note) for note in result.notes)
    assert set(result.plan.activations) <= set(result.params.tensors)
    (output,) = ort.InferenceSession(target).run(None, {"image": images()[0]})
    assert output.shape == (1, 5)


def test_results_print_short() -> None:
    result = quantry.quantize(float_model(), images(), "XINT8", store=None)
    assert repr(result).startswith(f"QuantizationResult('XINT8', {len(result.notes)} notes, Trace(prepare computed, ")
    assert len(repr(result)) < 250
    assert repr(result.evaluation).startswith("Evaluation(4 samples, l2 ")
    assert len(repr(result.evaluation)) < 150


def test_result_tells_what_the_preset_does_not_do_yet(model_file: Path) -> None:
    pending = {name: preset.pending for name, preset in quantry.recipe.PRESETS.items() if preset.pending}
    for name, missing in list(pending.items())[:1]:
        notes = quantry.quantize(model_file, images(), name).notes
        assert all(any(part in str(note) for note in notes) for part in missing)


def test_model_may_be_a_path_bytes_a_proto_or_a_graph(model_file: Path) -> None:
    proto = float_model()
    forms: list[Any] = [model_file, str(model_file), proto.SerializeToString(), proto, ir.from_proto(proto)]
    results = {quantry.quantize(form, images(), "XINT8", store=None).to_bytes() for form in forms}
    assert len(results) == 1


def test_graph_that_was_passed_in_is_not_edited() -> None:
    proto, graph = float_model(), ir.from_proto(float_model())
    before = proto.SerializeToString(), ir.to_proto(graph).SerializeToString()
    quantry.quantize(proto, images(), "XINT8", store=None)
    quantry.quantize(graph, images(), "XINT8", store=None)
    assert (proto.SerializeToString(), ir.to_proto(graph).SerializeToString()) == before


def test_recipe_may_be_a_value_a_name_a_file_or_plain_data(tmp_path: Path) -> None:
    recipe = quantry.recipe.PRESETS["XINT8"].recipe
    for name in ("recipe.yaml", "recipe.json"):
        save_recipe(recipe, tmp_path / name)
    forms: list[Any] = [
        recipe,
        "XINT8",
        "xint8",
        tmp_path / "recipe.yaml",
        str(tmp_path / "recipe.json"),
        to_plain(recipe),
    ]
    results = {quantry.quantize(float_model(), images(), form, store=None).to_bytes() for form in forms}
    assert len(results) == 1


def test_data_may_be_samples_arrays_files_or_a_reader(tmp_path: Path) -> None:
    stacked = np.concatenate(images())
    np.save(tmp_path / "all.npy", stacked)
    np.savez(tmp_path / "all.npz", image=stacked)
    folder = tmp_path / "samples"
    folder.mkdir()
    for index, image in enumerate(images()):
        np.save(folder / f"{index}.npy", image)
    forms: list[Any] = [
        images(),
        [{"image": image} for image in images()],
        stacked,
        {"image": stacked},
        (image for image in images()),
        Reader(),
        tmp_path / "all.npy",
        tmp_path / "all.npz",
        folder,
    ]
    results = {quantry.quantize(float_model(), form, "XINT8", store=None).to_bytes() for form in forms}
    assert len(results) == 1


def test_without_data_random_samples_serve_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="no calibration data"):
        result = quantry.quantize(float_model(), recipe="XINT8", store=None)
    assert result.evaluation.samples == 1
    assert "one random sample" in str(result.notes[0])


def test_without_data_nothing_is_warned_of_where_nothing_is_calibrated() -> None:
    result = quantry.quantize(float_model(), recipe="UINT8_DYNAMIC_QUANT", store=None)
    assert result.evaluation.samples == 1
    assert str(result.notes[0]).startswith("no data were given, and this recipe needs none")


def test_doubtful_options_of_images_are_warned_of_and_noted(tmp_path: Path) -> None:
    Image.fromarray(np.ones((8, 8, 3), np.uint8)).save(tmp_path / "a.png")
    options = quantry.ImageOptions(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    with pytest.warns(UserWarning, match="--pixel-scale 1/255"):
        result = quantry.quantize(float_model(), tmp_path, images=options, store=None)
    assert "--pixel-scale 1/255" in str(result.notes[0])


def test_result_is_not_saved_over_the_float_model(model_file: Path) -> None:
    before = model_file.read_bytes()
    result = quantry.quantize(model_file, images(), store=None)
    with pytest.raises(RecipeError, match="must not overwrite the float model"):
        result.save(model_file)
    assert model_file.read_bytes() == before


def test_float_model_survives_a_result_over_it_that_fails_the_check(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = model_file.read_bytes()
    result = quantry.quantize(model_file, images(), store=None)

    def refuse(*_: object) -> None:
        raise InternalError("onnxruntime refuses it")

    with monkeypatch.context() as changed:
        changed.setattr("quantry.quantization.check_written", refuse)
        with pytest.raises(InternalError):
            result.save(model_file, overwrite=True)
    assert model_file.read_bytes() == before
    result.save(model_file, overwrite=True)
    assert model_file.read_bytes() == result.to_bytes()


def test_evaluation_runs_on_the_data_given_for_it() -> None:
    result = quantry.quantize(float_model(), images(2), "XINT8", evaluation_data=images(3), store=None)
    assert result.evaluation.samples == 3


def test_fewer_samples_serve_calibration_when_the_recipe_says_so() -> None:
    recipe = Recipe(observe=ObserveOptions(samples=1))
    limited = quantry.quantize(float_model(), images(), recipe, store=None)
    alone = quantry.quantize(float_model(), images(1), recipe, store=None)
    assert limited.to_bytes() == alone.to_bytes()


def test_default_store_is_the_configured_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTRY_CACHE", str(tmp_path / "cache"))
    quantry.quantize(float_model(), images(), "XINT8")
    assert (tmp_path / "cache").is_dir()
    again = quantry.quantize(float_model(), images(), "XINT8")
    assert {entry.stage for entry in again.trace.entries if entry.outcome == "computed"} == {"emit"}  # never stored


def test_store_none_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTRY_CACHE", str(tmp_path / "cache"))
    quantry.quantize(float_model(), images(), "XINT8", store=None)
    assert not list(tmp_path.iterdir())


def test_log_does_not_grow_with_the_model(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="quantry"):
        quantry.quantize(float_model(), images(), "XINT8", store=None)
    assert len(caplog.records) < 20
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def excluding(**selection: tuple[str, ...]) -> Recipe:
    return Recipe(plan=PlanOptions(selection=Selection(**selection)))


IMAGE = images(1)[0]
BAD_DATA: dict[str, tuple[Any, str]] = {
    "misspelt name": ([{"imag": IMAGE}], "did you mean 'image'"),
    "missing name": ([{}], "no array for 'image'"),
    "one name too many": ([{"image": IMAGE, "mask": IMAGE}], "'mask'"),
    "integers": ([{"image": IMAGE.astype(np.int32)}], r"float32\[N, 3, 8, 8\].*int32"),
    "channels": ([{"image": IMAGE[:, :2]}], r"float32\[N, 3, 8, 8\].*\[1, 2, 8, 8\]"),
    "rank": ([{"image": IMAGE[0, 0]}], r"\[8, 8\]"),
    "NaN": ([{"image": IMAGE * np.nan}], "NaN"),
    "text": ([{"image": "pixels"}], "array of numbers"),
    "second sample": ([{"image": IMAGE}, {"image": IMAGE[:, :2]}], "sample 1"),
    "no sample": ([], "at least one sample"),
    "empty iterator": (iter(()), "at least one sample.*create a new one"),
    "no data at all": (5, "int"),
    "missing folder": (Path("nowhere") / "data", "nowhere"),
}


@pytest.mark.parametrize("fault", BAD_DATA)
def test_bad_data_is_a_data_error_that_names_the_fault(fault: str) -> None:
    data, message = BAD_DATA[fault]
    with pytest.raises(DataError, match=message):
        quantry.quantize(float_model(), data, "XINT8", store=None)


BAD_RECIPES: dict[str, tuple[Any, type[UserError], str]] = {
    "unknown preset": ("XINT9", RecipeError, "did you mean 'XINT8'"),
    "missing file": ("nowhere.yaml", RecipeError, "nowhere.yaml"),
    "no recipe": (5, RecipeError, "int"),
    "unknown key": ({"plann": {}}, RecipeError, "did you mean 'plan'"),
    "unknown method": ({"scale": {"activation": "Percentil"}}, RecipeError, "did you mean 'Percentile'"),
    "other version": ({"version": 99}, RecipeError, "99"),
    "exclusion without match": (excluding(exclude=("cnov",)), SelectionError, "did you mean 'conv'"),
    "expression without match": (excluding(exclude=("^layer.*",)), SelectionError, r"\^layer"),
    "broken expression": (excluding(exclude=("^(",)), SelectionError, "regular expression"),
    "operator without match": (excluding(exclude_operators=("Convv",)), SelectionError, "did you mean 'Conv'"),
    "unknown metric": (replace(Recipe(), evaluate=EvaluateOptions(metrics=("sqn",))), RecipeError, "'sqnr'"),
}


@pytest.mark.parametrize("fault", BAD_RECIPES)
def test_bad_recipe_is_an_error_that_names_the_fault(fault: str) -> None:
    recipe, kind, message = BAD_RECIPES[fault]
    with pytest.raises(kind, match=message):
        quantry.quantize(float_model(), images(), recipe, store=None)


BAD_MODELS: dict[str, Callable[[Path], object]] = {
    "empty file": lambda path: path.write_bytes(b""),
    "text file": lambda path: path.write_text("hello"),
    "cut file": lambda path: path.write_bytes(float_model().SerializeToString()[:300]),
    "folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("fault", BAD_MODELS)
def test_bad_model_file_is_a_model_error_with_its_path(fault: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    BAD_MODELS[fault](path)
    with pytest.raises(ModelError, match=r"broken\.onnx"):
        quantry.quantize(path, images(), "XINT8", store=None)


def test_missing_model_is_also_a_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.onnx") as caught:
        quantry.quantize(tmp_path / "nowhere.onnx", images(), "XINT8", store=None)
    assert isinstance(caught.value, ModelNotFoundError)


@pytest.mark.parametrize("model", [None, 5, ["model.onnx"]])
def test_thing_that_is_no_model_is_a_model_error(model: object) -> None:
    with pytest.raises(ModelError, match=type(model).__name__):
        quantry.quantize(model, images(), "XINT8", store=None)


def test_already_quantized_model_raises() -> None:
    quantized = quantry.quantize(float_model(), images(), "XINT8", store=None).to_bytes()
    with pytest.raises(ModelError, match="already quantized"):
        quantry.quantize(quantized, images(), "XINT8", store=None)


def test_bad_evaluation_data_is_reported_before_any_work(tmp_path: Path) -> None:
    store = quantry.MemoryStore()
    with pytest.raises(DataError, match="'image'"):
        quantry.quantize(float_model(), images(), "XINT8", evaluation_data=[{"x": IMAGE}], store=store)
    with pytest.raises(DataError, match="'image'"):
        quantry.quantize(float_model(), [{"x": IMAGE}], "XINT8", store=store)
    trace = quantry.quantize(float_model(), images(), "XINT8", store=store).trace
    assert trace.reused("prepare") == 1
    assert trace.computed("observe") == trace.computed("plan") == 1


@pytest.mark.parametrize("place", ["under a file", "on a folder"])
def test_unwritable_target_is_an_error_that_leaves_nothing(place: str, tmp_path: Path) -> None:
    result = quantry.quantize(float_model(), images(), "XINT8", store=None)
    taken = tmp_path / "taken"
    if place == "under a file":
        taken.write_text("a file")
    else:
        taken.mkdir()
    target = taken / "model.onnx" if place == "under a file" else taken
    with pytest.raises(ModelError, match="taken"):
        result.save(target)
    assert list(tmp_path.iterdir()) == [taken]


def test_failure_while_writing_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model.onnx"
    target.write_bytes(b"the old one")
    result = quantry.quantize(float_model(), images(), "XINT8", store=None)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ModelError, match="No space left"):
        result.save(target)
    assert target.read_bytes() == b"the old one"
    assert list(tmp_path.iterdir()) == [target]


def test_store_that_is_none_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(StoreError, match="file"):
        quantry.quantize(float_model(), images(), "XINT8", store=tmp_path / "file")
    with pytest.raises(RecipeError, match="int"):
        quantry.quantize(float_model(), images(), "XINT8", store=5)  # type: ignore[arg-type]


def test_unknown_keyword_raises_with_the_name_that_was_meant() -> None:
    settings: dict[str, Any] = {"preset": "XINT8"}
    with pytest.raises(RecipeError, match=r"quantize must be given known arguments, got 'preset'; did you mean 'rec"):
        quantry.quantize("model.onnx", **settings)
    with pytest.raises(RecipeError, match=r"got 'evaluation_dat'; did you mean 'evaluation_data'"):
        quantry.quantize("model.onnx", **dict.fromkeys(["evaluation_dat"]))


def test_empty_cache_variable_means_the_home_directory(monkeypatch):
    # As the XDG base directory specification has it; a relative folder would fill whatever directory one is in.
    monkeypatch.delenv("QUANTRY_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert default_store_path() == Path.home() / ".cache" / "quantry"
