"""The output error of a layer as a quadratic form of its weights.

With columns ``x`` and targets ``y``, the mean squared error over all positions is::

    E |W x + b - y|^2  =  sum_rows( w G w' - 2 w d + y y ) + terms in b

One pass over the samples gathers ``G = E x x'``, ``d = E x y`` and the means. After that no activation is needed any
more, neither for the best weights (least squares) nor for their best rounding.

The target also decides how far a layer compensates errors of its inputs. The quantized layer reads ``x``, the output of
quantized layers, and its target is ``y``, the output of the float layer. The difference ``y - W x - b`` for the float
constants is the error of the inputs. Other constants can compensate a part of it, but with few samples most of that is
overfitting and makes new samples worse. So the samples are split in two: the best constants for one half are tried on
the other half, and the target moves from ``W x + b`` towards ``y`` only as far as that helps there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from quantry.runtime.threads import in_threads, one_blas_thread
from quantry.tune.layer_matrix import LayerMatrix
from quantry.tune.layers import NORMALIZATIONS
from quantry.tune.layerwise import LayerVisit

if TYPE_CHECKING:
    from quantry.tune.gpu_form import TensorForm

Float = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]

# How many positions of all samples together are gathered: enough equations for every weight of a row, but at least a
# minimum, which is smaller for the many narrow forms of a grouped convolution.
_POSITIONS_PER_COLUMN = 24
_FEWEST_POSITIONS = 16_384
_FEWEST_IN_GROUPS = 4_096

# Training keeps weights near their start, so half of the positions are enough for it.
_TRAINED = 0.5

# Columns are collected up to this size before they are multiplied: adding a matrix costs as much as a short product.
_NUMBERS_AT_ONCE = 2_000_000

# Larger products are split by rows, because their intermediate results would need much memory.
_SMALL_PRODUCT = 1e7
_ROWS_AT_ONCE = 128

# The samples are added up in this many parts, in two if rows are wider than _WIDE, since each part holds a Gram matrix.
# The number does not depend on the machine, so that sums do not either.
_PARTS, _WIDE = 4, 512

# Damping of the constants that are tried on the other half, as a share of the mean diagonal of the Gram matrix.
_COMPENSATION_DAMPING = 0.1


@dataclass(frozen=True, eq=False)
class QuadraticForm:
    """Second moments of a layer's columns and targets.

    Attributes:
        gram: ``E x x'`` about the means, ``[groups, width, width]``.
        cross: ``E x y`` about the means, ``[groups, width, rows]``.
        power: ``E y y`` about the means, ``[groups, rows]``.
        column_mean: ``[groups, width]``.
        target_mean: ``[groups, rows]``.
        count: Number of positions.
        part: Share of the errors of the inputs that the targets compensate.
    """

    gram: Float
    cross: Float
    power: Float
    column_mean: Float
    target_mean: Float
    count: int
    part: float = 1.0

    def error(self, weight: npt.NDArray[np.floating], bias: npt.NDArray[np.floating]) -> Float:
        """Return the mean squared error of each row, ``[groups, rows]``.

        Args:
            weight: ``[groups, rows, width]``.
            bias: ``[groups, rows]``.
        """
        rows = weight.shape[1]
        share = rows if weight.size * self.gram.shape[1] < _SMALL_PRODUCT else _ROWS_AT_ONCE
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
        """Return the bias without mean error, ``[groups, rows]``."""
        return np.asarray(self.target_mean - np.einsum("grk,gk->gr", weight.astype(np.float64), self.column_mean))

    def without_bias(self, bias: npt.NDArray[np.floating]) -> "QuadraticForm":
        """Return the form for a fixed bias: moments about zero of the targets minus the bias."""
        goal = self.target_mean - bias
        mean = self.column_mean
        return replace(
            self,
            gram=self.gram + mean[:, :, None] * mean[:, None, :],
            cross=self.cross + mean[:, :, None] * goal[:, None, :],
            power=self.power + goal**2,
            column_mean=np.zeros_like(mean),
            target_mean=np.asarray(bias, np.float64),
        )


class _Moments:
    """Adds up second moments, many positions at a time."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Single, Single]] = []
        self._numbers = 0
        self._sums: list[Float] = []
        self._count = 0

    def add(self, columns: Single, targets: Single) -> None:
        """Add columns and their targets."""
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
        # Values near the limit of float32 have infinite squares, which `_form` rejects.
        with np.errstate(over="ignore", invalid="ignore"):
            parts = (turned @ x, turned @ y, (y * y).sum(1), x.sum(1), y.sum(1))
        if self._sums:
            for total, part in zip(self._sums, parts, strict=True):
                np.add(total, part, out=total)
        else:
            self._sums = [part.astype(np.float64) for part in parts]
        self._count += x.shape[1]
        self._waiting, self._numbers = [], 0


def positions_of(matrix: LayerMatrix, samples: int, *, trained: bool) -> int:
    """Return how many positions of a sample are gathered.

    Args:
        matrix: The layer.
        samples: How many samples there are.
        trained: Whether the form is for training.
    """
    if matrix.groups > 1:
        return int(max(_FEWEST_IN_GROUPS, _POSITIONS_PER_COLUMN * matrix.width) // samples) + 1
    wanted = max(_FEWEST_POSITIONS, _POSITIONS_PER_COLUMN * min(matrix.width, 4096))
    return int(wanted * (_TRAINED if trained else 1.0) // samples) + 1


def centred(means: Sequence[Any]) -> tuple[Any, Any, Any, Any, Any]:
    """Return second moments about the means, and the means, as `QuadraticForm` has them.

    Args:
        means: Means of columns times columns, columns times targets, squared targets, columns and targets; arrays or
            tensors. The first three are modified in place, because they may be large.
    """
    gram, cross, power, columns, targets = means
    gram -= columns[:, :, None] * columns[:, None, :]
    cross -= columns[:, :, None] * targets[:, None, :]
    power -= targets**2
    return gram, cross, power, columns, targets


def gather(visit: LayerVisit, matrix: LayerMatrix, *, trained: bool = False) -> tuple[QuadraticForm, ...]:
    """Return the quadratic form of a layer for each half of its samples, from one pass over them.

    Args:
        visit: Inputs and targets.
        matrix: The layer as a product of matrices.
        trained: Whether the form is for training, for which fewer positions are enough.

    Returns:
        Two forms; one if there is only one sample with one image, or if there are too few positions for two halves.

    Raises:
        FloatingPointError: Products of inputs are not finite.
    """
    if visit.walker.device is not None:
        from quantry.tune.gpu_form import gather_tensors, gathers

        if gathers(matrix):
            return tuple(half.arrays() for half in gather_tensors(visit, matrix, trained=trained))
    share = positions_of(matrix, visit.samples, trained=trained)
    parts = min(_PARTS if matrix.width < _WIDE else 2, visit.samples)

    def add(first: int) -> list[tuple[int, list[Float]]]:
        moments = _Moments(), _Moments()
        for sample in range(first, visit.samples, parts):
            values, output = visit.pair(sample)
            batch = max(1, values.shape[0] if values.ndim > 2 else 1)
            random = np.random.default_rng((visit.seed, sample))
            images_of = halves_of(matrix, (sample, visit.samples), (len(values) if values.ndim > 1 else 1, output.size))
            for half, images in images_of:
                columns = matrix.columns(values[images], output[images], max(1, share // batch), random)
                moments[half].add(*columns)
        return [half.finish() for half in moments]

    with one_blas_thread():
        found = in_threads(add, range(parts))
    halves = ([part for part in half if part[0]] for half in zip(*found, strict=True))
    return tuple(_form(half) for half in halves if half)


def halves_of(matrix: LayerMatrix, sample: tuple[int, int], sizes: tuple[int, int]) -> list[tuple[int, slice]]:
    """Return which images of a sample belong to which half.

    Samples alternate between the halves. A single sample is split between its images. Nothing is split if a half would
    have fewer positions than a row has weights.

    Args:
        matrix: The layer.
        sample: Number of the sample, and of all samples.
        sizes: Length of its first axis, and number of elements of the layer's output for it.
    """
    number, count = sample
    images, outputs = sizes
    if outputs // matrix.channels * count < 2 * matrix.width:
        return [(0, slice(None))]
    if count > 1 or images < 2 or matrix.operator in NORMALIZATIONS:
        return [(number % 2, slice(None))]
    return [(half, slice(half, None, 2)) for half in (0, 1)]


def _form(parts: Sequence[tuple[int, list[Float]]]) -> QuadraticForm:
    """Return the form of sums, which are modified in place, because they may be large.

    Raises:
        FloatingPointError: A sum is not finite.
    """
    if not all(np.isfinite(total).all() for _, sums in parts for total in sums):
        raise FloatingPointError("the products of its inputs are not finite")
    count = sum(number for number, _ in parts)
    sums = parts[0][1]
    for at, total in enumerate(sums):
        for _, others in parts[1:]:
            np.add(total, others[at], out=total)
        np.divide(total, count, out=total)
    return QuadraticForm(*centred(sums), count=count)


def damped(gram: Any, damping: float) -> Any:
    """Return Gram matrices, arrays or tensors, with a share of their mean diagonal added to the diagonal."""
    result = gram + 0.0
    # In a flat matrix, elements of the diagonal are one row and one column apart.
    diagonal = result.reshape(len(result), -1)[:, :: gram.shape[1] + 1]
    mean = diagonal.mean(1)[:, None]
    diagonal += damping * (mean + (mean <= 0.0))
    return result


def least_squares(weight: Single, gram: Float, cross: Float, damping: float) -> Single:
    """Return the weights with the smallest error, regularized towards the given ones.

    Args:
        weight: The weights to stay near, ``[groups, rows, width]``.
        gram: ``[groups, width, width]``.
        cross: ``[groups, width, rows]``.
        damping: Strength of the regularization, as a share of the mean diagonal of the Gram matrix.
    """
    full = damped(gram, damping)
    held = np.einsum("gkk->gk", full) - np.einsum("gkk->gk", gram)
    right = cross + held[:, :, None] * weight.transpose(0, 2, 1)
    return np.asarray(np.linalg.solve(full, right).transpose(0, 2, 1), np.float32)


AnyForm = TypeVar("AnyForm", QuadraticForm, "TensorForm")
Solve = Callable[[Any, Any], Any]


def part_that_holds(halves: Sequence[AnyForm], weight: Any, solve: Solve = np.linalg.solve) -> float:
    """Return the share of the compensation learned from one half of the samples that also holds for the other half.

    With the best change ``d`` of the weights for one half and the error ``e`` of the other, this is the factor ``a``
    that minimizes ``|a d x - e|^2``, for both directions together.

    Args:
        halves: The form of each half of the samples; with one only, the result is 0.
        weight: The float weights, ``[groups, rows, width]``, in double precision.
        solve: From matrices and right-hand sides to solutions.

    Returns:
        From 0 to 1.
    """
    if len(halves) < 2:
        return 0.0
    gaps = [half.cross - half.gram @ weight.swapaxes(1, 2) for half in halves]
    shared = total = 0.0
    for learned, tried in ((0, 1), (1, 0)):
        change = solve(damped(halves[learned].gram, _COMPENSATION_DAMPING), gaps[learned])
        shared += float((change * gaps[tried]).sum())
        total += float((change * (halves[tried].gram @ change)).sum())
    return min(1.0, max(0.0, shared / total)) if total > 0.0 else 0.0


def aimed(form: AnyForm, weight: Any, bias: Any, part: float) -> AnyForm:
    """Return a form whose targets lie between the float layer's output for its inputs and the targets of a form.

    Args:
        form: Moments of columns and targets.
        weight: The float weight, ``[groups, rows, width]``, in double precision.
        bias: The float bias, ``[groups, rows]``, likewise.
        part: 0 for the output of the float layer, 1 for the targets of the form.
    """
    turned = weight.swapaxes(1, 2)
    # The cross moments of the layer's own output; modified in place below, because they may be large.
    cross = form.gram @ turned
    own = 1.0 - part
    power = part**2 * form.power + 2.0 * part * own * (turned * form.cross).sum(1) + own**2 * (turned * cross).sum(1)
    cross *= own
    cross += part * form.cross
    mean = (weight * form.column_mean[:, None, :]).sum(2) + bias
    return replace(form, cross=cross, power=power, target_mean=part * form.target_mean + own * mean, part=part)


def joined(halves: Sequence[AnyForm]) -> AnyForm:
    """Return the form of all samples from those of the halves, or the only one."""
    if len(halves) == 1:
        return halves[0]
    one, two = halves
    count = one.count + two.count
    part, rest = one.count / count, two.count / count
    columns, targets = one.column_mean - two.column_mean, one.target_mean - two.target_mean
    # Moments about the common mean exceed those about two means by the spread between the means.
    spread = part * rest

    def mean(of_one: Any, of_two: Any) -> Any:
        return part * of_one + rest * of_two

    return replace(
        one,
        gram=mean(one.gram, two.gram) + spread * (columns[:, :, None] * columns[:, None, :]),
        cross=mean(one.cross, two.cross) + spread * (columns[:, :, None] * targets[:, None, :]),
        power=mean(one.power, two.power) + spread * targets**2,
        column_mean=mean(one.column_mean, two.column_mean),
        target_mean=mean(one.target_mean, two.target_mean),
        count=count,
    )
