"""The eight views of a square picture, and a detector's rows of them.

The detector says something else to a mirrored or turned picture, and where it errs it errs otherwise: the mean of its
eight answers finds boxes far better than one does, and needs no labels.
"""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from quantry.torch import View

LEFT, TOP, WIDTH, HEIGHT = range(4)


@dataclass(frozen=True)
class SquareView:
    """A picture upside down, mirrored and transposed, each or not, in this order.

    Attributes:
        upturned: Whether rows of pixels change places.
        mirrored: Whether columns do.
        transposed: Whether rows become columns.
        sides: How many cells each level of the rows has along a side.
    """

    upturned: bool
    mirrored: bool
    transposed: bool
    sides: tuple[int, ...]

    def picture(self, images: Tensor) -> Tensor:
        """Return the view of pictures [n, c, h, w]."""
        turned = [axis for axis, asked in ((2, self.upturned), (3, self.mirrored)) if asked]
        seen = images.flip(turned)
        return (seen.transpose(2, 3) if self.transposed else seen).contiguous()

    def back(self, rows: Tensor) -> Tensor:
        """Return the rows [n, cells, 4 + ...] of a view as those of the picture."""
        levels = rows.split([side * side for side in self.sides], 1)
        grids = [level.unflatten(1, (side, side)) for level, side in zip(levels, self.sides, strict=True)]
        return torch.cat([self._grid_back(grid).flatten(1, 2) for grid in grids], 1)

    def _grid_back(self, grid: Tensor) -> Tensor:
        """Return cells [n, y, x, 4 + ...] whose centres are offsets from their upper left corner."""
        if self.transposed:
            order = [TOP, LEFT, HEIGHT, WIDTH, *range(4, grid.shape[-1])]
            grid = grid.transpose(1, 2)[..., order]
        if self.mirrored:
            grid = _mirrored(grid.flip(2), LEFT)
        return _mirrored(grid.flip(1), TOP) if self.upturned else grid


def square_views(sides: tuple[int, ...]) -> list[View]:
    """Return the eight views of a square picture for a detector with so many cells along a side at each level."""
    kinds = itertools.product((False, True), repeat=3)
    return [View(view.picture, view.back) for view in (SquareView(*kind, sides) for kind in kinds)]


def _mirrored(grid: Tensor, which: int) -> Tensor:
    offsets = grid.clone()
    offsets[..., which] = 1 - grid[..., which]
    return offsets
