"""Evaluators of classifiers and of outputs."""

import json
import pickle
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image

from quantry.data import sample_cache
from quantry.data.images import ImageOptions
from quantry.data.open_data import calibration_data
from quantry.data.sample_cache import SampleCache
from quantry.errors import DataError, RecipeError
from quantry.evaluate.tasks import (
    OutputDistance,
    TopAccuracy,
    class_count,
    classifier_evaluator,
    distance_evaluator,
    labelled_images,
)
from quantry.graph.float_model import InputSignature

CLASSIFIER = """
<ir_version: 8, opset_import: ["" : 13]>
agraph (float[N, 3, 4, 4] x) => (float[N, 3] y)
{
    pooled = GlobalAveragePool (x)
    y = Flatten (pooled)
}
"""
COLORS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A classifier of colours: the scores are the means of the channels."""
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(CLASSIFIER), path)
    return path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Nine images in a folder for each class, named so that the alphabet gives blue 0, green 1, red 2."""
    rng = np.random.default_rng(0)
    for name, color in COLORS.items():
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(3):
            pixels = np.clip(np.array(color) * 0.6 + rng.integers(0, 80, (6, 6, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{name}{number}.png")
    return tmp_path / "images"


BGR = ImageOptions(color="BGR")  # the alphabet's order is that of BGR


def test_folders_are_classes_in_the_order_of_their_names(images: Path) -> None:
    found = labelled_images(images)
    assert found.names == ("blue", "green", "red")
    assert found.labels == (0, 0, 0, 1, 1, 1, 2, 2, 2)


@pytest.mark.parametrize("form", ["csv", "heading.csv", "json", "txt", "bare.txt"])
def test_labels_are_read_from_every_kind_of_file(images: Path, tmp_path: Path, form: str) -> None:
    files = sorted(images.rglob("*.png"))
    rows = [(path.relative_to(images).as_posix(), index % 4) for index, path in enumerate(files)]
    path = tmp_path / f"labels.{form}"
    if form == "json":
        path.write_text(json.dumps({Path(name).name: label for name, label in rows}))
    elif form == "bare.txt":
        path.write_text("".join(f"{label}\n" for _, label in rows))
    else:
        separator = " " if form == "txt" else ","
        heading = "file,label\n" if form == "heading.csv" else ""
        path.write_text(heading + "".join(f"{name}{separator}{label}\n" for name, label in rows))
    found = labelled_images(images, path)
    assert found.files == tuple(files)
    assert found.labels == tuple(index % 4 for index in range(9))


@pytest.mark.parametrize("form", ["bare.txt", "csv"])
def test_files_of_one_name_in_two_folders_have_labels_of_their_own(tmp_path: Path, form: str) -> None:
    for folder in ("a", "b"):
        (tmp_path / "images" / folder).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "images" / folder / "1.png")
    path = tmp_path / f"labels.{form}"
    path.write_text("0\n1\n" if form == "bare.txt" else "a/1.png,0\nb/1.png,1\n")
    assert labelled_images(tmp_path / "images", path).labels == (0, 1)
    path.write_text("1.png 1\n" if form == "bare.txt" else "1.png,1\n")
    with pytest.raises(DataError, match="none for 2 of 2"):
        labelled_images(tmp_path / "images", path)


def test_missing_labels_are_named(images: Path, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("red0.png,1\n")
    with pytest.raises(DataError, match=r"none for 8 of 9, such as blue/blue0\.png; in"):
        labelled_images(images, path)
    path = tmp_path / "labels.txt"
    path.write_text("1\n2\n")
    with pytest.raises(DataError, match="one per sample, 9, got 2"):
        labelled_images(images, path)
    Image.new("RGB", (4, 4)).save(images / "loose.png")
    with pytest.raises(DataError, match=r"loose\.png"):
        labelled_images(images)
    with pytest.raises(DataError, match="must contain images"):
        labelled_images(tmp_path / "images" / "none") if (images / "none").mkdir() is None else None


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["0", "1", "cat"], r"6 numbers such as '0' and 3 names such as 'cat'; in .*labels.csv"),
        (["0", "1.0", "2"], r"must be class numbers 0, 1, 2, ..., got '1.0'; in .*labels.csv"),
        (["0", "-1", "2"], r"got '-1'; in .*labels.csv"),
        (["0", "1", "30"], r"0 to 2, got 30 for .*png; in .*labels.csv"),
    ],
)
def test_labels_that_cannot_be_classes_raise_with_their_file(
    labels: list[str], message: str, model: Path, images: Path, tmp_path: Path
) -> None:
    files = sorted(images.rglob("*.png"))
    path = tmp_path / "labels.csv"
    path.write_text("".join(f"{file.relative_to(images)},{labels[index % 3]}\n" for index, file in enumerate(files)))
    with pytest.raises(DataError, match=message):
        classifier_evaluator(model, images, path)


def test_classes_by_name_must_be_as_many_as_the_models(model: Path, images: Path, tmp_path: Path) -> None:
    assert class_count(model) == 3
    path = tmp_path / "labels.csv"
    files = sorted(images.rglob("*.png"))
    path.write_text("".join(f"{file.name},{'rg'[index % 2]}\n" for index, file in enumerate(files)))
    with pytest.raises(
        DataError, match=r"as many class names as classes of the model, 3, .* got 2: g, r; use .* 0 to 2: a \.csv"
    ):
        classifier_evaluator(model, images, path)
    path.write_text("".join(f"{file.name},{index % 2}\n" for index, file in enumerate(files)))
    assert classifier_evaluator(model, images, path).size == 9


def test_top_accuracy_counts_what_onnxruntime_gets_right(model: Path, images: Path) -> None:
    evaluator = classifier_evaluator(model, images, options=BGR)
    assert evaluator(model) == 1.0
    wrong = classifier_evaluator(model, images, options=ImageOptions())  # red and blue exchanged
    session = onnxruntime.InferenceSession(model)
    expected = []
    for label, path in zip(wrong.labels, sorted(images.rglob("*.png")), strict=True):
        with Image.open(path) as file:
            pixels = np.asarray(file.resize((4, 4), Image.Resampling.BILINEAR), np.float32).transpose(2, 0, 1)[None]
        expected.append(session.run(None, {"x": pixels})[0].argmax() == label)
    assert wrong.per_sample(model, range(9)).tolist() == expected
    assert wrong(model) == pytest.approx(np.mean(expected))
    assert wrong.fingerprint != evaluator.fingerprint


def test_scores_of_chosen_samples_are_those_of_all(model: Path, images: Path) -> None:
    evaluator = classifier_evaluator(model, images, k=2)
    whole = evaluator.per_sample(model, range(9))
    assert evaluator.per_sample(model, [7, 0, 7, 3]).tolist() == whole[[7, 0, 7, 3]].tolist()
    assert evaluator.name == "top-2"


def test_a_fixed_batch_takes_labels_in_groups(images: Path, tmp_path: Path) -> None:
    path = tmp_path / "batched.onnx"
    onnx.save(onnx.parser.parse_model(CLASSIFIER.replace("N", "3")), path)
    evaluator = classifier_evaluator(path, images, options=BGR)
    assert evaluator.size == 3
    assert evaluator.per_sample(path, [0, 2]).tolist() == [1.0, 1.0]


def test_ties_are_decided_as_argmax_decides_them(model: Path) -> None:
    signature = (InputSignature("x", np.dtype(np.float32), ("N", 3, 4, 4)),)
    rng = np.random.default_rng(0)
    # Three levels for three classes: most samples have equal scores.
    samples = np.broadcast_to(rng.integers(0, 3, (60, 3, 1, 1)), (60, 3, 4, 4)).astype(np.float32)
    labels = rng.integers(0, 3, 60)
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    scores = session.run(None, {"x": samples})[0]
    data = SampleCache(calibration_data(samples, signature))
    assert TopAccuracy(data, labels)(model) == np.mean(scores.argmax(axis=1) == labels)
    # A stable sort is what top-k of a deployed model does.
    second = np.argsort(-scores, axis=1, kind="stable")[:, :2]
    assert TopAccuracy(data, labels, k=2)(model) == np.mean((second == labels[:, None]).any(axis=1))
    shared = np.mean(np.sort(scores)[:, -1] == np.sort(scores)[:, -2])
    assert TopAccuracy(data, labels).tie_share(model) == pytest.approx(shared)
    assert f"{shared:.0%} of the samples" in TopAccuracy(data, labels).notes(model)[0]


def test_nan_counts_as_wrong(model: Path) -> None:
    signature = (InputSignature("x", np.dtype(np.float32), ("N", 3, 4, 4)),)
    samples = np.zeros((2, 3, 4, 4), np.float32)
    evaluator = TopAccuracy(SampleCache(calibration_data(samples, signature)), np.array([0, 0]))
    assert evaluator(model) == 1.0
    broken = model.with_name("broken.onnx")
    onnx.save(
        onnx.parser.parse_model(CLASSIFIER.replace("y = Flatten (pooled)", "z = Flatten (pooled) y = Div (z, z)")),
        broken,
    )
    assert evaluator(broken) == 0.0
    assert evaluator.notes(broken) == ()


def test_labels_that_do_not_fit_raise(model: Path, images: Path) -> None:
    samples = classifier_evaluator(model, images).samples
    with pytest.raises(DataError, match="2 labels and 9 samples"):
        TopAccuracy(samples, np.array([0, 1]))
    with pytest.raises(DataError, match="classes of the model, 0 to 2"):
        TopAccuracy(samples, np.arange(9))(model)
    with pytest.raises(DataError, match="must be integers"):
        TopAccuracy(samples, np.ones(9))
    with pytest.raises(RecipeError, match="at least 1"):
        TopAccuracy(samples, np.zeros(9, int), k=0)
    with pytest.raises(DataError, match=r"one of \['y'\]"):
        TopAccuracy(samples, np.zeros(9, int), output="z")(model)


@pytest.mark.parametrize(("metric", "direction", "best"), [("L2", "minimize", 0.0), ("cos", "maximize", 1.0)])
def test_output_distance_knows_its_direction_and_the_float_models_score(
    model: Path, images: Path, tmp_path: Path, metric: str, direction: str, best: float
) -> None:
    evaluator = distance_evaluator(model, images, metric)
    assert (evaluator.direction, evaluator.reference_score, evaluator(model)) == (direction, best, best)
    other = tmp_path / "other.onnx"
    onnx.save(
        onnx.parser.parse_model(CLASSIFIER.replace("y = Flatten (pooled)", "z = Flatten (pooled) y = Sqrt (z)")), other
    )
    scores = evaluator.per_sample(other, range(9))
    assert evaluator(other) == pytest.approx(scores.mean())
    assert (evaluator(other) - best) * (1 if direction == "minimize" else -1) > 0
    if metric == "L2":
        first = next(iter(evaluator.samples.data))["x"]
        means = first.mean(axis=(2, 3))
        assert scores[0] == pytest.approx(np.square(means - np.sqrt(means)).mean(), rel=1e-5)


def test_a_model_with_other_outputs_cannot_be_compared(model: Path, images: Path, tmp_path: Path) -> None:
    from quantry.errors import ModelError

    other = tmp_path / "other.onnx"
    onnx.save(onnx.parser.parse_model(CLASSIFIER.replace("y = Flatten", "w = Flatten").replace("3] y", "3] w")), other)
    with pytest.raises(ModelError, match=r"outputs \['y'\]"):
        distance_evaluator(model, images)(other)


def test_evaluators_travel_to_other_processes_without_their_samples(model: Path, images: Path) -> None:
    for evaluator in (classifier_evaluator(model, images, options=BGR), distance_evaluator(model, images)):
        score = evaluator(model)
        message = pickle.dumps(evaluator)
        again = pickle.loads(message)
        assert len(message) < 20_000
        assert again(model) == score
        assert again.fingerprint == evaluator.fingerprint


def test_a_samples_reads_again_what_it_could_not_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_cache, "KEPT_BYTES", 3 * 4 * 4)
    signature = (InputSignature("x", np.dtype(np.float32), ("N", 4)),)
    stack = np.arange(40, dtype=np.float32).reshape(10, 4)
    samples = SampleCache(calibration_data(stack, signature))
    for _ in range(2):
        for indices in ([9, 1, 4], range(10), [2]):
            read = dict(samples.read(indices))
            assert sorted(read) == sorted(indices)
            assert all((feeds["x"][0] == stack[index]).all() for index, feeds in read.items())
    assert len(samples._kept) == 3


def test_outputs_beyond_memory_are_computed_again(model: Path, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quantry.evaluate.tasks import output_distance

    monkeypatch.setattr(output_distance, "KEPT_BYTES", 30)
    evaluator = OutputDistance(str(model), distance_evaluator(model, images).samples, "l1")
    copy = model.with_name("copy.onnx")
    copy.write_bytes(model.read_bytes())
    assert evaluator(copy) == evaluator(copy) == pytest.approx(0.0, abs=1e-4)
    assert len(evaluator._expected) == 2


def test_prepared_evaluator_neither_reads_nor_runs_the_float_model_again(
    model: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quantry.evaluate.tasks import output_distance

    evaluator = distance_evaluator(model, images, "l1")
    copy = model.with_name("copy.onnx")
    copy.write_bytes(model.read_bytes())
    evaluator.prepare(model)
    monkeypatch.setattr(output_distance, "deployment_session", None)
    monkeypatch.setattr(evaluator.samples, "data", None)
    assert evaluator(copy) == pytest.approx(0.0, abs=1e-4)


def test_a_samples_is_filled_as_far_as_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_cache, "KEPT_BYTES", 3 * 4 * 4)
    signature = (InputSignature("x", np.dtype(np.float32), ("N", 4)),)
    samples = SampleCache(calibration_data(np.zeros((10, 4), np.float32), signature))
    for _ in range(2):
        samples.fill()
        assert len(samples._kept) == 3


def test_weights_in_a_second_file_belong_to_the_fingerprint(tmp_path: Path, images: Path) -> None:
    folders = []
    for value in (1.0, 2.0):
        text = CLASSIFIER.replace("y = Flatten (pooled)", "f = Flatten (pooled) y = Mul (f, w)")
        proto = onnx.parser.parse_model(text)
        weight = np.full((1, 3), value, np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
        (tmp_path / str(value)).mkdir()
        folders.append(tmp_path / str(value) / "model.onnx")
        onnx.save(proto, folders[-1], save_as_external_data=True, location="weights", size_threshold=0)
    assert folders[0].read_bytes() == folders[1].read_bytes()
    first, second = (distance_evaluator(path, images) for path in folders)
    assert first.fingerprint != second.fingerprint
