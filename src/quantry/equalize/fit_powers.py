"""Scale whole tensors so that power-of-two scales fit them.

::

    y = W2 Relu(W1 x + b1)      =      y = (W2 / f) Relu(f W1 x + f b1)        for every f > 0

A power-of-two scale wastes up to half of its range. A factor between 1 and 2 for each tensor removes that loss, but it
moves the ranges of the weights on both sides as well, so all factors are chosen together: each tensor, weight and bias
has an estimated rounding error that depends on its own factor only, and the factors that make the sum small are found
one after the other. Tensors that an Add, a Concat or a pool connects share a factor. A factor passes a gate, such as
SiLU, if a constant multiplies what its function reads, as joint equalization writes it (`gates`).
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from quantry.equalize.channel_labels import ChannelLabels
from quantry.equalize.channels import Labels
from quantry.equalize.linear_layer import LinearLayer, array_of, store_array, store_input
from quantry.equalize.types import WeightActivationTypes
from quantry.facts.operators import Family, facts
from quantry.graph.edit import FreshNames, constant_of
from quantry.graph.float_model import FloatModel
from quantry.graph.weights import rebuilt
from quantry.memo import stage
from quantry.notes import Note, NoteKind, one_per_reason
from quantry.numerics.histogram import TensorStats, mean_square
from quantry.numerics.rounding import round_and_clip
from quantry.observe import Statistics
from quantry.recipe import FitPowers, PerTensor, PowerOfTwoScale, TensorSpec
from quantry.runtime.environment import depends_on

_SAMPLED = 1 << 16
"""Values of a weight that its error is estimated from."""

_SHIFTS = (1, 0, -1, -2)
"""Exponents of candidate steps, relative to the step that covers the largest value."""

_GAIN = 0.01
"""Smaller gains of the estimated error change nothing."""


@stage(name="fit_powers", version=3, environment=depends_on("onnx_ir", "numpy"))
def fit_powers(
    model: FloatModel,
    statistics: Statistics,
    options: FitPowers,
    types: WeightActivationTypes,
) -> FloatModel:
    """Return a model that computes the same, whose tensors fill the ranges of power-of-two scales better.

    Args:
        model: The model; it is not modified.
        statistics: Its statistics.
        options: How to search.
        types: Types of the model's tensors.
    """
    powers = (spec is not None and isinstance(spec.scale, PowerOfTwoScale) for spec in (types.activation, types.weight))
    if not types.all_integers or not all(powers):
        message = "power-of-two fit: nothing was changed, because not all scales are powers of two"
        return FloatModel(model.model, (Note.of(message),))
    copy = model.model.clone()
    groups, reasons = find_groups(copy)
    fit = _Fit(groups, statistics, options.candidates)
    fit.add_errors(types)
    start_error, error = fit.search(options.sweeps)
    blocked = one_per_reason("no power-of-two fit through {count} nodes: {reason}", reasons, NoteKind.NOT_FITTED)
    if error > start_error * (1 - _GAIN):
        return FloatModel(model.model, (Note.of("power-of-two fit: no factor would help"), *blocked))
    names = FreshNames(copy)
    for group, exponent in zip(groups, fit.exponents, strict=True):
        group.multiply(float(np.exp2(exponent)), names)
    summary = Note.of(
        "power-of-two fit multiplied {count} of {groups} groups of tensors by a factor each; estimated rounding error "
        "{before:.3g} -> {after:.3g}",
        count=sum(bool(exponent) for exponent in fit.exponents),
        groups=len(groups),
        before=start_error,
        after=error,
    )
    return FloatModel(rebuilt(copy), (summary, *blocked))


@dataclass(eq=False)
class ScaleGroup:
    """Tensors that must have the same factor.

    Attributes:
        values: The tensors.
        makers: Layers that compute some of them; their weight and bias take the factor.
        readers: Layers that read some of them; their weight takes its inverse.
        constants: Constant operands with the factor, each with the node that reads it and its place there.
        inverse: Constants that multiply what a gate's function reads (`gates`); they take the inverse of the factor.
    """

    values: list[ir.Value] = field(default_factory=list)
    makers: list[LinearLayer] = field(default_factory=list)
    readers: list[LinearLayer] = field(default_factory=list)
    constants: list[tuple[ir.Node, int]] = field(default_factory=list)
    inverse: list[tuple[ir.Node, int]] = field(default_factory=list)

    def multiply(self, factor: float, names: FreshNames) -> None:
        """Multiply the tensors by a factor; the model computes the same.

        Args:
            factor: The factor.
            names: For constants that other nodes read too.
        """
        if factor == 1.0:
            return
        for layer in self.makers:
            _store_product(layer.weight, factor)
            if layer.bias is not None:
                _store_product(layer.bias, factor)
        for layer in self.readers:
            _store_product(layer.weight, 1.0 / factor)
        operands = [(operand, factor) for operand in self.constants] + [
            (operand, 1.0 / factor) for operand in self.inverse
        ]
        for (node, index), times in operands:
            array = constant_of(node.inputs[index])
            if array is not None:
                store_input(node, index, array.astype(np.float64) * times, names)


def _store_product(value: ir.Value, factor: float) -> None:
    array = array_of(value)
    store_array(value, (array.astype(np.float64) * factor).astype(array.dtype))


def find_groups(model: ir.Model) -> tuple[list[ScaleGroup], Counter[str]]:
    """Return the groups of tensors that a factor can multiply, in the order of the graph, and other nodes by reason.

    Args:
        model: The model.
    """
    labels = ChannelLabels(model, per_tensor=True)
    numbers = labels.positions()
    groups = [ScaleGroup() for _ in range(numbers.max() + 1)]

    def group_of(array: Labels) -> ScaleGroup:
        return groups[int(numbers[array.reshape(-1)[0]])]

    for value, array in labels.of.items():
        group_of(array).values.append(value)
    for layer in labels.layers:
        group_of(layer.outputs).makers.append(layer.layer)
        group_of(layer.inputs).readers.append(layer.layer)
    for constant in labels.constants:
        group = group_of(constant.labels)
        (group.inverse if constant.inverse else group.constants).append((constant.node, constant.index))
    # The first one has the factor 1.
    return groups[1:], labels.reasons


@dataclass(frozen=True, eq=False)
class _Error:
    """Rounding error of one tensor, weight or bias for each exponent of its factor.

    Attributes:
        plus: Number of the group whose exponent counts, or -1.
        minus: Number of the group whose exponent is subtracted, or -1.
        table: (candidates,) errors relative to the signal; the exponents are 0, 1/candidates and so on. An octave
            further the errors are the same.
    """

    plus: int
    minus: int
    table: np.ndarray


class _Fit:
    """Searches exponents of factors with a small sum of errors."""

    def __init__(self, groups: Sequence[ScaleGroup], statistics: Statistics, candidates: int) -> None:
        self._groups, self._statistics, self._count = groups, statistics, candidates
        self._steps = np.zeros(len(groups), np.int64)
        self._errors: list[_Error] = []

    @property
    def exponents(self) -> np.ndarray:
        """Binary logarithms of the factors, from -1/2 to 1/2."""
        centred = (self._steps + self._count // 2) % self._count - self._count // 2
        result: np.ndarray = centred / self._count
        return result

    def add_errors(self, types: WeightActivationTypes) -> None:
        """Estimate the errors of all tensors, weights and biases.

        Args:
            types: Types of the model's tensors.
        """
        activation, weight, bias = types.activation, types.weight, types.own_bias
        assert activation is not None
        maker_of = {layer: number for number, group in enumerate(self._groups) for layer in group.makers}
        reader_of = {layer: number for number, group in enumerate(self._groups) for layer in group.readers}
        for number, group in enumerate(self._groups):
            for value in group.values:
                stats = self._statistics.tensors.get(value.name or "")
                if stats is not None and stats.finite_count and is_rounded(value, types.fused_activations):
                    self._errors.append(_Error(number, -1, self._of_activation(stats, activation)))
            for node, index in group.inverse:
                constant = constant_of(node.inputs[index])
                assert constant is not None
                rows = constant.astype(np.float64).reshape(1, -1)
                self._errors.append(_Error(-1, number, self._of_rows(rows, activation, float((rows**2).mean()))))
        for layer in {**maker_of, **reader_of}:
            plus, minus = maker_of.get(layer, -1), reader_of.get(layer, -1)
            self._errors.append(_Error(plus, minus, self._of_weight(layer, weight)))
            if bias is not None and layer.bias is not None and plus >= 0:
                table = self._of_bias(layer, bias)
                if table is not None:
                    self._errors.append(_Error(plus, -1, table))

    def search(self, sweeps: int) -> tuple[float, float]:
        """Choose one exponent after the other; return the sum of errors before and after.

        Args:
            sweeps: Largest number of passes over all groups.
        """
        touching: dict[int, list[_Error]] = {}
        for error in self._errors:
            for number in {error.plus, error.minus} - {-1}:
                touching.setdefault(number, []).append(error)
        start = self._total()
        for _ in range(sweeps):
            improved = False
            for number, errors in touching.items():
                totals = np.zeros(self._count)
                for error in errors:
                    totals += self._row(error, number)
                best = int(totals.argmin())
                if totals[best] < totals[self._steps[number]] * (1 - 1e-6):
                    self._steps[number], improved = best, True
            if not improved:
                break
        return start, self._total()

    def _row(self, error: _Error, number: int) -> np.ndarray:
        """Return an error for every exponent of one group, the others as they are."""
        steps = np.arange(self._count)
        plus = steps if error.plus == number else self._step(error.plus)
        minus = steps if error.minus == number else self._step(error.minus)
        result: np.ndarray = error.table[(plus - minus) % self._count]
        return result

    def _step(self, number: int) -> int:
        return 0 if number < 0 else int(self._steps[number])

    def _total(self) -> float:
        return sum(
            float(error.table[(self._step(error.plus) - self._step(error.minus)) % self._count])
            for error in self._errors
        )

    def _of_activation(self, stats: TensorStats, spec: TensorSpec) -> np.ndarray:
        bins = stats.distribution()
        values, counts = np.abs((bins.lower + bins.upper) / 2), bins.counts
        energy = float(counts @ values**2)
        levels = 2 ** (spec.dtype.bits - 1) - 1

        def error(factor: float) -> float:
            scaled = values * factor
            totals = []
            for step in _steps(scaled.max(), levels):
                # A histogram does not say where in its step a value lies, so the mean over all places counts.
                inside = np.where(scaled < step / 2, scaled**2, step**2 / 12)
                outside = scaled - step * levels
                totals.append(float(counts @ np.where(outside > 0, outside**2, inside)))
            return min(totals) / factor**2 / energy

        return self._table(error) if energy else np.zeros(self._count)

    def _of_weight(self, layer: LinearLayer, spec: TensorSpec) -> np.ndarray:
        rows = layer.layout.view(np.ascontiguousarray(array_of(layer.weight)))
        if isinstance(spec.granularity, PerTensor):
            rows = rows.reshape(1, -1)
        else:
            rows = rows.reshape(layer.layout.outputs, -1)
        rows = rows[:, :: max(1, rows.size // _SAMPLED)].astype(np.float64)
        return self._of_rows(rows, spec, float((rows**2).mean()))

    def _of_bias(self, layer: LinearLayer, spec: TensorSpec) -> np.ndarray | None:
        assert layer.bias is not None
        stats = self._statistics.tensors.get(layer.output.name or "")
        if stats is None or not stats.finite_count:
            return None
        return self._of_rows(array_of(layer.bias).astype(np.float64).reshape(1, -1), spec, mean_square(stats))

    def _of_rows(self, rows: np.ndarray, spec: TensorSpec, energy: float) -> np.ndarray:
        """Return the errors of constants, each row with a scale of its own, relative to a mean square."""
        levels = 2 ** (spec.dtype.bits - 1) - 1
        peaks = np.abs(rows).max(axis=1, initial=0.0)

        def error(factor: float) -> float:
            scaled = rows * factor
            candidates = [
                ((scaled - round_and_clip(scaled / step[:, None], -levels - 1, levels) * step[:, None]) ** 2).mean(1)
                for step in _steps(peaks * factor, levels)
            ]
            return float(np.min(candidates, axis=0).mean()) / factor**2 / energy

        return self._table(error) if energy and peaks.any() else np.zeros(self._count)

    def _table(self, error: Callable[[float], float]) -> np.ndarray:
        return np.array([error(float(np.exp2(step / self._count))) for step in range(self._count)])


def _steps(peak: Any, levels: int) -> Iterator[Any]:
    """Yield power-of-two steps around the smallest one that covers a peak; smaller ones cut values off.

    Args:
        peak: The largest magnitude, or one per row.
        levels: Steps from zero to the end of the range.
    """
    exponent = np.ceil(np.log2(np.maximum(peak, np.finfo(np.float32).tiny) / levels))
    for shift in _SHIFTS:
        yield np.exp2(exponent + shift)


def is_rounded(value: ir.Value, fused: Collection[str]) -> bool:
    """Whether a tensor is likely to be rounded by itself: not in front of a fused function, no copy of another one.

    Args:
        value: The tensor.
        fused: Activation functions that are fused with the operator before them.
    """
    producer = value.producer()
    if producer is None or facts(producer).family is Family.MOVEMENT:
        return False
    readers = [use.node for use in value.uses()]
    return not (facts(producer).fuses and len(readers) == 1 and readers[0].op_type in fused)
