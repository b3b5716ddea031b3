"""Steps of training for the rows of a layer, compiled: parts of the rows in a thread each."""

import ctypes
import functools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantry.errors import InternalError
from quantry.native import library
from quantry.tune.row_problem import RowProblem
from quantry.tune.threads import in_threads, row_parts

Float = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]

_COLUMNS = 32
"""Rows are padded to a multiple of so many numbers."""

_SIZES = ("rows", "width", "padded", "rank", "rank_padded")
_ARRAYS = (
    "gram", "factor", "cross", "scale", "lowest", "highest", "mean", "value", "first", "second", "floor", "target",
    "bias_scale", "bias_lowest", "bias_highest", "bias", "bias_first", "bias_second",
)  # fmt: skip
_FLAGS = ("bias_moves", "rounds")


class _Layer(ctypes.Structure):
    """``layer_t`` of the C file."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in _SIZES),
        *((name, ctypes.c_void_p) for name in _ARRAYS),
        *((name, ctypes.c_int32) for name in _FLAGS),
    )


@functools.cache
def compiled() -> ctypes.CDLL | None:
    """Return the compiled functions, or None where there is no compiler."""
    found = library(Path(__file__).with_name("train_rows.c"), fast=True)
    if found is None:
        return None
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    found.pack_columns.argtypes, found.pack_columns.restype = [pointer, size, size, size, pointer], None
    found.train_rows.argtypes = [ctypes.POINTER(_Layer), pointer, size, size, size, pointer]
    found.train_rows.restype = ctypes.c_int
    return found


class CompiledRows:
    """Trains in C; see `NumpyRows`, whose results it has but for rounding.

    Args:
        problem: What to train; it is left as it was.
    """

    def __init__(self, problem: RowProblem) -> None:
        functions = compiled()
        assert functions is not None
        self._functions = functions
        self._shape = problem.value.shape
        _, rows, width = self._shape
        self._arrays = _padded(problem, _up(width))
        numbers: dict[str, Any] = {"rows": rows, "width": width, "padded": _up(width), "rank": 0, "rank_padded": 0}
        if problem.factor is None:
            self._arrays |= {"gram": self._packed(problem.gram), "factor": np.empty(0, np.float32)}
        else:
            turned = problem.factor.transpose(0, 2, 1)
            self._arrays |= {"gram": self._packed(turned), "factor": self._packed(problem.factor)}
            numbers |= {"rank": turned.shape[1], "rank_padded": _up(turned.shape[1])}
        numbers |= {"bias_moves": problem.bias_moves, "rounds": problem.floor is not None}
        self._layer = _Layer(**numbers, **{name: array.ctypes.data for name, array in self._arrays.items()})

    def _packed(self, matrices: Single) -> Single:
        """Return the columns of matrices ``[groups, lines, columns]`` in panels."""
        groups, lines, columns = matrices.shape
        packed = np.empty((groups, lines * _up(columns)), np.float32)
        for group in range(groups):
            matrix = np.ascontiguousarray(matrices[group])
            self._functions.pack_columns(matrix.ctypes.data, lines, columns, _up(columns), packed[group].ctypes.data)
        return packed

    def advance(self, schedule: Single) -> Float:
        """Make a step for each row of a schedule; return the loss before each."""
        schedule = np.ascontiguousarray(schedule, np.float32)
        parts = row_parts(self._shape[0] * self._shape[1])
        losses = np.zeros((len(parts), len(schedule)))

        def train(number: int) -> int:
            part = parts[number]
            arguments = schedule.ctypes.data, len(schedule), part.start, part.stop, losses[number].ctypes.data
            return int(self._functions.train_rows(ctypes.byref(self._layer), *arguments))

        if any(in_threads(train, range(len(parts)))):
            raise InternalError(f"training a layer of {self._shape} weights must find memory, got none; in tune")
        return np.asarray(losses.sum(0))

    def trained(self) -> tuple[Single, Single]:
        """Return the trained numbers and biases."""
        groups, rows, width = self._shape
        value = self._arrays["value"].reshape(groups, rows, -1)[:, :, :width]
        return value, self._arrays["bias"].reshape(groups, rows)


def _up(columns: int) -> int:
    return -(-columns // _COLUMNS) * _COLUMNS


def _padded(problem: RowProblem, padded: int) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that C works on; numbers beside the weights are such that they stay as they are."""
    shape = problem.value.shape

    def rows(array: Single, beside: float) -> Single:
        result = np.full((*shape[:2], padded), beside, np.float32)
        result[:, :, : shape[2]] = array
        return result

    grid = problem.bias_grid
    mean = np.zeros((shape[0], padded), np.float32)
    mean[:, : shape[2]] = problem.mean
    rounds = problem.floor is not None
    weights = rows(np.zeros(1, np.float32), 0.0)
    return {
        "cross": rows(problem.cross, 0.0),
        "scale": rows(problem.scale, 1.0),
        "lowest": rows(problem.lowest, 0.0),
        "highest": rows(problem.highest, 0.0),
        "mean": mean,
        # Rounded down all the way.
        "value": rows(problem.value, -20.0 if rounds else 0.0),
        "first": weights,
        "second": weights.copy(),
        "floor": weights[:0] if problem.floor is None else rows(problem.floor, 0.0),
        "target": np.ascontiguousarray(problem.target),
        "bias_scale": grid.scale,
        "bias_lowest": grid.lowest,
        "bias_highest": grid.highest,
        "bias": problem.bias.astype(np.float32),
        "bias_first": np.zeros_like(problem.target),
        "bias_second": np.zeros_like(problem.target),
    }
