"""Steps of training for the rows of a layer on a GPU, one kernel for each step or one for all steps.

This module imports torch, so it is imported inside functions only.
"""

import functools
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from importlib import import_module, util
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows

from quantry.tune.recorded import Recorded
from quantry.tune.tensor_rows import TensorRows

Float = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]

_NARROW, _WIDE = 64, 128
"""Up to so many weights of a row one program does all steps of it, with the Gram matrix in registers; up to the second
number where there are no more rows than a GPU has processors."""
_PROCESSORS = 132

_COLUMNS, _RECORDED = 64, 10

_WARM: set[tuple[object, ...]] = set()
"""Kernels that have run in this process."""


@dataclass(frozen=True)
class _Tile:
    """What one program does in a step: rows, columns, how many columns it multiplies with at a time, and how."""

    tall: int
    wide: int
    deep: int
    num_warps: int
    num_stages: int


_TILES = (_Tile(64, 64, 64, 8, 3), _Tile(32, 64, 64, 4, 3), _Tile(16, 64, 64, 4, 3), _Tile(16, 32, 64, 4, 3))
"""The first is taken that keeps enough programs busy, else the last."""
_ENOUGH = 100


@functools.cache  # Asked for every layer; looking for a package that is not there scans the whole path.
def fused() -> Any:
    """Return the kernels, or None where there is no triton."""
    return import_module("quantry.tune.fused_kernels") if util.find_spec("triton") is not None else None


class FusedRows:
    """Trains on a GPU; see `quantry.tune.row_steps.NumpyRows`, whose results it has but for rounding.

    Args:
        problem: What to train; it is left as it was.
    """

    def __init__(self, problem: TensorRows) -> None:
        self._shape: tuple[int, int, int] = tuple(problem.value.shape)
        groups, rows, width = self._shape
        self._rounds, self._bias_moves = problem.floor is not None, problem.bias_moves
        self._narrow = width <= _NARROW or (width <= _WIDE and groups * rows <= _PROCESSORS)
        self._padded = max(16, 1 << (width - 1).bit_length()) if self._narrow else -(-width // _COLUMNS) * _COLUMNS
        value = problem.value
        zero = torch.zeros_like(value)
        floor = zero if problem.floor is None else problem.floor
        grid = [part.expand_as(value) for part in (problem.scale, problem.lowest, problem.highest)]
        parts = [value, zero, zero, floor, problem.cross, *grid, _start(problem), zero]
        # Beside the weights everything is zero but scales, so that weights there are zero and stay so.
        beside = [0.0] * 5 + [1.0] + [0.0] * 4
        planes = [self._pad(part, fill) for part, fill in zip(parts, beside, strict=True)]
        self._planes = torch.stack(planes).reshape(len(parts), groups * rows, self._padded)
        extra = self._padded - width
        self._gram = F.pad(problem.gram, (0, extra, 0, extra)).contiguous()
        self._mean = F.pad(problem.mean, (0, extra)).contiguous()
        none = torch.zeros_like(problem.bias)
        vectors = torch.stack([problem.bias, problem.bias, none, none, problem.target])
        self._vectors = vectors.reshape(5, groups * rows)
        self._bias_grid = problem.bias_grid.reshape(3, groups * rows).contiguous()
        self._tape: Recorded | None = None
        if not self._narrow:
            self._prepare_steps()

    def advance(self, schedule: Single) -> Float:
        """Make a step for each row of a schedule; return the loss before each."""
        device = self._planes.device
        entries = torch.from_numpy(np.ascontiguousarray(schedule, np.float32)).to(device)
        with torch.cuda.device(device) if entries.is_cuda else nullcontext():
            losses = self._all_steps(entries) if self._narrow else self._each_step(entries)
        return np.asarray(losses.sum(1, dtype=torch.float64).cpu().numpy())

    def trained(self) -> tuple[Any, Any]:
        """Return the trained numbers ``[groups, rows, width]`` and biases ``[groups, rows]``."""
        groups, rows, width = self._shape
        value = self._planes[0].reshape(groups, rows, self._padded)[:, :, :width]
        return value, self._vectors[0].reshape(groups, rows)

    def _all_steps(self, entries: Any) -> Any:
        groups, rows, _ = self._shape
        count = groups * rows
        losses = torch.empty(len(entries), count, device=entries.device)
        fused().row_kernel[(count,)](
            self._planes, self._gram, self._mean, self._vectors, self._bias_grid, entries, losses, len(entries), rows,
            width=self._padded, rounds=self._rounds, bias_moves=self._bias_moves,
            num_warps=max(1, self._padded**2 // 2048),
        )  # fmt: skip
        return losses

    def _prepare_steps(self) -> None:
        groups, rows, _ = self._shape

        def programs(tile: _Tile) -> int:
            return groups * -(-rows // tile.tall) * (self._padded // tile.wide)

        self._tile = next((tile for tile in _TILES if programs(tile) >= _ENOUGH), _TILES[-1])
        device = self._planes.device
        self._entries = torch.zeros(0, 4, device=device)
        self._losses = torch.zeros(0, programs(self._tile), device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)

    def _each_step(self, entries: Any) -> Any:
        """Make steps one by one; what is recorded reads its schedule from a fixed place and counts steps itself."""
        count = len(entries)
        if count > len(self._entries):
            self._entries = torch.empty(count, 4, device=entries.device)
            self._losses = torch.empty(count, self._losses.shape[1], device=entries.device)
            self._tape = None
        self._entries[:count] = entries
        self._position.zero_()
        done = 0
        if count > _RECORDED and entries.is_cuda:
            if self._tape is None:
                done = self._warm_up()
                self._tape = Recorded(lambda: self._make_steps(_RECORDED, moves=True), entries.device)
            times = (count - done) // _RECORDED
            self._tape.play(times)
            done += times * _RECORDED
        self._make_steps(count - done)
        return self._losses[:count]

    def _warm_up(self) -> int:
        """Make two steps where such a kernel has not run yet, since it cannot be compiled while it is recorded."""
        key = (self._tile, self._rounds, self._bias_moves, self._planes.device)
        if key in _WARM:
            return 0
        _WARM.add(key)
        self._make_steps(2, moves=True)
        return 2

    def _make_steps(self, count: int, *, moves: bool = False) -> None:
        groups, rows, _ = self._shape
        tile = self._tile
        grid = (self._padded // tile.wide, -(-rows // tile.tall), groups)
        # Three products of shortened numbers are nearly as exact as one of whole ones, and faster; not on AMD's GPUs.
        precision = "ieee" if torch.version.hip else "tf32x3"
        for number in range(count):
            fused().step_kernel[grid](
                self._planes, self._gram, self._mean, self._vectors, self._bias_grid, self._entries, self._position,
                self._losses, number, number % 2, rows, self._padded, rounds=self._rounds,
                bias_moves=self._bias_moves, precision=precision, **asdict(tile),
            )  # fmt: skip
        if count % 2:
            self._planes[8].copy_(self._planes[9])
            self._vectors[0].copy_(self._vectors[1])
        if moves:
            self._position.add_(count)

    def _pad(self, part: Any, fill: float) -> Any:
        return F.pad(part, (0, self._padded - part.shape[2]), value=fill)


def _start(problem: TensorRows) -> Any:
    """Return the weights before the first step."""
    if problem.floor is None:
        return problem.written(problem.value)
    up = (torch.sigmoid(problem.value) * 1.2 - 0.1).clamp_(0.0, 1.0)
    return torch.clamp(problem.floor + up, problem.lowest, problem.highest) * problem.scale
