"""Rounding of weights in C: parts of the rows in a thread each; see `column_rounding`, whose results it has."""

import ctypes
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from quantry.native import library
from quantry.tune.threads import in_threads, row_parts

if TYPE_CHECKING:
    from quantry.tune.column_rounding import WeightGrid

Single = npt.NDArray[np.float32]


class _Broadcast(ctypes.Structure):
    """``broadcast_t`` of the C file."""

    _fields_ = (("values", ctypes.c_void_p), *((name, ctypes.c_ssize_t) for name in ("group", "row", "column")))


class _Grid(ctypes.Structure):
    """``grid_t`` of the C file."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("rows", "width")),
        *((name, _Broadcast) for name in ("scale", "lowest", "highest")),
    )


@functools.cache
def compiled() -> ctypes.CDLL | None:
    """Return the compiled functions, or None where there is no compiler."""
    found = library(Path(__file__).with_name("round_rows.c"), fast=True)
    if found is None:
        return None
    size, pointer, grid = ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(_Grid)
    for function, result in ((found.round_with_feedback, None), (found.descend, ctypes.c_int)):
        function.argtypes, function.restype = [grid, pointer, pointer, pointer, size, size], result
    return found


def feedback_rounded(functions: ctypes.CDLL, weight: Single, spread: Single, grid: "WeightGrid") -> Single:
    """Return weights rounded column by column; those that follow make up for the error of each.

    Args:
        functions: What `compiled` returned.
        weight: What to round, ``[groups, rows, width]``.
        spread: How much of it, ``[groups, width, width]``, contiguous.
        grid: The values to round to.
    """
    rest = np.array(weight, np.float32, order="C")
    result = rest.copy()
    _each_part(functions.round_with_feedback, grid, spread, rest, result)
    return result


def sweep(functions: ctypes.CDLL, current: Single, slope: Single, gram: Single, grid: "WeightGrid") -> bool:
    """Let each weight in turn take the best value for what the others are; return whether any changed.

    Args:
        functions: What `compiled` returned.
        current: On the grid, ``[groups, rows, width]``, contiguous; it is changed.
        slope: Half the derivative of the error, likewise; it is used up.
        gram: ``[groups, width, width]``, contiguous.
        grid: The values to choose from.
    """
    return any(_each_part(functions.descend, grid, gram, slope, current))


def _each_part(function: Any, grid: "WeightGrid", matrix: Single, work: Single, result: Single) -> list[Any]:
    groups, rows, width = result.shape
    parts = (grid.scale, grid.lowest, grid.highest)
    views = [np.broadcast_to(np.asarray(part, np.float32), result.shape) for part in parts]
    described = _Grid(
        rows, width, *(_Broadcast(view.ctypes.data, *(step // 4 for step in view.strides)) for view in views)
    )
    arrays = matrix.ctypes.data, work.ctypes.data, result.ctypes.data
    parts_of_rows = row_parts(groups * rows)
    return in_threads(lambda part: function(ctypes.byref(described), *arrays, part.start, part.stop), parts_of_rows)
