"""Half-quadratic quantization of groups: scale and zero point that ignore outliers where that pays.

Badri and Shaji, "Half-quadratic quantization of large machine learning models"
(https://mobiusml.github.io/hqq_blog, 2023) minimize ``|x - s (q - z)|_p`` with ``p < 1`` by splitting off the outliers
``e``. With ``x`` fixed, each round solves two small problems::

    e = shrink(x - s (q - z))      shrink(r) = sign(r) max(0, |r| - |r|**(p - 1) / beta)
    z = mean(q - (x - e) / s)      beta grows from round to round

Here the scale is fitted to what is left too, ``s = <x - e, q - z> / <q - z, q - z>``, and the zero point is rounded to
an integer, which runtimes store. Of all rounds of a group, the one with the least squared error wins: the norm alone
would clip outliers that matter.
"""

import numpy as np
import numpy.typing as npt

from quantry.numerics.affine import Affine, scale_and_zero_point
from quantry.numerics.grid import Grid
from quantry.numerics.rounding import round_and_clip
from quantry.recipe import HalfQuadratic

Floats = npt.NDArray[np.float64]

_BETA, _GROWTH = 10.0, 1.01  # the paper's start and growth of beta, for values in units of the scale
_STARTS = (1.0, 0.8, 0.65)  # parts of the whole range: the rounds find the nearest minimum only
_TILE = 1 << 12  # groups at a time, so that temporary arrays stay in the cache


def half_quadratic_groups(rows: npt.NDArray[np.float32], grid: Grid, options: HalfQuadratic) -> Affine:
    """Return scale and zero point of each row.

    Args:
        rows: Finite values, one group per row.
        grid: The integers in use, asymmetric, with float scales.
        options: The norm and the number of rounds.
    """
    results = [_minimized(rows[start : start + _TILE], grid, options) for start in range(0, len(rows), _TILE)]
    scale, zero_point = (np.concatenate([result[index] for result in results]) for index in (0, 1))
    return Affine(scale.astype(np.float32), zero_point.astype(np.int64))


def _minimized(rows: npt.NDArray[np.float32], grid: Grid, options: HalfQuadratic) -> tuple[Floats, Floats]:
    values = rows.astype(np.float64)
    low, high = values.min(axis=1), values.max(axis=1)
    best, least = (np.ones(len(rows)), np.zeros(len(rows))), np.full(len(rows), np.inf)
    for start_share in _STARTS:
        start = scale_and_zero_point(low * start_share, high * start_share, grid)
        result, error = _from(start, values, grid, options)
        better = error < least
        least = np.where(better, error, least)
        best = np.where(better, result[0], best[0]), np.where(better, result[1], best[1])
    return best


def _from(
    start: tuple[Floats, Floats], values: Floats, grid: Grid, options: HalfQuadratic
) -> tuple[tuple[Floats, Floats], Floats]:
    """Return the best scales and zero points of all rounds from a start, and their errors."""
    scale, zero = start
    best = start
    least = _error(values, scale, zero, grid)
    beta = _BETA
    for _ in range(options.rounds):
        steps = _steps(values, scale, zero, grid)
        residual = values / scale[:, None] - steps
        size = np.abs(residual)
        # |r|**(p - 1) is infinite at 0, where nothing is left to shrink.
        smaller = np.maximum(size - np.maximum(size, 1e-12) ** (options.power - 1) / beta, 0.0)
        target = values / scale[:, None] - np.sign(residual) * smaller
        zero = round_and_clip(zero + (steps - target).mean(axis=1), grid.lowest, grid.highest)
        steps = _steps(values, scale, zero, grid)
        square = np.square(steps).sum(axis=1)
        fitted = scale * (target * steps).sum(axis=1) / np.maximum(square, 1e-30)
        scale = np.where((square > 0) & (fitted > scale / 4), fitted, scale)
        error = _error(values, scale, zero, grid)
        better = error < least
        least = np.where(better, error, least)
        best = np.where(better, scale, best[0]), np.where(better, zero, best[1])
        beta *= _GROWTH
    return best, least


def _steps(values: Floats, scale: Floats, zero: Floats, grid: Grid) -> Floats:
    """Return the integers minus the zero point."""
    ends = (grid.lowest - zero)[:, None], (grid.highest - zero)[:, None]
    return round_and_clip(values / scale[:, None], *ends)


def _error(values: Floats, scale: Floats, zero: Floats, grid: Grid) -> Floats:
    difference = values - _steps(values, scale, zero, grid) * scale[:, None]
    return np.asarray(np.square(difference).sum(axis=1))
