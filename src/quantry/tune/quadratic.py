"""The reconstruction error of a layer as a quadratic form in its weights.

With columns ``x`` and targets ``y``, the mean squared error over all positions is::

    E |W x + b - y|^2  =  sum_rows( w G w' - 2 w d + y y ) + terms in b

so that after one pass over the samples, which gathers ``G = E x x'``, ``d = E x y`` and the means, no activation is
needed any more: neither for the best weights (least squares), nor for their best rounding.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quantry.tune.blas_threads import one_blas_thread
from quantry.tune.layer_matrix import LayerMatrix
from quantry.tune.threads import in_threads, threads
from quantry.tune.walker import LayerVisit

Float = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]

_POSITIONS_PER_COLUMN = 24
_FEWEST_POSITIONS = 16_384
_FEWEST_IN_GROUPS = 4_096
_NUMBERS_AT_ONCE = 2_000_000
_SMALL_PRODUCT = 1e7
_PARTS, _WIDE = 4, 512
"""Parts of the samples that are added up on their own, two where matrices are large; the number does not depend on the
machine, so that sums do not either."""


@dataclass(frozen=True, eq=False)
class Quadratic:
    """Second moments of a layer's columns and targets.

    Attributes:
        gram: ``E x x'`` about the means, ``[groups, width, width]``.
        cross: ``E x y`` about the means, ``[groups, width, rows]``.
        power: ``E y y`` about the means, ``[groups, rows]``.
        column_mean: ``[groups, width]``.
        target_mean: ``[groups, rows]``.
        count: Number of positions.
    """

    gram: Float
    cross: Float
    power: Float
    column_mean: Float
    target_mean: Float
    count: int

    def error(self, weight: npt.NDArray[np.floating], bias: npt.NDArray[np.floating]) -> Float:
        """Return the mean squared error of each row, ``[groups, rows]``.

        Args:
            weight: ``[groups, rows, width]``.
            bias: ``[groups, rows]``.
        """
        rows = weight.shape[1]
        share = rows if weight.size * self.gram.shape[1] < _SMALL_PRODUCT else -(-rows // threads())
        parts = [slice(start, start + share) for start in range(0, rows, share)]
        return np.concatenate(in_threads(lambda part: self._error(weight, bias, part), parts), axis=1)

    def _error(self, weight: npt.NDArray[np.floating], bias: npt.NDArray[np.floating], part: slice) -> Float:
        """Return the error of some rows."""
        exact = weight[:, part].astype(np.float64)
        centered = (
            np.einsum("grk,grk->gr", exact @ self.gram, exact)
            - 2.0 * np.einsum("grk,gkr->gr", exact, self.cross[:, :, part])
            + self.power[:, part]
        )
        shift = np.einsum("grk,gk->gr", exact, self.column_mean) + bias[:, part] - self.target_mean[:, part]
        return np.asarray(np.maximum(centered, 0.0) + shift**2)

    def best_bias(self, weight: npt.NDArray[np.floating]) -> Float:
        """Return the bias that leaves no mean error, ``[groups, rows]``."""
        return np.asarray(self.target_mean - np.einsum("grk,gk->gr", weight.astype(np.float64), self.column_mean))

    def of_layer(self, weight: npt.NDArray[np.floating], bias: npt.NDArray[np.floating]) -> "Quadratic":
        """Return the form whose targets are what a layer gives on the very columns that were gathered."""
        exact = weight.astype(np.float64)
        cross = self.gram @ exact.transpose(0, 2, 1)
        return Quadratic(
            gram=self.gram,
            cross=cross,
            power=np.einsum("grk,gkr->gr", exact, cross),
            column_mean=self.column_mean,
            target_mean=np.einsum("grk,gk->gr", exact, self.column_mean) + bias,
            count=self.count,
        )

    def without_bias(self, bias: npt.NDArray[np.floating]) -> "Quadratic":
        """Return the form for a bias that cannot change: moments about zero, of targets less the bias."""
        goal = self.target_mean - bias
        mean = self.column_mean
        return Quadratic(
            gram=self.gram + mean[:, :, None] * mean[:, None, :],
            cross=self.cross + mean[:, :, None] * goal[:, None, :],
            power=self.power + goal**2,
            column_mean=np.zeros_like(mean),
            target_mean=np.asarray(bias, np.float64),
            count=self.count,
        )


class _Moments:
    """Adds up second moments, many positions at a time: a sum of matrices costs as much as a short product."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Single, Single]] = []
        self._numbers = 0
        self._sums: list[Float] = []
        self._count = 0

    def add(self, columns: Single, targets: Single) -> None:
        """Take in columns and their targets."""
        self._waiting.append((columns, targets))
        self._numbers += columns.size
        if self._numbers >= _NUMBERS_AT_ONCE:
            self._flush()

    def finish(self) -> tuple[int, list[Float]]:
        """Return the number of positions and the sums over them."""
        if self._waiting:
            self._flush()
        return self._count, self._sums

    def _flush(self) -> None:
        x, y = (np.concatenate(parts, axis=1) for parts in zip(*self._waiting, strict=True))
        turned = x.transpose(0, 2, 1)
        parts = (turned @ x, turned @ y, (y * y).sum(1), x.sum(1), y.sum(1))
        if self._sums:
            for total, part in zip(self._sums, parts, strict=True):
                np.add(total, part, out=total)
        else:
            self._sums = [part.astype(np.float64) for part in parts]
        self._count += x.shape[1]
        self._waiting, self._numbers = [], 0


def positions_of(matrix: LayerMatrix, samples: int) -> int:
    """Return how many positions of a sample are taken in.

    Args:
        matrix: The layer.
        samples: How many samples there are.
    """
    fewest = _FEWEST_POSITIONS if matrix.groups == 1 else _FEWEST_IN_GROUPS
    return int(max(fewest, _POSITIONS_PER_COLUMN * min(matrix.width, 4096)) // samples) + 1


def centred(means: Sequence[Any]) -> tuple[Any, Any, Any, Any, Any]:
    """Return second moments about the means, and the means, as `Quadratic` has them.

    Args:
        means: Of columns times columns, columns times targets, squared targets, columns and targets; arrays or tensors.
    """
    gram, cross, power, columns, targets = means
    return (
        gram - columns[:, :, None] * columns[:, None, :],
        cross - columns[:, :, None] * targets[:, None, :],
        power - targets**2,
        columns,
        targets,
    )


def gather(visit: LayerVisit, matrix: LayerMatrix) -> Quadratic:
    """Return the quadratic form of a layer, from one pass over its samples.

    Args:
        visit: Inputs and targets.
        matrix: The layer as a product of matrices.
    """
    if visit.walker.device is not None:
        from quantry.tune.tensor_columns import gather_tensors, gathers

        if gathers(matrix):
            return gather_tensors(visit, matrix).arrays()
    share = positions_of(matrix, visit.samples)
    parts = min(_PARTS if matrix.width < _WIDE else 2, visit.samples)

    def add(first: int) -> tuple[int, list[Float]]:
        moments = _Moments()
        for sample in range(first, visit.samples, parts):
            values, output = visit.pair(sample)
            batch = max(1, values.shape[0] if values.ndim > 2 else 1)
            random = np.random.default_rng((visit.seed, sample))
            moments.add(*matrix.columns(values, output, max(1, share // batch), random))
        return moments.finish()

    with one_blas_thread():
        found = in_threads(add, range(parts))
    count = sum(number for number, _ in found)
    sums = [functools.reduce(np.add, same) for same in zip(*(part for _, part in found), strict=True)]
    return Quadratic(*centred([total / count for total in sums]), count=count)
