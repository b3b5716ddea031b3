"""Measure the error of each tensor of the quantized model, including the error accumulated before it."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.evaluate.metrics.metric import Pair, pair_outputs, unlimited_decibels
from quantry.facts.operators import CONVOLUTIONS
from quantry.runtime.progress import progress
from quantry.runtime.sessions import run_session, simulation_session

GROUP_BYTES = 1 << 28
"""Memory for the tensors of one run of one model; more tensors are measured in several runs."""


@dataclass(frozen=True, eq=False)
class MeasuredError:
    """The difference between a tensor of the quantized model and that of the float model.

    Attributes:
        sqnr: Signal-to-noise ratio in dB; infinite if nothing differs.
        shifted: Fraction of the noise, 0 to 1, that is the same in every sample: a shift of the mean of each channel,
            which a bias can correct. 0 if there is only one sample, because it is unknown then.
        deviation: Standard deviation of each channel of the float tensor, float64 [c]; empty without channels.
        rescaled: Signal-to-noise ratio in dB after each channel was divided by the factor that fits it best. Far above
            ``sqnr`` if the channels only have other scales, as after an equalization that later layers undo.
    """

    sqnr: float
    shifted: float
    deviation: NDArray[np.float64] = field(repr=False)
    rescaled: float


def measured_errors(
    reference: ir.Model,
    quantized: ir.Model,
    names: Sequence[str],
    samples: Iterable[Mapping[str, NDArray[Any]]],
    limit: int,
    opened: Callable[[ir.Model], Any] | None = None,
) -> dict[str, MeasuredError]:
    """Return the error of every tensor that both models have.

    Args:
        reference: The float model that was quantized.
        quantized: The quantized model.
        names: Tensors of interest; those that only one model has are skipped.
        samples: Inputs of both models.
        limit: Maximum number of samples.
        opened: Opens the quantized model; None simulates it.

    Returns:
        By name, in the given order. Tensors that are not float, or are NaN or infinite in only one model, are skipped.
    """
    both = _produced(reference) & _produced(quantized)
    shown = [name for name in names if name in both]
    feeds = list(islice(samples, limit))
    axes = _channel_axes(reference)
    sums: dict[str, _Sums | None] = {}
    groups = list(_groups(reference, shown))
    for group in progress(groups, "diagnose", len(groups)):
        expected = simulation_session(_showing(reference, group), interleaved=True)
        shown_by = _showing(quantized, group)
        got = simulation_session(shown_by, interleaved=True) if opened is None else opened(shown_by)
        for feed in feeds:
            ours, theirs = run_session(expected, feed), run_session(got, feed)
            for name in group:
                _add(sums, name, _pair(ours[name], theirs[name]), axes.get(name))
    return {name: found.error() for name in shown if (found := sums.get(name)) is not None}


def _pair(ours: NDArray[Any], theirs: NDArray[Any]) -> Pair | None:
    """Return both as float64 arrays, or None if they are not float or cannot be compared."""
    return pair_outputs(ours, theirs) if ours.dtype.kind == "f" else None


class _Sums:
    """Sums over the samples of one tensor."""

    def __init__(self) -> None:
        self._signal = self._noise = 0.0
        self._values = 0
        self._samples = 0
        # Sums over samples: shifts of the channels and their squares; means of the channels and their squares.
        self._shift = self._shift_squares = np.zeros(0)
        self._mean = self._squares = np.zeros(0)
        # Means over positions of the products of both models, and of the squares of the quantized one.
        self._products = self._others = np.zeros(0)

    def add(self, pair: Pair, axis: int | None) -> None:
        """Add one sample whose channels are along an axis; None uses the default for the tensor's rank."""
        ours, theirs = pair.reference, pair.quantized
        error = theirs - ours
        self._signal += float(np.vdot(ours, ours))
        self._noise += float(np.vdot(error, error))
        self._values += error.size
        self._samples += 1
        if ours.ndim < 2 or not ours.size:
            return
        along = _usual_axis(ours.ndim) if axis is None else axis
        others = tuple(index for index in range(ours.ndim) if index != along % ours.ndim)
        shift = error.mean(axis=others)
        if len(self._shift) not in (0, len(shift)):
            return  # The axis has the positions of a sample, whose number varies, not channels.
        squares, products = (ours**2).mean(axis=others), (ours * theirs).mean(axis=others)
        parts = (shift, shift**2, ours.mean(axis=others), squares, products, (theirs**2).mean(axis=others))
        known = (self._shift, self._shift_squares, self._mean, self._squares, self._products, self._others)
        sums = parts if not len(self._shift) else [old + new for old, new in zip(known, parts, strict=True)]
        self._shift, self._shift_squares, self._mean, self._squares, self._products, self._others = sums

    def error(self) -> MeasuredError:
        count = max(self._samples, 1)
        variance = np.maximum(self._squares / count - (self._mean / count) ** 2, 0.0)
        sqnr = unlimited_decibels(self._signal, self._noise)
        return MeasuredError(sqnr, self._shifted(), np.sqrt(variance), self._rescaled(sqnr))

    def _rescaled(self, sqnr: float) -> float:
        """Return the ratio with the factor f of each channel that makes sum (y - f x)^2 least: f = sum xy / sum x^2."""
        used = (self._squares > 0) & (self._products > 0)
        if not used.any():
            return sqnr
        squares, products, others = self._squares[used], self._products[used], self._others[used]
        factors = products / squares
        noise = np.maximum(others / factors**2 - 2 * products / factors + squares, 0.0)
        # A channel without a factor keeps its whole noise.
        rest = self._others[~used] - 2 * self._products[~used] + self._squares[~used]
        return unlimited_decibels(float(self._squares.sum()), float(noise.sum() + rest.sum()))

    def _shifted(self) -> float:
        """Return the fraction of noise that is common to all samples.

        Products of different samples estimate the squared mean without the variance between samples.
        """
        count = self._samples
        if count < 2 or not len(self._shift) or self._noise == 0:
            return 0.0
        common = (self._shift**2 - self._shift_squares) / (count * (count - 1))
        noise = self._noise / self._values * len(self._shift)
        return float(np.clip(common.sum() / noise, 0.0, 1.0))


def _usual_axis(rank: int) -> int:
    return 1 if rank > 3 else -1


def _channel_axes(model: ir.Model) -> dict[str, int]:
    """Return the axes that certainly are channels: a convolution writes and reads them along axis 1."""
    values = (
        value
        for node in model.graph
        if node.op_type in CONVOLUTIONS
        for value in (node.inputs[0], node.outputs[0])
        if value is not None
    )
    return {value.name: 1 for value in values if value.name}


def _produced(model: ir.Model) -> set[str]:
    return {value.name for node in model.graph for value in node.outputs if value.name}


def _groups(model: ir.Model, names: Sequence[str]) -> Iterator[list[str]]:
    sizes = {value.name: _bytes(value) for node in model.graph for value in node.outputs}
    group: list[str] = []
    total = 0
    for name in names:
        if group and total + sizes[name] > GROUP_BYTES:
            yield group
            group, total = [], 0
        group.append(name)
        total += sizes[name]
    if group:
        yield group


def _bytes(value: ir.Value) -> int:
    shape = value.shape
    return (
        4 * math.prod(dim if isinstance(dim, int) else 1 for dim in shape) if shape is not None else GROUP_BYTES // 64
    )


def _showing(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """Return a copy whose outputs are these tensors."""
    copy = model.clone()
    by_name = {value.name: value for node in copy.graph for value in node.outputs}
    copy.graph.outputs.clear()
    copy.graph.outputs.extend(by_name[name] for name in names)
    return copy


def _add(sums: dict[str, _Sums | None], name: str, pair: Pair | None, axis: int | None) -> None:
    known = sums.setdefault(name, None if pair is None else _Sums())
    if pair is None or known is None:
        sums[name] = None
        return
    known.add(pair, axis)
