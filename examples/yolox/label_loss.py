"""Training of the embedded detector on labels as well: scenes come with the boxes of what was drawn."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from detection_tasks import TIGHT, EmbeddedTask, Loss, distance, looseness
from drawn_scenes import Labelled
from torch import Tensor
from torch.nn import functional
from train_detector import anchors, assign, decode, overlap

from quantry.torch import DistillationLoss, QuantizedModule

ROWS_WEIGHT = 0.1


@dataclass(frozen=True)
class LabelledTask(EmbeddedTask):
    """The scenes that quantry draws, with their boxes."""

    def training(self, batch: int) -> Iterable[Labelled]:
        """Return scenes with their boxes."""
        return self.drawn.batches(batch)

    def loss(self, module: QuantizedModule) -> Loss:
        """Return the distance from the float model's rows and from the labels."""
        return LabelledLoss(DistillationLoss(module))


@dataclass(frozen=True)
class LabelledLoss:
    """The float model's rows and the labels.

    Attributes:
        pair: Runs both models.
        weight: Weight of the distance between rows, relative to the loss of the labels.
    """

    pair: DistillationLoss
    weight: float = ROWS_WEIGHT

    def __call__(self, _: QuantizedModule, batch: Labelled) -> Tensor:
        """Return the loss of a batch."""
        images, *truth = batch
        _, found, wanted = self.pair.compare(images)
        return self.weight * distance(found, wanted) + label_loss(found, truth)


def label_loss(rows: Tensor, truth: list[Tensor]) -> Tensor:
    """Return what rows [n, cells, 5 + classes] differ from the labels by.

    It is what the detector was trained with, but boxes count more, and most where they almost fit.

    Args:
        rows: Box offsets, object and class chances.
        truth: Boxes [n, g, 4] and labels [n, g].
    """
    cells = anchors(rows.device)
    raw, chances = rows[..., :4], rows[..., 4:].clamp(1e-6, 1 - 1e-6)
    corners = decode(raw, *cells)
    positive, index, shared = assign(corners, torch.logit(chances), (truth[0], truth[1]), cells)
    boxes = torch.gather(truth[0], 1, index[..., None].expand(-1, -1, 4))
    labels = torch.gather(truth[1], 1, index).clamp(min=0)
    weight = positive.float()
    middle, size = (boxes[..., :2] + boxes[..., 2:]) / 2, (boxes[..., 2:] - boxes[..., :2]).clamp(min=1.0)
    exact = torch.cat([middle / cells[1] - cells[0], torch.log(size / cells[1])], -1)
    covered = overlap(corners, boxes)
    loose = 5 * (1 - covered.square()) + TIGHT * looseness(covered)
    off = loose + 2 * (raw - exact).abs().sum(-1)
    target = functional.one_hot(labels, chances.shape[-1] - 1) * shared[..., None]
    kinds = functional.binary_cross_entropy(chances[..., 1:], target, reduction="none").sum(-1)
    objects = functional.binary_cross_entropy(chances[..., 0], weight, reduction="sum")
    return (((off + kinds) * weight).sum() + objects) / weight.sum().clamp(min=1)
