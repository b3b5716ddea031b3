"""Training steps for all rows of a layer with torch: the GPU backend of AdaRound and AdaQuant.

`TorchRows` is the arithmetic in plain torch, on any device. `TritonRows` does the same with fused kernels where triton
is installed, as it is with torch for NVIDIA and AMD GPUs on Linux: a step is a dozen small operations, each of which
costs more to start than to compute.

This module imports torch, so it is imported inside functions only.
"""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from importlib import import_module, util
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name

from quantry.execute.trainable_graph import torch_device
from quantry.runtime.threads import threads_for
from quantry.tune.arrays import Load
from quantry.tune.gpu_form import device_form
from quantry.tune.layer_problem import LayerProblem
from quantry.tune.row_backends import BETAS, EPSILON, RowBackend, RowSteps
from quantry.tune.row_problem import HIGH, LOW, RowProblem, row_problem

Float = npt.NDArray[np.float64]
Slope = Callable[[Any, Any], tuple[Any, Any, Any]]
"""From weights and biases to the loss and its derivatives with respect to both."""


def gpu_backend(problem: LayerProblem, device: str, *, rounds: bool) -> RowBackend:
    """Return the backend that trains on a GPU; nothing but losses leaves the GPU before the end.

    Args:
        problem: The layer.
        device: The GPU, as the recipe names it.
        rounds: Train as AdaRound does, otherwise as AdaQuant does.
    """
    device = torch_device(device)
    form, load = device_form(problem, device), loader(device)
    steps = torch_steps(row_problem(problem, form, rounds=rounds, load=load))
    return tensor_backend(steps, form.error, load, constant=float(form.power.sum()))


def torch_steps(rows: RowProblem) -> RowSteps:
    """Return the fastest implementation for rows with a quadratic form."""
    if triton_kernels() is None or not rows.value.is_cuda:
        return TorchRows(rows, quadratic_slope(rows))
    return TritonRows(rows)


def tensor_backend(
    steps: RowSteps,
    error: Callable[[Any, Any], Any],
    load: Load,
    *,
    constant: float = 0.0,
    per_row: bool = True,
) -> RowBackend:
    """Return a backend whose arrays are tensors; see `RowBackend`."""
    return RowBackend(steps, error, constant, per_row, load, store=lambda tensor: tensor.detach().cpu().numpy())


def loader(device: str) -> Load:
    """Return a function that copies arrays to tensors on a device."""
    return lambda array: torch.from_numpy(np.array(array)).to(device)


def quadratic_slope(rows: RowProblem) -> Slope:
    """Return the loss of a quadratic form, without its constant term, and its derivatives."""

    def slope(weight: Any, bias: Any) -> tuple[Any, Any, Any]:
        product = torch.bmm(weight, rows.gram)
        shift = torch.einsum("grk,gk->gr", weight, rows.mean).add_(bias).sub_(rows.target)
        loss = (weight * (product - 2.0 * rows.cross)).sum() + shift.square().sum()
        by_weight = product.sub_(rows.cross).mul_(2.0)
        by_weight += 2.0 * shift[:, :, None] * rows.mean[:, None, :]
        return loss, by_weight, 2.0 * shift

    return slope


class TorchRows:
    """Trains in plain torch.

    Args:
        rows: What to train; not changed.
        slope: The loss and its derivatives.
    """

    def __init__(self, rows: RowProblem, slope: Slope) -> None:
        self._rows, self._slope = rows, slope
        self._value, self._bias = rows.value.clone(), rows.bias.clone()
        self._adam, self._bias_adam = Adam(self._value), Adam(self._bias)

    def advance(self, schedule: Float) -> Float:
        """Make one step per row of the schedule; return the loss before each."""
        step = self._quantize if self._rows.floor is None else self._round
        with threads_for(self._value.numel()):
            losses = [step(*entry) for entry in np.asarray(schedule).tolist()]
        return np.asarray(torch.stack(losses).double().cpu().numpy())

    def trained(self) -> tuple[Any, Any]:
        """Return the trained values and biases."""
        return self._value, self._bias

    def written(self) -> tuple[Any, Any]:
        """Return the weights as they would be written now, and the trained biases."""
        return self._rows.written(self._value), self._bias

    def _round(self, rate: float, spread: float, beta: float, strength: float) -> Any:
        rows = self._rows
        sigmoid = torch.sigmoid(self._value)
        up = (sigmoid * (HIGH - LOW) + LOW).clamp_(0.0, 1.0)
        levels = rows.floor + up
        weight = torch.clamp(levels, rows.lowest, rows.highest) * rows.scale
        loss, slope, _ = self._slope(weight, self._bias)
        slope = slope * rows.scale * ((levels >= rows.lowest) & (levels <= rows.highest))
        centered = 2.0 * up - 1.0
        # During the warm start the exponent is 0, and 0 to the power of -1 would be infinite.
        exponent = max(beta, 1.0)
        away = centered.abs().pow_(exponent - 1.0).mul_(centered.sign())
        slope -= away.mul_(2.0 * exponent * strength)
        slope *= sigmoid * (1.0 - sigmoid) * (HIGH - LOW) * ((up > 0.0) & (up < 1.0))
        self._adam.step(slope, rate, spread)
        return loss

    def _quantize(self, rate: float, spread: float, *_: float) -> Any:
        rows = self._rows
        levels = torch.round(self._value / rows.scale)
        weight = torch.clamp(levels, rows.lowest, rows.highest) * rows.scale
        loss, slope, bias_slope = self._slope(weight, rows.bias_grid.round(self._bias))
        self._adam.step(slope * ((levels >= rows.lowest) & (levels <= rows.highest)), rate, spread)
        if rows.bias_moves:
            self._bias_adam.step(bias_slope, rate, spread)
        return loss


class Adam:
    """Kingma and Ba (https://arxiv.org/abs/1412.6980), for one tensor, in place.

    Args:
        parameter: What is trained.
    """

    def __init__(self, parameter: Any) -> None:
        self._parameter = parameter
        self._first, self._second = torch.zeros_like(parameter), torch.zeros_like(parameter)

    def step(self, gradient: Any, rate: float, spread: float) -> None:
        """Make a step; learning rate and factor of the second moment include the bias correction."""
        self._first.mul_(BETAS[0]).add_(gradient, alpha=1 - BETAS[0])
        self._second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        self._parameter -= self._first * rate / (self._second * spread).sqrt_().add_(EPSILON)


# Rows with at most _NARROW weights make all steps inside one program, with the Gram matrix in registers. Up to _WIDE
# weights that still pays if there are no more rows than the GPU has processors, since each row then has one to itself.
_NARROW, _WIDE = 64, 128
_PROCESSORS = 132

# Wider rows are padded to a multiple of this, the width of a tile.
_COLUMNS = 64

# Steps that one CUDA graph holds; starting kernels one by one would leave the GPU idle between small ones.
_RECORDED = 10

_COMPILED: set[tuple[object, ...]] = set()
"""Kernels that have run in this process: compiling one cannot be recorded in a CUDA graph."""


@dataclass(frozen=True)
class _Tile:
    """What one program does in a step: rows, columns, columns per partial product, and how it is scheduled."""

    tall: int
    wide: int
    deep: int
    num_warps: int
    num_stages: int


# The first tile that gives at least _ENOUGH programs is used, otherwise the last: larger tiles reuse more of what they
# load, but too few programs leave processors idle. Measured on an H200.
_TILES = (_Tile(64, 64, 64, 8, 3), _Tile(32, 64, 64, 4, 3), _Tile(16, 64, 64, 4, 3), _Tile(16, 32, 64, 4, 3))
_ENOUGH = 100


@functools.cache  # Searching the import path for a package is slow, and every layer asks.
def triton_kernels() -> Any:
    """Return the kernels, or None if triton is not installed."""
    return import_module("quantry.tune.triton_kernels") if util.find_spec("triton") is not None else None


class TritonRows:
    """Trains with fused kernels; results differ from those of `TorchRows` only by rounding.

    Args:
        rows: What to train; not changed.
    """

    def __init__(self, rows: RowProblem) -> None:
        self._rows = rows
        self._shape: tuple[int, int, int] = tuple(rows.value.shape)
        groups, count, width = self._shape
        self._rounds, self._bias_moves = rows.floor is not None, rows.bias_moves
        self._narrow = width <= _NARROW or (width <= _WIDE and groups * count <= _PROCESSORS)
        self._padded = max(16, 1 << (width - 1).bit_length()) if self._narrow else -(-width // _COLUMNS) * _COLUMNS
        value = rows.value
        zero = torch.zeros_like(value)
        floor = zero if rows.floor is None else rows.floor
        steps = [limit.expand_as(value) for limit in (rows.scale, rows.lowest, rows.highest)]
        sources = [value, zero, zero, floor, rows.cross, *steps, _start(rows), zero]
        # Padding is zero except for scales, which must not be: its weights are zero then and stay so.
        fills = [0.0] * 5 + [1.0] + [0.0] * 4
        margin = (0, self._padded - width)
        planes = [F.pad(source, margin, value=fill) for source, fill in zip(sources, fills, strict=True)]
        self._planes = torch.stack(planes).reshape(len(sources), groups * count, self._padded)
        self._gram = F.pad(rows.gram, margin * 2).contiguous()
        self._mean = F.pad(rows.mean, margin).contiguous()
        none = torch.zeros_like(rows.bias)
        vectors = torch.stack([rows.bias, rows.bias, none, none, rows.target])
        self._vectors = vectors.reshape(5, groups * count)
        grid = rows.bias_grid
        self._bias_grid = torch.stack([grid.scale, grid.lowest, grid.highest]).reshape(3, groups * count)
        self._recorded: _Recorded | None = None
        if not self._narrow:
            self._prepare_steps()

    def advance(self, schedule: Float) -> Float:
        """Make one step per row of the schedule; return the loss before each."""
        device = self._planes.device
        entries = torch.from_numpy(np.ascontiguousarray(schedule, np.float32)).to(device)
        with torch.cuda.device(device) if entries.is_cuda else nullcontext():
            losses = self._all_steps(entries) if self._narrow else self._each_step(entries)
        return np.asarray(losses.sum(1, dtype=torch.float64).cpu().numpy())

    def trained(self) -> tuple[Any, Any]:
        """Return the trained values and biases."""
        groups, count, width = self._shape
        value = self._planes[0].reshape(groups, count, self._padded)[:, :, :width]
        return value, self._vectors[0].reshape(groups, count)

    def written(self) -> tuple[Any, Any]:
        """Return the weights as they would be written now, and the trained biases."""
        value, bias = self.trained()
        return self._rows.written(value), bias

    def _all_steps(self, entries: Any) -> Any:
        groups, rows, _ = self._shape
        count = groups * rows
        losses = torch.empty(len(entries), count, device=entries.device)
        triton_kernels().row_kernel[(count,)](
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
        """Make steps one by one; what is recorded reads its schedule from a fixed address and counts steps itself."""
        count = len(entries)
        if count > len(self._entries):
            self._entries = torch.empty(count, 4, device=entries.device)
            self._losses = torch.empty(count, self._losses.shape[1], device=entries.device)
            self._recorded = None
        self._entries[:count] = entries
        self._position.zero_()
        done = 0
        if count > _RECORDED and entries.is_cuda:
            if self._recorded is None:
                done = self._compile()
                self._recorded = _Recorded(lambda: self._make_steps(_RECORDED, moves=True), entries.device)
            times = (count - done) // _RECORDED
            self._recorded.replay(times)
            done += times * _RECORDED
        self._make_steps(count - done)
        return self._losses[:count]

    def _compile(self) -> int:
        """Make two steps if this kernel has not run yet, and return how many were made."""
        key = (self._tile, self._rounds, self._bias_moves, self._planes.device)
        if key in _COMPILED:
            return 0
        _COMPILED.add(key)
        self._make_steps(2, moves=True)
        return 2

    def _make_steps(self, count: int, *, moves: bool = False) -> None:
        groups, rows, _ = self._shape
        tile = self._tile
        grid = (self._padded // tile.wide, -(-rows // tile.tall), groups)
        # Three products of TF32 parts are nearly as exact as one of float32, and faster; AMD's GPUs have no TF32.
        precision = "ieee" if torch.version.hip else "tf32x3"
        for number in range(count):
            triton_kernels().step_kernel[grid](
                self._planes, self._gram, self._mean, self._vectors, self._bias_grid, self._entries, self._position,
                self._losses, number, number % 2, rows, self._padded, rounds=self._rounds,
                bias_moves=self._bias_moves, precision=precision, **asdict(tile),
            )  # fmt: skip
        # Steps alternate between two planes; after an odd number the result is in the second.
        if count % 2:
            self._planes[8].copy_(self._planes[9])
            self._vectors[0].copy_(self._vectors[1])
        if moves:
            self._position.add_(count)


class _Recorded:
    """Kernels that a function starts, recorded in a CUDA graph and started together.

    Everything they read and write must have a fixed address, and they must have run before: the first call of a library
    sets it up, which cannot be recorded.

    Args:
        start: Starts the kernels.
        device: Where they run.
    """

    def __init__(self, start: Callable[[], None], device: Any) -> None:
        self._graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            # torch.cuda.graph would also collect garbage and empty the allocator's cache, which takes longer than
            # training a small layer.
            self._graph.capture_begin()
            try:
                start()
            finally:
                self._graph.capture_end()
        torch.cuda.current_stream(device).wait_stream(side)

    def replay(self, times: int) -> None:
        """Start all kernels again, this many times."""
        for _ in range(times):
            self._graph.replay()


def _start(rows: RowProblem) -> Any:
    """Return the weights before the first step."""
    if rows.floor is None:
        return rows.written(rows.value)
    up = (torch.sigmoid(rows.value) * (HIGH - LOW) + LOW).clamp_(0.0, 1.0)
    return torch.clamp(rows.floor + up, rows.lowest, rows.highest) * rows.scale
