"""Drawn scenes to train the embedded detector on, with the boxes of what was drawn."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quantry import demo

# The detector was trained with the same scenes and variations.
sys.path.append(str(Path(__file__).resolve().parents[1]))

import train_detector

FEW = 512

Labelled = tuple[Tensor, Tensor, Tensor]
"""Pictures [n, 3, h, w], boxes [n, g, 4] and labels [n, g], -1 where there is none."""


@dataclass(frozen=True)
class DrawnScenes:
    """Scenes that are drawn ahead and come back mirrored, turned and in other colours.

    Attributes:
        count: How many.
        device: Where they are kept, as bytes.
    """

    count: int = FEW
    device: str = "cpu"

    def draw(self) -> Labelled:
        """Draw them, on all cores where they are many."""
        if self.count > FEW:
            return train_detector.load(self.count, torch.device(self.device))
        pictures, boxes, labels = labelled(demo.training_scenes(self.count))
        return pictures.to(self.device), boxes.to(self.device), labels.to(self.device)

    def batches(self, size: int) -> Iterator[Labelled]:
        """Yield batches without end."""
        return train_detector.batches(self.draw(), min(size, self.count))


def labelled(scenes: Iterable[demo.Scene]) -> Labelled:
    """Return scenes as a batch, pictures as bytes."""
    drawn = list(scenes)
    boxes = np.zeros((len(drawn), train_detector.MOST_OBJECTS, 4), np.float32)
    labels = np.full((len(drawn), train_detector.MOST_OBJECTS), -1, np.int64)
    for place, one in enumerate(drawn):
        boxes[place, : len(one.boxes)], labels[place, : len(one.labels)] = one.boxes, one.labels
    pictures = np.stack([one.image.transpose(2, 0, 1) for one in drawn])
    return torch.from_numpy(pictures), torch.from_numpy(boxes), torch.from_numpy(labels)
