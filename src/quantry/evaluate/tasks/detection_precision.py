"""Mean average precision of a detector on labelled images."""

from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import ClassVar

from quantry.data.images import ImageOptions
from quantry.data.sample_cache import SampleBook
from quantry.errors import DataError, RecipeError
from quantry.evaluate.tasks.average_precision import (
    AveragePrecision,
    coco_average_precision,
    match_images,
    precision_intervals,
)
from quantry.evaluate.tasks.detections import Decoder, Detections, ImageFit, RowDecoder
from quantry.evaluate.tasks.labels import CocoLabels
from quantry.evaluate.tasks.task_evaluator import TaskEvaluator, TaskScore, run_model
from quantry.memo import function_digest

_KINDS = ("map", "map50")


@dataclass(frozen=True, eq=False)
class DetectionPrecision(TaskEvaluator):
    """COCO's mean average precision.

    It is no mean over images, so that there are no scores of single samples, and a search cannot race on it.

    Attributes:
        book: The labelled images as inputs, in the order of ``labels.images``.
        labels: The labelled images.
        frame: Height and width of the model's input.
        decoder: From outputs to boxes; see `quantry.evaluate.tasks.detections`.
        images: How images became inputs.
        kind: "map" over overlaps 0.5 to 0.95, or "map50".
        threads: Threads inside one operator; None leaves the choice to the process.
    """

    book: SampleBook
    labels: CocoLabels
    frame: tuple[int, int]
    decoder: Decoder = field(default_factory=RowDecoder)
    images: ImageOptions = ImageOptions(resize="letterbox")
    kind: str = "map"
    threads: int | None = None
    direction: ClassVar[str] = "maximize"

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise RecipeError(f"DetectionPrecision.kind must be one of {_KINDS}, got {self.kind!r}")
        if len(self.book) != len(self.labels.images):
            raise DataError(
                f"there must be one sample for each labelled image, got {len(self.book)} samples and "
                f"{len(self.labels.images)} images; a detector's batch must be 1"
            )

    @property
    def name(self) -> str:
        """What tables call the score."""
        return "mAP" if self.kind == "map" else "mAP50"

    def __call__(self, model_path: str | Path) -> float:
        """Return a model's mean average precision."""
        score: float = getattr(self.measure(model_path), self.kind)
        return score

    def scored(self, model_path: str | Path) -> TaskScore:
        """Return a model's mean average precision with its interval over images."""
        found = self.detect(model_path)
        value: float = getattr(coco_average_precision(self.labels, found), self.kind)
        intervals = precision_intervals(match_images(self.labels, found))
        return TaskScore(value, intervals[_KINDS.index(self.kind)])

    def measure(self, model_path: str | Path) -> AveragePrecision:
        """Return a model's average precision, by class too."""
        return coco_average_precision(self.labels, self.detect(model_path))

    def detect(self, model_path: str | Path) -> list[Detections]:
        """Return what a model finds in each image, in pixels of the image."""
        found: list[Detections] = []
        for index, outputs in run_model(model_path, self.book, range(len(self.book)), self.threads):
            image = self.labels.images[index]
            fit = ImageFit.of(self.images, image.width, image.height, self.frame)
            raw = self.decoder(outputs, self.frame)[0]
            found.append(Detections(fit.to_image(raw.boxes, image.width, image.height), raw.scores, raw.labels))
        return found

    def _identity(self) -> tuple[object, ...]:
        truth = tuple((image.boxes, image.labels, image.crowd) for image in self.labels.images)
        return self.book.data, truth, _described(self.decoder), self.images, self.kind


def _described(decoder: object) -> str:
    """Return what tells a decoder from others, the same in every process; a function's repr holds its address."""
    if is_dataclass(decoder):
        return repr(decoder)
    name = getattr(decoder, "__qualname__", type(decoder).__qualname__)
    return f"{name} {function_digest(decoder)}"
