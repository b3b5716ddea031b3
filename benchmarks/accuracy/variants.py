"""Average precision of a detector over four variants of the images: plain, mirrored, shifted, both.

    python -m benchmarks.accuracy.variants yolox_nano model.int8.onnx ...

The AP of one quantized detector on 300 images moves by about 1.5 % of float with any change of rounding. The mean over
variants, each compared with the float model on the same variant, moves by 0.3 to 0.9 %.

The agreement resolves smaller differences: the AP of a model if what the float model detects with a score of at
least 0.3 were the labels. Every change of a box or a score counts, not only one that crosses a labelled object.
"""

import argparse
import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from benchmarks.accuracy.detection import DetectionSuite, recording
from benchmarks.accuracy.suites import SUITES

_SHIFT = 8
"""Pixels of grey left of and above a shifted image; a few pixels after resizing, and not a multiple of a stride."""

_GREY = 114

_SURE = 0.3
"""Score from which a detection of the float model counts as an object, as in demos of detectors."""


@dataclass(frozen=True)
class Variant:
    """How images are changed, and detections changed back.

    Attributes:
        mirrored: Left and right are exchanged.
        shifted: Moved to the right and down.
    """

    mirrored: bool
    shifted: bool

    def image(self, pixels: Any) -> Any:
        """Return a changed image ``[height, width, 3]``."""
        changed = pixels[:, ::-1] if self.mirrored else pixels
        if self.shifted:
            changed = np.pad(changed, ((_SHIFT, 0), (_SHIFT, 0), (0, 0)), constant_values=_GREY)
        return np.ascontiguousarray(changed)

    def box(self, box: Sequence[float], width: int) -> list[float]:
        """Return a box ``x, y, width, height`` of the changed image as one of the original image.

        Args:
            box: The box.
            width: Width of the original image.
        """
        x, y, wide, high = box
        x, y = (x - _SHIFT, y - _SHIFT) if self.shifted else (x, y)
        return [width - x - wide if self.mirrored else x, y, wide, high]

    def data_set(self, plain: Any) -> Any:
        """Return the class of a data set whose images are changed.

        Args:
            plain: The class ``CocoVal`` of the shared data.
        """
        variant = self

        class Changed(plain):  # type: ignore[misc]
            """Yields changed images, and changes detections back."""

            def __iter__(self) -> Iterator[tuple[int, Any]]:
                self._widths = {}
                for number, pixels in super().__iter__():
                    self._widths[number] = pixels.shape[1]
                    yield number, variant.image(pixels)

            def evaluate(self, results: list[dict[str, Any]]) -> Any:
                back = [{**one, "bbox": variant.box(one["bbox"], self._widths[one["image_id"]])} for one in results]
                return super().evaluate(back)

        return Changed


VARIANTS = tuple(Variant(mirrored, shifted) for shifted in (False, True) for mirrored in (False, True))


@dataclass(frozen=True)
class Detections:
    """What a model finds on one variant of the images.

    Attributes:
        precision: The average precision on the labels.
        data: The labelled data set in COCO's form.
        images: Numbers of the images.
        found: The detections, in COCO's form.
    """

    precision: float
    data: Mapping[str, Any]
    images: Sequence[int]
    found: Sequence[Mapping[str, Any]]

    def agreement(self, reference: "Detections") -> float:
        """Return the average precision on what another model finds, classes weighted by how often they occur there.

        Args:
            reference: What the float model finds.
        """
        sure = [one for one in reference.found if one["score"] >= _SURE]
        if not sure or not self.found:
            return float("nan") if not sure else 0.0
        labels = [
            {**one, "id": number, "area": one["bbox"][2] * one["bbox"][3], "iscrowd": 0}
            for number, one in enumerate(sure, 1)
        ]
        with contextlib.redirect_stdout(io.StringIO()):
            truth = COCO()
            truth.dataset = {
                "images": self.data["images"],
                "categories": self.data["categories"],
                "annotations": labels,
            }
            truth.createIndex()
            evaluation = COCOeval(truth, truth.loadRes([dict(one) for one in self.found]), "bbox")
            evaluation.params.imgIds = list(self.images)
            evaluation.evaluate()
            evaluation.accumulate()
        precision = evaluation.eval["precision"][:, :, :, 0, -1]  # [thresholds, recalls, classes]
        counts = np.array([sum(one["category_id"] == kind for one in labels) for kind in evaluation.params.catIds])
        return float((precision.mean(axis=(0, 1)) * counts).sum() / counts.sum())


def detections(suite: DetectionSuite, model: Path, limit: int | None = None) -> list[Detections]:
    """Return what a model finds on each variant.

    Args:
        suite: The detector.
        model: The model.
        limit: Number of images; None for all.
    """
    return [_detected(suite, model, variant, limit) for variant in VARIANTS]


def _detected(suite: DetectionSuite, model: Path, variant: Variant, limit: int | None) -> Detections:
    kept: list[Any] = []
    precision = suite.precision(model, lambda plain: recording(variant.data_set(plain), kept), limit)
    ((data, found),) = kept
    return Detections(precision, data.coco.dataset, list(data.ids), found)


def main() -> None:
    """Print what models keep of the float model's AP, and how far they detect the same."""
    suites = {suite.name: suite for suite in SUITES if isinstance(suite, DetectionSuite)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=suites)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--limit", type=int)
    given = parser.parse_args()
    suite = suites[given.suite]
    reference = detections(suite, suite.model(), given.limit)
    print(f"float: {np.mean([one.precision for one in reference]):.4f}", flush=True)
    for model in given.models:
        found = detections(suite, model.absolute(), given.limit)
        shares = [ours.precision / theirs.precision for ours, theirs in zip(found, reference, strict=True)]
        agreed = [ours.agreement(theirs) for ours, theirs in zip(found, reference, strict=True)]
        print(
            f"{model}: {np.mean([one.precision for one in found]):.4f}, {_with_error(shares)} of float, "
            f"agreement {_with_error(agreed)}",
            flush=True,
        )


def _with_error(values: Sequence[float]) -> str:
    return f"{np.mean(values):.1%} (+-{np.std(values, ddof=1) / np.sqrt(len(values)):.1%})"


if __name__ == "__main__":
    main()
