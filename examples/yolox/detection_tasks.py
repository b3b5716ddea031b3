"""Pictures, labels and scores of the example: those of a COCO folder, or those that quantry ships."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from drawn_scenes import DrawnScenes
from PIL import Image
from torch import Tensor, nn
from train_detector import anchors, decode, overlap

from quantry import demo
from quantry.evaluate.tasks import CocoLabels, Detections, RowDecoder, coco_average_precision, coco_labels
from quantry.recipe import Gptq, Percentile, Recipe, SmoothQuant
from quantry.torch import (
    DistillationLoss,
    PerTensorPercentileObserver,
    QatOptions,
    QuantizedModule,
    float_copy,
    quantize_graph,
)

SIZE, PADDING = 416, 114
AT_ONCE = 10
BOX_COST, LEAST_VARIANCE = 100.0, 1e-3
BOXES, TIGHT = 8.0, 5.0
"""Weights of the two losses of boxes, so that each counts about as much as the scores."""
LEAST_OVERLAP, SHARPNESS = 0.05, 8
"""The slope of `looseness` is largest at an overlap of 1, and three times smaller at 0.85."""

Loss = Callable[[QuantizedModule, Any], Tensor]


class Task(Protocol):
    """Pictures to calibrate on, and labelled ones to evaluate on."""

    def calibration(self) -> list[Tensor]:
        """Return calibration pictures, each [1, 3, h, w]."""

    def training(self, batch: int) -> Iterable[Any]:
        """Return batches to train on, which can be read repeatedly."""

    def loss(self, module: QuantizedModule) -> Loss | None:
        """Return what training minimises; None learns from the float model, tensor by tensor."""

    def settings(self, given: QatOptions, device: str, /) -> QatOptions:
        """Return how to train on a device, where steps and rate are given."""

    def score(self, model: nn.Module) -> tuple[float, float]:
        """Return the mean average precision over overlaps 0.5 to 0.95, and at 0.5."""


class PowOf2PercentileObserver(PerTensorPercentileObserver):
    """All but a thousandth of the values, with a power-of-two scale.

    Few cells of a small picture see an object, so that the least squared error is that of the background.
    """

    method = Percentile(99.9)
    power_of_two = True


@dataclass(frozen=True)
class CocoTask:
    """Pictures of a folder with a COCO file.

    Attributes:
        labels: The labelled pictures.
        calibration_folder: Pictures without labels.
        limit: Largest number of labelled pictures to use.
    """

    labels: CocoLabels
    calibration_folder: Path
    limit: int

    def calibration(self) -> list[Tensor]:
        """Return up to 48 pictures."""
        files = sorted(path for path in self.calibration_folder.iterdir() if path.suffix in (".jpg", ".jpeg", ".png"))
        return [prepared(path)[0] for path in files[:48]]

    def training(self, batch: int) -> Iterable[Tensor]:
        """Return the same pictures in changing order, each mirrored or not."""
        pictures = torch.cat(self.calibration())
        return Reread(lambda: [mirrored(pictures[part]) for part in torch.randperm(len(pictures)).split(batch)])

    def loss(self, _: QuantizedModule) -> Loss | None:
        """Return None."""
        return None

    def settings(self, given: QatOptions, _: str, /) -> QatOptions:
        """Return what is given: scales are learned."""
        return given

    def score(self, model: nn.Module) -> tuple[float, float]:
        """Evaluate on the labelled pictures."""
        images = self.labels.images[: self.limit]
        found = [self._detect(model, image.file) for image in images]
        precision = coco_average_precision(CocoLabels(images, self.labels.categories), found)
        return precision.map, precision.map50

    def _detect(self, model: nn.Module, file: Path) -> Detections:
        picture, factor = prepared(file)
        (found,) = RowDecoder()({"rows": answer(model, picture)}, (SIZE, SIZE))
        return Detections(found.boxes / factor, found.scores, found.labels)


@dataclass(frozen=True)
class EmbeddedTask:
    """The scenes that quantry draws.

    Attributes:
        limit: Number of scenes to evaluate on.
        drawn: Scenes to train on.
    """

    limit: int
    drawn: DrawnScenes = DrawnScenes()

    def calibration(self) -> list[Tensor]:
        """Return 32 scenes."""
        return [torch.from_numpy(entry[demo.INPUT_NAME]) for entry in demo.calibration_inputs(32)]

    def training(self, batch: int) -> Iterable[Any]:
        """Return scenes without their boxes."""
        return (images for images, *_ in self.drawn.batches(batch))

    def loss(self, module: QuantizedModule) -> Loss | None:
        """Return the distance from the float model's rows."""
        pair = DistillationLoss(module)
        return lambda _, images: distance(*pair.compare(images)[1:])

    def settings(self, given: QatOptions, device: str, /) -> QatOptions:
        """Return what is given with scales that stay; on a GPU, whose time goes into small kernels, these are recorded.

        The average covers the same share of a short training and of a long one.
        """
        decay = max(0.0, 1 - 8 / given.steps)
        return replace(given, scale_rate=None, decay=decay, record=device.startswith("cuda"))

    def score(self, model: nn.Module) -> tuple[float, float]:
        """Evaluate on drawn scenes."""
        scenes = list(demo.evaluation_scenes(self.limit))
        parts = [_pictures(scenes[start : start + AT_ONCE]) for start in range(0, len(scenes), AT_ONCE)]
        rows = iter(np.concatenate([answer(model, part) for part in parts]))
        found = demo.mean_average_precision(lambda _: next(rows)[None], scenes)
        return found.map, found.map50


def distance(rows: Tensor, wanted: Tensor) -> Tensor:
    """Return how far rows [n, cells, 5 + classes] are from those that are wanted, where these see objects."""
    truth = wanted[..., 4:]
    likely = truth[..., :1] * truth[..., 1:].amax(-1, keepdim=True)
    # Without the entropy of what is wanted the loss of a perfect copy is 0.
    parted = _cross_entropy(rows[..., 4:], truth) - _cross_entropy(truth, truth)
    scores = parted[..., :1].sum() + (parted[..., 1:] * likely).sum()
    moved = ((rows[..., :4] - wanted[..., :4]).abs() * likely).sum()
    cells = anchors(rows.device)
    shared = overlap(decode(rows[..., :4], *cells), decode(wanted[..., :4], *cells))
    loose = (looseness(shared) * likely[..., 0]).sum()
    return (scores + BOXES * moved + TIGHT * loose) / (likely.sum() + 1)


def looseness(overlaps: Tensor) -> Tensor:
    """Return how far boxes that overlap so much are from a very close fit, from 0 to 1.

    Precision is averaged over overlaps up to 0.95, and rounding costs it there: an overlap of 0.9 must count as worse
    than one of 0.95, and one of 0.5 hardly as worse than one of 0.6.
    """
    return 1 - overlaps.clamp(min=LEAST_OVERLAP) ** SHARPNESS


class EmbeddedDetector(nn.Module):
    """The detector that quantry ships; it comes as ONNX, which is quantized without a torch module.

    Attributes:
        source: Its file.
        base_model: What computes: first the float graph, then the quantized one.
        float_part: Its nodes that stay float: the scores' sigmoid and the joining of the levels, as in `Yolox`.
        algorithms: What makes it easier to quantize before it is calibrated.
        rounding: What rounds its weights once scales are chosen.
        observer: What chooses the ranges of its activations.
    """

    float_part = ("sigmoid*", "cat_1[2-5]", "flatten*", "transpose")
    algorithms = (SmoothQuant(sweeps=3, gain=1.5, tolerance=0.0),)
    rounding = (Gptq(compensate=False, descent_sweeps=4),)
    observer = PowOf2PercentileObserver

    def __init__(self) -> None:
        super().__init__()
        self.source = demo.MODEL_PATH
        sample = [torch.from_numpy(entry[demo.INPUT_NAME]) for entry in demo.calibration_inputs(1)]
        self.base_model = float_copy(quantize_graph(self.source, sample, Recipe()))

    def forward(self, images: Tensor) -> Tensor:
        """Return the detector's rows."""
        return self.base_model(images)

    @staticmethod
    def importance(rows: Tensor) -> Tensor:
        """Return what a squared error of each number of the rows costs: boxes where there are objects, and scores.

        Boxes are compared by their overlap, so that a shift counts in proportion to the size.
        """
        chances, sizes = rows[..., 4:], rows[..., 2:4].exp()
        likely = chances[..., :1] * chances[..., 1:].amax(-1, keepdim=True)
        boxes = BOX_COST * torch.cat([likely / sizes.square(), likely.expand_as(sizes)], -1)
        scores = 1.0 / (chances * (1 - chances)).clamp(min=LEAST_VARIANCE)
        return torch.cat([boxes, scores[..., :1], scores[..., 1:] * likely], -1)


@dataclass(frozen=True)
class Reread:
    """Batches that are made afresh each time they are read."""

    make: Callable[[], list[Tensor]]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.make())


def find_task(options: argparse.Namespace) -> Task:
    """Return the task that the command line asks for."""
    if options.ckpt is None:
        return EmbeddedTask(options.limit, DrawnScenes(options.scenes, options.device))
    data_folder = options.data_dir.parent
    labels = coco_labels(options.data_dir, options.labels or data_folder / "instances.json")
    return CocoTask(labels, options.calibration or data_folder / "calib", options.limit)


def mirrored(pictures: Tensor) -> Tensor:
    """Return the pictures, each mirrored or not."""
    chosen = torch.rand(len(pictures), device=pictures.device) < 0.5
    return torch.where(chosen[:, None, None, None], pictures.flip(3), pictures)


def _pictures(scenes: Iterable[demo.Scene]) -> Tensor:
    return torch.from_numpy(np.concatenate([demo.image_tensor(scene) for scene in scenes]))


def _cross_entropy(chance: Tensor, truth: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy(chance.clamp(1e-6, 1 - 1e-6), truth, reduction="none")


def prepared(path: Path) -> tuple[Tensor, float]:
    """Return a picture as YOLOX takes it, and the factor it was scaled by: BGR, 0..255, padded right and below."""
    with Image.open(path) as opened:
        picture = opened.convert("RGB")
    factor = SIZE / max(picture.size)
    width, height = (round(side * factor) for side in picture.size)
    canvas = np.full((SIZE, SIZE, 3), PADDING, np.float32)
    canvas[:height, :width] = np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR))
    return torch.from_numpy(canvas[:, :, ::-1].transpose(2, 0, 1).copy())[None], factor


def answer(model: nn.Module, images: Tensor) -> np.ndarray:
    """Return the detector's rows [n, cells, 5 + classes]."""
    with torch.no_grad():
        return model.eval()(images).numpy()


def table(rows: Sequence[tuple[str, float, float]]) -> str:
    """Return the scores as a table, each with its share of the first."""
    lines = ["model      mAP 0.50:0.95      mAP 0.50"]
    for name, score, coarse in rows:
        shares = [value / max(first, 1e-9) for value, first in zip((score, coarse), rows[0][1:], strict=True)]
        lines.append(f"{name:9}  {score:.4f} ({shares[0]:6.1%})   {coarse:.4f} ({shares[1]:6.1%})")
    return "\n".join(lines)
