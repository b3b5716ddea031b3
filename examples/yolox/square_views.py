"""The eight views of a square picture, and a detector's rows of them.

The detector says something else to a mirrored or turned picture, and where it errs it errs otherwise: the mean of its
eight answers finds boxes far better than one does, and needs no labels.
"""

import itertools
from dataclasses import dataclass

import torch
from drawn_scenes import train_detector
from torch import Tensor

X, Y, WIDTH, HEIGHT = range(4)
SIDES = tuple(train_detector.IMAGE_SIZE // stride for stride in train_detector.STRIDES)


@dataclass(frozen=True)
class SquareView:
    """A picture upside down, mirrored and transposed, each or not, in this order.

    Attributes:
        upturned: Whether rows of pixels change places.
        mirrored: Whether columns do.
        transposed: Whether rows become columns.
    """

    upturned: bool
    mirrored: bool
    transposed: bool

    def picture(self, images: Tensor) -> Tensor:
        """Return the view of pictures [n, c, h, w]."""
        turned = [axis for axis, asked in ((2, self.upturned), (3, self.mirrored)) if asked]
        seen = images.flip(turned)
        return (seen.transpose(2, 3) if self.transposed else seen).contiguous()

    def rows(self, rows: Tensor) -> Tensor:
        """Return the rows [n, cells, 4 + ...] of pictures as those of their views."""
        grids = [self._transposed(self._turned(grid)) for grid in _grids(rows)]
        return torch.cat([grid.flatten(1, 2) for grid in grids], 1)

    def back(self, rows: Tensor) -> Tensor:
        """Return the rows [n, cells, 4 + ...] of views as those of the pictures."""
        grids = [self._turned(self._transposed(grid)) for grid in _grids(rows)]
        return torch.cat([grid.flatten(1, 2) for grid in grids], 1)

    def _turned(self, grid: Tensor) -> Tensor:
        if self.upturned:
            grid = _mirrored(grid.flip(1), Y)
        return _mirrored(grid.flip(2), X) if self.mirrored else grid

    def _transposed(self, grid: Tensor) -> Tensor:
        order = [Y, X, HEIGHT, WIDTH, *range(4, grid.shape[-1])]
        return grid.transpose(1, 2)[..., order] if self.transposed else grid


VIEWS = tuple(SquareView(*kind) for kind in itertools.product((False, True), repeat=3))


def _grids(rows: Tensor) -> list[Tensor]:
    """Return each level's cells [n, y, x, 4 + ...]."""
    levels = rows.split([side * side for side in SIDES], 1)
    return [level.unflatten(1, (side, side)) for level, side in zip(levels, SIDES, strict=True)]


def _mirrored(grid: Tensor, which: int) -> Tensor:
    """Return cells whose centres, offsets from a corner of the cell, count from the other side."""
    offsets = grid.clone()
    offsets[..., which] = 1 - grid[..., which]
    return offsets
