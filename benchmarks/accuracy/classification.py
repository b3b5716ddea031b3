"""Image classifiers, by top-1 accuracy."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from benchmarks.accuracy.evaluation_script import input_name, load_script
from benchmarks.accuracy.score import Run, Score, bootstrap
from benchmarks.locations import cache, shared
from benchmarks.workloads.sample_folder import Sample

_RESAMPLED = 1000
Hits = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ImageNetSuite:
    """An ImageNet classifier of the shared data.

    Attributes:
        name: Folder of the model.
        normalisation: Name of the script's function that turns pixels into input; None is -1..1 with channels last,
            which the script of MobileNetV1 writes as a lambda.
        weights: File that the model is exported from; None where the ONNX file lies there.
        crop: Width and height of the input.
    """

    name: str
    normalisation: str | None
    weights: str | None = None
    crop: int = 224
    metric: str = "top-1"

    def model(self) -> Path:
        """Return the float model, exported on first use into the benchmarks' cache."""
        if self.weights is None:
            return shared(self.name, f"{self.name}.onnx")
        return exported(self.name, shared(self.name, self.weights))

    def calibration(self) -> Iterator[Sample]:
        """Yield the calibration images as the script prepares them."""
        yield from self._images("calib")

    def more_samples(self) -> Iterator[Sample]:
        """Yield held-out images."""
        yield from self._images("images")

    def score(self, model: Path, limit: int | None, run: Run | None = None) -> Score:
        """Evaluate a model, or what runs it, on held-out images."""
        script = load_script(shared(self.name, "eval.py"))
        files = script.imagenet_files(str(shared("imagenet_val")), limit)
        recorded, winners = _recording(run or _in_batches(model, script.onnx_runner(str(model))))
        count, _, top5 = script.top_k(recorded, files, self._preparation(script), crop=self.crop)
        # The script sorts scores, and equal ones in any order; a deployed model takes the first of them.
        hits = np.concatenate(winners) == np.array([label for _, label in files])
        return Score(float(hits.mean()), count, _bootstrap_mean(hits), {"top-5": top5})

    def _images(self, folder: str) -> Iterator[Sample]:
        script = load_script(shared(self.name, "eval.py"))
        prepare, name = self._preparation(script), input_name(self.model())
        # The script imports what it needs from its own library, but not the function that reads one file.
        from clslib import load_crop

        for path in sorted(shared("imagenet_val", folder).glob("*.jpg")):
            yield {name: np.ascontiguousarray(prepare(load_crop(path, self.crop))[None])}

    def _preparation(self, script: Any) -> Callable[[Any], Any]:
        return _minus_one_to_one if self.normalisation is None else getattr(script, self.normalisation)


@dataclass(frozen=True)
class CifarSuite:
    """The CIFAR-10 classifier of the shared data."""

    name: str = "cifar10"
    metric: str = "top-1"

    def model(self) -> Path:
        """Return the float model."""
        return shared(self.name, "resnet20.onnx")

    def calibration(self) -> Iterator[Sample]:
        """Yield the calibration images as the script prepares them."""
        script = load_script(shared(self.name, "eval.py"))
        yield from self._prepared(script, script.calibration_set())

    def more_samples(self) -> Iterator[Sample]:
        """Yield held-out images."""
        script = load_script(shared(self.name, "eval.py"))
        yield from self._prepared(script, script.test_set()[0])

    def score(self, model: Path, limit: int | None, run: Run | None = None) -> Score:
        """Evaluate a model, or what runs it, on held-out images."""
        script = load_script(shared(self.name, "eval.py"))
        images, labels = (part[:limit] for part in script.test_set())
        recorded, winners = _recording(run or _in_batches(model, script.onnx_runner(str(model))))
        script.accuracy(recorded, images, labels)
        hits = np.concatenate(winners) == labels
        return Score(float(hits.mean()), len(labels), _bootstrap_mean(hits), {})

    def _prepared(self, script: Any, images: npt.NDArray[np.uint8]) -> Iterator[Sample]:
        name = input_name(self.model())
        for image in images:
            yield {name: np.ascontiguousarray(script.normalise(image[None]))}


def exported(name: str, weights: Path) -> Path:
    """Return the ONNX file that the export function of a shared model writes, in the benchmarks' cache."""
    path = cache() / "exported" / f"{name}.onnx"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        load_script(shared(name, "model.py")).export(str(weights), str(partial))
        partial.rename(path)
    return path


def _minus_one_to_one(pixels: Any) -> Any:
    return (pixels / 127.5 - 1).astype("float32")


def _in_batches(model: Path, run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that feeds a model the batches it takes, however many samples the script passes at once."""
    shape = onnx.load(model, load_external_data=False).graph.input[0].type.tensor_type.shape
    # 0 if the size is not fixed.
    size = shape.dim[0].dim_value

    def in_batches(batch: Any) -> Any:
        if size in (0, len(batch)):
            return run(batch)
        parts = [batch[start : start + size] for start in range(0, len(batch), size)]
        return np.concatenate([run(part) for part in parts])

    return in_batches


def _recording(run: Callable[[Any], Any]) -> tuple[Callable[[Any], Any], list[npt.NDArray[np.int64]]]:
    winners: list[npt.NDArray[np.int64]] = []

    def recorded(batch: Any) -> Any:
        scores = run(batch)
        winners.append(scores.argmax(1))
        return scores

    return recorded, winners


def _bootstrap_mean(hits: Hits) -> tuple[float, ...]:
    return bootstrap(len(hits), _RESAMPLED, lambda indices: float(hits[indices].mean()))
