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
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from quantry.runtime.threads import in_threads, one_blas_thread
from quantry.tune.arrays import double, einsum
from quantry.tune.layer_matrix import LayerMatrix
from quantry.tune.layers import NORMALIZATIONS
from quantry.tune.layerwise import LayerVisit

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
    """Second moments of a layer's columns and targets: float64 arrays, or tensors on a device.

    Attributes:
        gram: ``E x x'`` about the means, ``[groups, width, width]``.
        cross: ``E x y`` about the means, ``[groups, width, rows]``.
        power: ``E y y`` about the means, ``[groups, rows]``.
        column_mean: ``[groups, width]``.
        target_mean: ``[groups, rows]``.
        count: Number of positions.
        compensated: Share of the errors of the inputs that the targets compensate.
    """

    gram: Any
    cross: Any
    power: Any
    column_mean: Any
    target_mean: Any
    count: int
    compensated: float = 1.0

    @classmethod
    def of_sums(cls, sums: list[Any], count: int) -> "QuadraticForm":
        """Return the form of sums over positions, which are modified in place, because they may be large.

        Args:
            sums: Columns times columns, columns times targets, squared targets, columns and targets.
            count: Number of positions.
        """
        for index in range(len(sums)):
            sums[index] /= count
        gram, cross, power, columns, targets = sums
        gram -= columns[:, :, None] * columns[:, None, :]
        cross -= columns[:, :, None] * targets[:, None, :]
        power -= targets**2
        return cls(gram, cross, power, columns, targets, count)

    def converted(self, convert: Callable[[Any], Any]) -> "QuadraticForm":
        """Return the form with each of its moments converted, for example to tensors."""
        names = [field.name for field in fields(self)][:5]
        return replace(self, **{name: convert(getattr(self, name)) for name in names})

    def error(self, weight: Any, bias: Any) -> Any:
        """Return the mean squared error of each row, ``[groups, rows]``.

        Args:
            weight: ``[groups, rows, width]``.
            bias: ``[groups, rows]``.
        """
        if not isinstance(weight, np.ndarray):
            return self._error(double(weight), bias, slice(None))
        rows = weight.shape[1]
        share = rows if weight.size * self.gram.shape[1] < _SMALL_PRODUCT else _ROWS_AT_ONCE
        slices = [slice(start, start + share) for start in range(0, rows, share)]
        errors = in_threads(lambda rows: self._error(double(weight[:, rows]), bias[:, rows], rows), slices)
        return np.concatenate(errors, axis=1)

    def _error(self, weight: Any, bias: Any, rows: slice) -> Any:
        """Return the error of some rows."""
        centred = (
            einsum("grk,grk->gr", weight @ self.gram, weight)
            - 2.0 * einsum("grk,gkr->gr", weight, self.cross[:, :, rows])
            + self.power[:, rows]
        )
        shift = einsum("grk,gk->gr", weight, self.column_mean) + bias - self.target_mean[:, rows]
        return centred.clip(min=0.0) + shift**2

    def best_bias(self, weight: Any) -> Any:
        """Return the bias without mean error, ``[groups, rows]``."""
        return self.target_mean - einsum("grk,gk->gr", double(weight), self.column_mean)

    def without_bias(self, bias: Any) -> "QuadraticForm":
        """Return the form for a fixed bias, in float64: moments about zero of the targets minus the bias."""
        goal, mean = self.target_mean - bias, self.column_mean
        return replace(
            self,
            gram=self.gram + mean[:, :, None] * mean[:, None, :],
            cross=self.cross + mean[:, :, None] * goal[:, None, :],
            power=self.power + goal**2,
            column_mean=mean - mean,
            target_mean=bias,
        )


class _Moments:
    """Adds up second moments, many positions at a time."""

    def __init__(self) -> None:
        self.count = 0
        self.sums: list[Float] = []
        self._pending: list[tuple[Single, Single]] = []
        self._numbers = 0

    def add(self, columns: Single, targets: Single) -> None:
        """Add columns and their targets; the sums contain them after `flush`."""
        self._pending.append((columns, targets))
        self._numbers += columns.size
        if self._numbers >= _NUMBERS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Multiply what is pending."""
        if not self._pending:
            return
        x, y = (np.concatenate(blocks, axis=1) for blocks in zip(*self._pending, strict=True))
        turned = x.transpose(0, 2, 1)
        # Values near the limit of float32 have infinite squares, which `gather` rejects.
        with np.errstate(over="ignore", invalid="ignore"):
            products = (turned @ x, turned @ y, (y * y).sum(1), x.sum(1), y.sum(1))
        add_sums(self.sums, [np.asarray(product, np.float64) for product in products])
        self.count += x.shape[1]
        self._pending, self._numbers = [], 0


def add_sums(totals: list[Any], sums: Sequence[Any]) -> None:
    """Add sums to totals in place, because both may be large; empty totals become the sums."""
    if not totals:
        totals += sums
        return
    for index, addend in enumerate(sums):
        totals[index] += addend


def positions_of(matrix: LayerMatrix, samples: int, *, trained: bool) -> int:
    """Return how many positions of a sample are gathered.

    Args:
        matrix: The layer.
        samples: How many samples there are.
        trained: Whether the form is for training.
    """
    if matrix.groups > 1:
        return int(max(_FEWEST_IN_GROUPS, _POSITIONS_PER_COLUMN * matrix.width) // samples) + 1
    positions = max(_FEWEST_POSITIONS, _POSITIONS_PER_COLUMN * min(matrix.width, 4096))
    return int(positions * (_TRAINED if trained else 1.0) // samples) + 1


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
            forms = gather_tensors(visit, matrix, trained=trained)
            return tuple(form.converted(lambda tensor: tensor.cpu().numpy()) for form in forms)
    share = positions_of(matrix, visit.samples, trained=trained)
    strides = min(_PARTS if matrix.width < _WIDE else 2, visit.samples)

    def add(first: int) -> tuple[_Moments, _Moments]:
        halves = _Moments(), _Moments()
        for sample in range(first, visit.samples, strides):
            values, output = visit.pair(sample)
            batch = max(1, values.shape[0] if values.ndim > 2 else 1)
            random = np.random.default_rng((visit.seed, sample))
            sizes = (len(values) if values.ndim > 1 else 1, output.size)
            for half, images in images_of_halves(matrix, (sample, visit.samples), sizes):
                halves[half].add(*matrix.columns(values[images], output[images], max(1, share // batch), random))
        for moments in halves:
            moments.flush()
        return halves

    with one_blas_thread():
        moments_by_thread = in_threads(add, range(strides))
    return tuple(_form_of(half) for half in zip(*moments_by_thread, strict=True) if any(entry.count for entry in half))


def _form_of(moments: Sequence[_Moments]) -> QuadraticForm:
    if not all(np.isfinite(total).all() for entry in moments for total in entry.sums):
        raise FloatingPointError("the products of its inputs are not finite")
    totals: list[Float] = []
    for entry in moments:
        if entry.count:
            add_sums(totals, entry.sums)
    return QuadraticForm.of_sums(totals, sum(entry.count for entry in moments))


def images_of_halves(matrix: LayerMatrix, sample: tuple[int, int], sizes: tuple[int, int]) -> list[tuple[int, slice]]:
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
    added_diagonal = np.einsum("gkk->gk", full) - np.einsum("gkk->gk", gram)
    right = cross + added_diagonal[:, :, None] * weight.transpose(0, 2, 1)
    return np.asarray(np.linalg.solve(full, right).transpose(0, 2, 1), np.float32)


Solve = Callable[[Any, Any], Any]


def compensation_share(halves: Sequence[QuadraticForm], weight: Any, solve: Solve = np.linalg.solve) -> float:
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


def with_compensation(form: QuadraticForm, weight: Any, bias: Any, share: float) -> QuadraticForm:
    """Return a form whose targets lie between the float layer's output for its inputs and the targets of a form.

    Args:
        form: Moments of columns and targets.
        weight: The float weight, ``[groups, rows, width]``, in double precision.
        bias: The float bias, ``[groups, rows]``, likewise.
        share: 0 for the output of the float layer, 1 for the targets of the form.
    """
    turned = weight.swapaxes(1, 2)
    # The cross moments of the layer's own output; modified in place below, because they may be large.
    cross = form.gram @ turned
    own_share = 1.0 - share
    power = (
        share**2 * form.power
        + 2.0 * share * own_share * (turned * form.cross).sum(1)
        + own_share**2 * (turned * cross).sum(1)
    )
    cross *= own_share
    cross += share * form.cross
    mean = (weight * form.column_mean[:, None, :]).sum(2) + bias
    target_mean = share * form.target_mean + own_share * mean
    return replace(form, cross=cross, power=power, target_mean=target_mean, compensated=share)


def joined(halves: Sequence[QuadraticForm]) -> QuadraticForm:
    """Return the form of all samples from those of the halves, or the only one."""
    if len(halves) == 1:
        return halves[0]
    first, second = halves
    count = first.count + second.count
    shares = first.count / count, second.count / count
    columns, targets = first.column_mean - second.column_mean, first.target_mean - second.target_mean
    # Moments about the common mean exceed those about two means by the spread between the means.
    spread = shares[0] * shares[1]

    def mean(name: str) -> Any:
        return shares[0] * getattr(first, name) + shares[1] * getattr(second, name)

    return replace(
        first,
        gram=mean("gram") + spread * (columns[:, :, None] * columns[:, None, :]),
        cross=mean("cross") + spread * (columns[:, :, None] * targets[:, None, :]),
        power=mean("power") + spread * targets**2,
        column_mean=mean("column_mean"),
        target_mean=mean("target_mean"),
        count=count,
    )
