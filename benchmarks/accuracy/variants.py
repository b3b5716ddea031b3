"""Average precision of a detector over four variants of the images: plain, mirrored, shifted, both.

    python -m benchmarks.accuracy.variants yolox_nano model.int8.onnx ...

The AP of one quantized detector on 300 images moves by about 1.5 % of float with any change of rounding. The mean over
variants, each compared with the float model on the same variant, moves by 0.3 to 0.9 %.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.detection import DetectionSuite
from benchmarks.accuracy.suites import SUITES

_SHIFT = 8
"""Pixels of grey left of and above a shifted image; a few pixels after resizing, and not a multiple of a stride."""

_GREY = 114


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


def average_precisions(suite: DetectionSuite, model: Path, limit: int | None = None) -> np.ndarray:
    """Return the average precision of a model on each variant, shape (4,).

    Args:
        suite: The detector.
        model: The model.
        limit: Number of images; None for all.
    """
    return np.array([suite.precision(model, variant.data_set, limit) for variant in VARIANTS])


def main() -> None:
    """Print what models keep of the float model's AP."""
    suites = {suite.name: suite for suite in SUITES if isinstance(suite, DetectionSuite)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=suites)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--limit", type=int)
    given = parser.parse_args()
    suite = suites[given.suite]
    reference = average_precisions(suite, suite.model(), given.limit)
    print(f"float: {reference.mean():.4f}", flush=True)
    for model in given.models:
        found = average_precisions(suite, model, given.limit)
        shares = found / reference
        error = shares.std(ddof=1) / np.sqrt(len(shares))
        print(f"{model}: {found.mean():.4f}, {shares.mean():.1%} of float (+-{error:.1%})", flush=True)


if __name__ == "__main__":
    main()
