"""Training steps for all rows of a layer on the CPU: the NumPy reference and the compiled kernel.

Every operation of the reference is the one in ``numerics/c/train_rows.c``, in the same order and in float32, so both
give the same bytes up to matrix products: BLAS adds in an order of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from quantry.numerics import kernels
from quantry.numerics.kernels import Kernels, RowLayerTask
from quantry.numerics.rounding import round_and_clip
from quantry.runtime.threads import in_threads, row_parts
from quantry.tune.arrays import Load
from quantry.tune.layer_problem import LayerProblem
from quantry.tune.row_problem import HIGH, LOW, RowProblem, low_rank, row_problem

Float = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]

BETAS, EPSILON = (0.9, 0.999), 1e-8
"""Of Adam (https://arxiv.org/abs/1412.6980)."""

RATE, SPREAD, BETA, WEIGHT = range(4)
"""Columns of a schedule, which has one row per step: Adam's learning rate and the factor of its second moment, both
with bias correction; exponent and weight of AdaRound's regularization, 0 while it is off."""

_LANES = 16
"""Partial sums of a row, ``SUM_LANES`` of the kernel."""

_ONE, _SPAN, _LOW = np.float32(1.0), np.float32(HIGH - LOW), np.float32(LOW)
_TINY, _BELOW_ONE = np.float32(1.1754944e-38), np.float32(0.99999994)
_POWER_SERIES = [
    np.float32(c) for c in (1.5403530e-4, 1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 2.4022651e-1, 6.9314718e-1, 1.0)
]
_LOG_SERIES = [np.float32(c) for c in (0.41219859, 0.57707802, 0.96179669, 2.88539008)]


class RowSteps(Protocol):
    """Trains rows and holds what is trained."""

    def advance(self, schedule: Float) -> Float:
        """Make one step per row of the schedule; return the loss before each."""
        ...

    def trained(self) -> tuple[Any, Any]:
        """Return the trained values ``[groups, rows, width]`` and biases ``[groups, rows]``."""
        ...

    def written(self) -> tuple[Any, Any]:
        """Return the weights as they would be written now, and the trained biases."""
        ...


@dataclass(frozen=True, eq=False)
class RowBackend:
    """Where and how a layer is trained; arrays are NumPy's or tensors on a device.

    Attributes:
        steps: Makes the steps.
        error: From weights and biases as they would be written to the loss of each row, or to one loss ``[1, 1]``.
        constant: Added to the losses that `steps` returns, which leave out the part that no weight changes.
        per_row: Whether `error` returns one loss per row, so that each row can keep its best state.
        load: From a NumPy array to an array of the backend.
        store: From an array of the backend to a NumPy array.
    """

    steps: RowSteps
    error: Callable[[Any, Any], Any]
    constant: float = 0.0
    per_row: bool = True
    load: Load = np.asarray
    store: Callable[[Any], Any] = np.asarray


def cpu_backend(problem: LayerProblem, *, rounds: bool) -> RowBackend:
    """Return the backend that trains on the CPU.

    Args:
        problem: The layer.
        rounds: Train as AdaRound does, otherwise as AdaQuant does.
    """
    form = problem.quadratic
    rows = row_problem(problem, form, rounds=rounds)
    steps = row_steps(replace(rows, factor=low_rank(form.gram, form.count + 1)))
    return RowBackend(steps, form.error, float(form.power.sum()))


def row_steps(problem: RowProblem) -> RowSteps:
    """Return the fastest implementation that is available."""
    compiled = kernels.loaded()
    return NumpyRows(problem) if compiled is None else CompiledRows(problem, compiled)


class NumpyRows:
    """Trains with NumPy.

    Args:
        problem: What to train; not changed.
    """

    def __init__(self, problem: RowProblem) -> None:
        self._problem = problem
        self._value, self._bias = problem.value.astype(np.float32), problem.bias.astype(np.float32)
        self._moments = np.zeros_like(self._value), np.zeros_like(self._value)
        self._bias_moments = np.zeros_like(self._bias), np.zeros_like(self._bias)
        self._settled = np.zeros(self._bias.shape, bool)

    def advance(self, schedule: Float) -> Float:
        """Make one step per row of the schedule; return the loss before each."""
        entries = np.asarray(schedule, np.float32)
        weight = self._weight()
        product = self._product(weight)
        self._settled = np.zeros(self._bias.shape, bool)
        losses = np.empty((weight.shape[0] * weight.shape[1], len(entries)))
        for number, entry in enumerate(entries):
            loss = _row_sums(weight * (product - np.float32(2.0) * self._problem.cross))
            if self._problem.floor is None:
                loss = loss + self._quantize(weight, product, entry)
            else:
                self._round(self._problem.floor, product, entry)
            losses[:, number] = loss.reshape(-1)
            following = self._weight()
            if self._problem.floor is not None:
                # A row whose weights are all fully rounded and no longer move never changes again.
                up = _soft_up(_sigmoid(self._value))
                open_weights = (up > 0.0) & (up < 1.0)
                self._settled |= (following == weight).all(-1) & ~open_weights.any(-1)
            product = self._next_product(product, weight, following, number)
            weight = following
        return np.asarray(losses.sum(0))

    def trained(self) -> tuple[Single, Single]:
        """Return the trained values and biases."""
        return self._value, self._bias

    def written(self) -> tuple[Single, Single]:
        """Return the weights as they would be written now, and the trained biases."""
        return self._problem.written(self._value), self._bias

    def _product(self, weight: Single) -> Single:
        return np.asarray(self._problem.times_gram(weight), np.float32)

    def _next_product(self, product: Single, before: Single, weight: Single, number: int) -> Single:  # noqa: ARG002
        """Return ``w G`` after a step.

        Args:
            product: The product before the step.
            before: The weights before the step.
            weight: The weights after it.
            number: The step, counted from the start of `advance`.
        """
        return self._product(weight)

    def _weight(self) -> Single:
        """Return AdaRound's soft weights, or AdaQuant's weights on their grid."""
        problem = self._problem
        if problem.floor is None:
            levels = round_and_clip(self._value / problem.scale, problem.lowest, problem.highest)
        else:
            levels = np.clip(problem.floor + _soft_up(_sigmoid(self._value)), problem.lowest, problem.highest)
        return np.asarray(levels * problem.scale, np.float32)

    def _round(self, floor: Single, product: Single, entry: Single) -> None:
        problem = self._problem
        sigmoid = _sigmoid(self._value)
        up = _soft_up(sigmoid)
        levels = floor + up
        slope = np.float32(2.0) * (product - problem.cross) * problem.scale
        slope *= (levels >= problem.lowest) & (levels <= problem.highest)
        if entry[WEIGHT]:
            slope -= _push(up, entry)
        stretched = _SPAN * sigmoid + _LOW
        slope *= sigmoid * (_ONE - sigmoid) * _SPAN * ((stretched >= _TINY) & (stretched <= _BELOW_ONE))
        # Settled rows get no step at all: momentum would still move their values.
        _adam(self._value, self._moments, slope, entry, ~self._settled[:, :, None])

    def _quantize(self, weight: Single, product: Single, entry: Single) -> Float:
        """Make a step of AdaQuant; return the squared error of each row's mean output before it."""
        problem = self._problem
        levels = np.rint(self._value / problem.scale)
        mean = _row_sums(weight * problem.mean[:, None, :])
        shift = mean + problem.bias_grid.round(self._bias) - problem.target
        single = shift.astype(np.float32)
        slope = np.float32(2.0) * (product - problem.cross + single[:, :, None] * problem.mean[:, None, :])
        slope *= (levels >= problem.lowest) & (levels <= problem.highest)
        _adam(self._value, self._moments, slope, entry)
        if problem.bias_moves:
            _adam(self._bias, self._bias_moments, np.float32(2.0) * single, entry)
        return np.asarray(shift * shift)


def _adam(
    value: Single,
    moments: tuple[Single, Single],
    slope: Single,
    entry: Single,
    moves: npt.NDArray[np.bool_] | bool = True,
) -> None:
    first, second = moments
    beta, gamma = map(np.float32, BETAS)
    np.add(beta * first, (_ONE - beta) * slope, out=first, where=moves)
    np.add(gamma * second, (_ONE - gamma) * slope * slope, out=second, where=moves)
    step = entry[RATE] * first / (np.sqrt(second * entry[SPREAD]) + np.float32(EPSILON))
    np.subtract(value, step, out=value, where=moves)


def _sigmoid(value: Single) -> Single:
    # log2(e) makes a power of two of the exponential function.
    return np.asarray(_ONE / (_ONE + _power_of_two(np.float32(-1.44269504) * value)))


def _soft_up(sigmoid: Single) -> Single:
    return np.asarray(np.clip(_SPAN * sigmoid + _LOW, np.float32(0.0), _ONE))


def _push(up: Single, entry: Single) -> Single:
    """Return the derivative of AdaRound's regularization with respect to the rounding."""
    centered = np.float32(2.0) * up - _ONE
    size = np.maximum(np.abs(centered), np.float32(1e-30))
    away = _power_of_two((entry[BETA] - _ONE) * _log_two(size))
    return np.asarray(entry[WEIGHT] * entry[BETA] * np.float32(2.0) * np.copysign(away, centered))


def _power_of_two(x: Single) -> Single:
    """Return 2^x; not `numpy.exp2`, whose last bits differ between versions and processors."""
    magic = np.float32(12582912.0)
    x = np.clip(x, np.float32(-126.0), np.float32(126.0))
    shifted = x + magic
    fraction = x - (shifted - magic)
    result = np.full_like(x, _POWER_SERIES[0])
    for coefficient in _POWER_SERIES[1:]:
        result *= fraction
        result += coefficient
    exponent = shifted.view(np.int32) - np.int32(0x4B400000) + np.int32(127)
    return np.asarray(result * (exponent << 23).view(np.float32))


def _log_two(x: Single) -> Single:
    bits = x.view(np.int32) - np.int32(0x3F3504F3)
    z = ((bits & np.int32(0x7FFFFF)) + np.int32(0x3F3504F3)).view(np.float32) - _ONE
    ratio = z / (np.float32(2.0) + z)
    square = ratio * ratio
    result = np.full_like(x, _LOG_SERIES[0])
    for coefficient in _LOG_SERIES[1:]:
        result *= square
        result += coefficient
    return np.asarray((bits >> 23).astype(np.float32) + ratio * result)


def _row_sums(terms: npt.NDArray[Any]) -> Float:
    """Return the sum of each row ``[groups, rows, width]``: 16 partial sums in float32, joined in order in float64."""
    groups, rows, width = terms.shape
    padded = np.zeros((groups, rows, -(-width // _LANES) * _LANES), np.float32)
    padded[:, :, :width] = terms
    lanes = padded.reshape(groups, rows, -1, _LANES).sum(2)
    # cumsum adds in order, which sum does not promise.
    return np.asarray(lanes.astype(np.float64).cumsum(-1)[:, :, -1])


_COLUMNS = 32
"""The kernel wants rows padded to a multiple of this: two of its widest vectors."""


class CompiledRows:
    """Trains with the compiled kernel; see `NumpyRows` for the arithmetic.

    Args:
        problem: What to train; not changed.
        kernels: The compiled functions.
    """

    def __init__(self, problem: RowProblem, kernels: Kernels) -> None:
        self._kernels = kernels
        self._shape = problem.value.shape
        # Only what says how weights are written is kept: the Gram matrix may be large, and the kernel has its own copy.
        self._written = replace(problem, gram=None, cross=None, factor=None).written
        _, rows, width = self._shape
        self._arrays = _padded(problem, _up(width))
        numbers: dict[str, int] = {"rows": rows, "width": width, "padded": _up(width), "rank": 0, "rank_padded": 0}
        if problem.factor is None:
            self._arrays |= {"gram": self._packed(problem.gram), "factor": np.empty(0, np.float32)}
        else:
            transposed = problem.factor.transpose(0, 2, 1)
            self._arrays |= {"gram": self._packed(transposed), "factor": self._packed(problem.factor)}
            numbers |= {"rank": transposed.shape[1], "rank_padded": _up(transposed.shape[1])}
        numbers |= {"bias_moves": problem.bias_moves, "rounds": problem.floor is not None}
        self._layer = RowLayerTask.of(self._arrays, **numbers)

    def _packed(self, matrices: Single) -> Single:
        """Return matrices ``[groups, lines, columns]`` in the memory order of the kernel."""
        return np.stack([self._kernels.pack_columns(matrix, _up(matrices.shape[2])) for matrix in matrices])

    def advance(self, schedule: Float) -> Float:
        """Make one step per row of the schedule; return the loss before each."""
        entries = np.ascontiguousarray(schedule, np.float32)
        rows = self._shape[0] * self._shape[1]
        losses = np.empty((rows, len(entries)))
        in_threads(lambda share: self._kernels.train_rows(self._layer, entries, losses, share), row_parts(rows))
        # Added row by row, so that the sum does not depend on the number of threads.
        return np.asarray(losses.sum(0))

    def trained(self) -> tuple[Single, Single]:
        """Return the trained values and biases."""
        groups, rows, width = self._shape
        value = self._arrays["value"].reshape(groups, rows, -1)[:, :, :width]
        return value, self._arrays["bias"].reshape(groups, rows)

    def written(self) -> tuple[Single, Single]:
        """Return the weights as they would be written now, and the trained biases."""
        value, bias = self.trained()
        return self._written(value), bias


def _up(columns: int) -> int:
    return -(-columns // _COLUMNS) * _COLUMNS


def _padded(problem: RowProblem, padded: int) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that the kernel works on; the padding is chosen so that training does not change it."""
    shape = problem.value.shape

    def rows(array: Single, padding: float) -> Single:
        result = np.full((*shape[:2], padded), padding, np.float32)
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
        # Far below zero: the sigmoid is so small that the padding counts as fully rounded down.
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
