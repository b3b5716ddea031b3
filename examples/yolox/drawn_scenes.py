"""Drawn scenes to train the embedded detector on, with the boxes of what was drawn."""

import itertools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quantry import demo

# The detector was trained beside this folder, with the scenes and their variations that are needed here.
sys.path.append(str(Path(__file__).resolve().parents[1]))

import train_detector

FRESH = 1_000_000

Labelled = tuple[Tensor, Tensor, Tensor]
"""Pictures [n, 3, h, w], boxes [n, g, 4] and labels [n, g], -1 where there is none."""


@dataclass(frozen=True)
class DrawnScenes:
    """Scenes that are drawn ahead on all cores and come back mirrored, turned and in other colours.

    A GPU trains faster than one core draws.

    Attributes:
        count: How many.
        device: Where they are kept, as bytes.
    """

    count: int
    device: str

    def batches(self, size: int) -> Iterator[Labelled]:
        """Yield batches without end."""
        scenes = train_detector.load(self.count, torch.device(self.device))
        return train_detector.batches(scenes, size)


def batches(drawn: DrawnScenes | None, size: int) -> Iterator[Labelled]:
    """Yield batches without end: of scenes drawn ahead, or of new ones."""
    if drawn is not None:
        return drawn.batches(size)
    scenes = demo.training_scenes(FRESH)
    return iter(lambda: labelled(itertools.islice(scenes, size)), None)


def labelled(scenes: Iterable[demo.Scene]) -> Labelled:
    """Return scenes as a batch."""
    drawn = list(scenes)
    boxes = np.zeros((len(drawn), train_detector.MOST_OBJECTS, 4), np.float32)
    labels = np.full((len(drawn), train_detector.MOST_OBJECTS), -1, np.int64)
    for place, one in enumerate(drawn):
        boxes[place, : len(one.boxes)], labels[place, : len(one.labels)] = one.boxes, one.labels
    pictures = np.concatenate([demo.image_tensor(one) for one in drawn])
    return torch.from_numpy(pictures), torch.from_numpy(boxes), torch.from_numpy(labels)
