"""Scenes with what the float detector says to eight views of each, so that it is asked once and not at every step."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from square_views import VIEWS
from torch import Tensor, nn

from quantry.torch import AveragedTeacher, View

AT_ONCE = 64

Taught = tuple[Tensor, Tensor]
"""Pictures [n, 3, h, w] and the rows that are wanted of them, [n, cells, 5 + classes]."""


@dataclass(frozen=True)
class TaughtScenes:
    """Scenes to train on without labels.

    Attributes:
        pictures: [n, 3, h, w], as bytes.
        wanted: The mean of the float detector's rows, [n, cells, 5 + classes].
    """

    pictures: Tensor
    wanted: Tensor

    def batches(self, size: int) -> Iterator[Taught]:
        """Yield shuffled batches without end, each seen from one of the eight sides and with its colours exchanged."""
        while True:
            order = torch.randperm(len(self.pictures)).to(self.pictures.device)
            full = len(order) - len(order) % min(size, len(order))  # a recorded step takes batches of one size
            for chosen in order[:full].split(size):
                view = VIEWS[int(torch.randint(len(VIEWS), ()))]
                pictures = self.pictures[chosen][:, torch.randperm(3).to(chosen.device)].float()
                yield view.picture(pictures), view.rows(self.wanted[chosen])


@torch.no_grad()
def taught(detector: nn.Module, pictures: Tensor) -> TaughtScenes:
    """Ask the float detector for the rows of eight views of pictures, given as bytes."""
    print(f"  asking the float detector for {len(VIEWS)} views of {len(pictures)} scenes", flush=True)
    teacher = AveragedTeacher(detector, [View(view.picture, view.back) for view in VIEWS])
    return TaughtScenes(pictures, torch.cat([teacher(part.float()) for part in pictures.split(AT_ONCE)]))
