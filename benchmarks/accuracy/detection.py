"""Object detectors, by COCO average precision."""

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.accuracy.evaluation_script import input_name, load_script
from benchmarks.accuracy.score import Run, Score, bootstrap
from benchmarks.locations import NotAvailable, shared
from benchmarks.workloads.sample_folder import Sample


@dataclass(frozen=True)
class DetectionSuite:
    """A detector of the shared data.

    Attributes:
        name: Folder of the model.
        data: Folder with ``images``, ``calib`` and ``instances.json``.
        resampled: Number of bootstrap resamples; each counts all matches again.
    """

    name: str
    data: str
    resampled: int = 200
    metric: str = "AP"

    def model(self) -> Path:
        """Return the float model."""
        return shared(self.name, f"{self.name}.onnx")

    def calibration(self) -> Iterator[Sample]:
        """Yield the calibration images as the script prepares them."""
        yield from self._images("calib", mirrored=False)

    def more_samples(self) -> Iterator[Sample]:
        """Yield held-out images, then all of them mirrored, for measuring time."""
        yield from self._images("images", mirrored=False)
        yield from self._images("images", mirrored=True)

    def score(self, model: Path, limit: int | None, run: Run | None = None) -> Score:
        """Evaluate a model, or what runs it, on held-out images."""
        script = self._script()
        kept: list[Any] = []
        script.CocoVal = recording(script.CocoVal, kept)
        count, (ap, ap50, ap75) = self._evaluate(script, run or model, limit)
        dataset, results = kept[0]
        replicates = (0.0,) * self.resampled
        if results:
            replicates = bootstrap(count, self.resampled, resampled_precision(dataset.coco, list(dataset.ids), results))
        return Score(ap, count, replicates, {"AP50": ap50, "AP75": ap75})

    def precision(self, model: Path, images: Callable[[Any], Any], limit: int | None = None) -> float:
        """Return the average precision of a model on changed images.

        Args:
            model: The model.
            images: From the class of the data set to one with changed images.
            limit: Number of images; None for all.
        """
        script = self._script()
        script.CocoVal = images(script.CocoVal)
        _, (precision, *_) = self._evaluate(script, model, limit)
        return float(precision)

    def _script(self) -> Any:
        return load_script(shared(self.name, "eval.py"))

    def _images(self, folder: str, *, mirrored: bool) -> Iterator[Sample]:
        import cv2

        script, name = self._script(), input_name(self.model())
        for path in sorted(shared(self.data, folder).glob("*.jpg")):
            pixels = cv2.imread(str(path))
            yield {name: self._prepared(script, pixels[:, ::-1].copy() if mirrored else pixels)}

    def _evaluate(self, script: Any, model: Path | Run, limit: int | None) -> Any:
        run = script.onnx_run(str(model)) if isinstance(model, Path) else model
        return script.evaluate(run, str(shared(self.data)), limit)

    def _prepared(self, script: Any, pixels: Any) -> Any:
        prepared, _ = script.preprocess(pixels)
        # Pixels are whole numbers 0..255 here, so that a quarter of the disk holds them exactly.
        return prepared.astype(np.uint8)


@dataclass(frozen=True)
class FastestDetSuite(DetectionSuite):
    """FastestDet, whose script opens the model itself and whose input is 0..1."""

    def _evaluate(self, script: Any, model: Path | Run, limit: int | None) -> Any:
        if not isinstance(model, Path):
            raise NotAvailable(f"the script of {self.name} runs models by itself, so no target can run them for it")
        return script.evaluate(str(model), str(shared(self.data)), limit)

    def _prepared(self, script: Any, pixels: Any) -> Any:
        return script.preprocess(pixels)


def recording(plain: Any, kept: list[Any]) -> Any:
    """Return the class of a data set that keeps the detections it evaluates.

    Args:
        plain: The class ``CocoVal`` of the shared data, or one derived from it.
        kept: Gets the data set and its detections at each evaluation.
    """

    class Recording(plain):  # type: ignore[misc]
        """Keeps the detections."""

        def evaluate(self, results: list[dict[str, Any]]) -> Any:
            # Copied, because pycocotools adds entries to what it is given.
            kept.append((self, [dict(one) for one in results]))
            return super().evaluate(results)

    return Recording


def resampled_precision(truth: Any, ids: list[int], results: Any) -> Callable[[npt.NDArray[np.int64]], float]:
    """Match detections with boxes once; return the average precision of any images, also with repetitions.

    Args:
        truth: The labelled data set, a ``pycocotools.coco.COCO``.
        ids: Images that count.
        results: Detections, as ``loadRes`` takes them.

    Returns:
        A function of positions in ``ids``.
    """
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
        evaluation.params.imgIds = ids
        evaluation.params.areaRng = evaluation.params.areaRng[:1]
        evaluation.params.areaRngLbl = evaluation.params.areaRngLbl[:1]
        evaluation.params.maxDets = [100]
        evaluation.evaluate()
    matched = evaluation.evalImgs
    categories, images = len(evaluation.params.catIds), len(ids)

    def average_precision(indices: npt.NDArray[np.int64]) -> float:
        # The accumulation wants distinct image ids, and only counts them; a resample repeats images under new ids.
        evaluation.params.imgIds = evaluation._paramsEval.imgIds = list(range(len(indices)))
        evaluation.evalImgs = [matched[c * images + i] for c in range(categories) for i in indices]
        with contextlib.redirect_stdout(io.StringIO()):
            evaluation.accumulate()
        precision = evaluation.eval["precision"]
        valid = precision[precision > -1]
        return float(valid.mean()) if valid.size else 0.0

    return average_precision
