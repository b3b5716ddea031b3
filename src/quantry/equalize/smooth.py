"""SmoothQuant of a graph: find tensors that linear layers read, choose factors, divide and multiply."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from quantry.equalize.channel_labels import ChannelLabels
from quantry.equalize.factor_absorption import FactorAbsorption, ScaleConstant, absorb_factors, insert_product
from quantry.equalize.linear_layer import LinearLayer, array_of, bias_magnitude, linear_layer
from quantry.equalize.smooth_factors import (
    ChannelRanges,
    ReadingLayer,
    Rounding,
    SharedStep,
    best_factors,
    powers_of_two,
    smooth_factors,
    within_bound,
)
from quantry.equalize.types import WeightActivationTypes
from quantry.graph.edit import FreshNames
from quantry.graph.float_model import FloatModel
from quantry.graph.weights import rebuilt, tensor_from_array
from quantry.memo import stage
from quantry.notes import Note, NoteKind, one_per_reason
from quantry.numerics.histogram import mean_square
from quantry.observe import Needs, Statistics
from quantry.recipe import PerGroup, PerTensor, SmoothQuant
from quantry.runtime.environment import depends_on


class CurrentRanges:
    """Observed ranges and energies of channels, updated when a tensor is divided.

    Args:
        statistics: What was observed before anything was divided.
    """

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics
        self._ranges: dict[str, ChannelRanges] = {}

    def ranges(self, name: str) -> ChannelRanges | None:
        """Return the ranges of a tensor's channels, or None if they were not observed."""
        if name not in self._ranges:
            stats = self._statistics.tensors.get(name)
            if stats is None or stats.channels is None or not stats.finite_count:
                return None
            self._ranges[name] = ChannelRanges.of(stats.channels.minima, stats.channels.maxima, mean_square(stats))
        return self._ranges[name]

    def mean_square(self, name: str) -> float:
        """Return the mean square of a tensor, or 0 if it was not observed."""
        ranges = self.ranges(name)
        if ranges is not None:
            return float(ranges.energy.mean())
        stats = self._statistics.tensors.get(name)
        return 0.0 if stats is None else mean_square(stats)

    def divide(self, name: str, factors: np.ndarray) -> None:
        """Divide the ranges of a tensor, whose channels were divided."""
        old = self._ranges[name]
        self._ranges[name] = ChannelRanges(old.low / factors, old.high / factors, old.energy / factors**2)


_FREE_GAIN = 0.1
"""Factors that need no multiplication are applied at this share of the gain that others need."""

_SPAN = 6
"""Factors of an inserted multiplication are powers of two, the largest at most ``2**6`` times the smallest, so that 8
bits represent them exactly."""


@dataclass(frozen=True, eq=False)
class SmoothQuantTarget:
    """A tensor whose channels can be divided.

    Attributes:
        value: The tensor.
        axis: Its channel axis.
        layers: The layers that read it.
    """

    value: ir.Value
    axis: int
    layers: tuple[LinearLayer, ...]

    @property
    def channels(self) -> int:
        """Number of channels."""
        return self.layers[0].layout.inputs

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The layers' nodes."""
        return tuple(layer.node for layer in self.layers)

    def absorption(self, *, bounded: bool = False) -> FactorAbsorption | str:
        """Return how what computes the tensor takes up its factors, or why it cannot; see `absorb_factors`."""
        return absorb_factors(self.value, self.nodes, self.axis, self.channels, bounded=bounded)


def smooth_needs(model: FloatModel, options: SmoothQuant, equalized: bool = False) -> Needs:
    """Return the statistics of activations that smoothing needs.

    Args:
        model: The model to smooth.
        options: Which operators.
        equalized: Whether joint equalization chose factors before.
    """
    targets, _ = find_targets(model.model, options, equalized)
    return Needs(tuple((target.value.name or "", target.axis) for target in targets))


@stage(name="smooth", version=8, environment=depends_on("onnx_ir", "numpy"))
def smooth(
    model: FloatModel,
    statistics: Statistics,
    options: SmoothQuant,
    types: WeightActivationTypes,
    equalized: bool = False,
) -> FloatModel:
    """Return a model that computes the same, with fewer outliers in its activations.

    Where channels pass a Clip, it computes the same for values up to twice those observed.

    Args:
        model: The prepared model; it is not modified.
        statistics: Its statistics, including what `smooth_needs` asks for.
        options: What to do.
        types: Types of the model's tensors. If activations stay float, only the error of weights counts, as in AWQ.
        equalized: Whether joint equalization chose factors before. What it chose is better than what is chosen for one
            tensor at a time, so only tensors whose channels could not have factors there are divided.
    """
    activation, weight = types.activation, types.weight
    if not types.all_integers:
        message = "SmoothQuant: nothing was changed, because types that are not integers represent outliers well"
        return FloatModel(model.model, (Note.of(message),))
    copy = model.model.clone()
    group = weight.granularity.size if isinstance(weight.granularity, PerGroup) else None
    roundings = (
        None if activation is None else Rounding(activation.dtype.bits, activation.symmetric),
        Rounding(weight.dtype.bits, weight.symmetric, not isinstance(weight.granularity, PerTensor), group),
    )
    bias_rounding = None if types.own_bias is None else Rounding(types.own_bias.dtype.bits, types.own_bias.symmetric)
    smoother = _Smoother(copy, statistics, options, roundings)
    reasons: Counter[str] = Counter()
    # Dividing a tensor changes the weights that compute it, and so the best factors of the tensors before it.
    for _ in range(options.sweeps):
        targets, reasons = find_targets(copy, options, equalized)
        smoother.sweep(targets, bias_rounding)
    return FloatModel(rebuilt(copy), smoother.notes(reasons))


def find_targets(
    model: ir.Model, options: SmoothQuant, equalized: bool = False
) -> tuple[list[SmoothQuantTarget], Counter[str]]:
    """Return the tensors that layers read, in the order of the graph, and the number of others by reason."""
    labels = ChannelLabels(model) if equalized else None
    nodes_of: dict[ir.Value, list[ir.Node]] = {}
    for node in model.graph:
        source = node.inputs[0] if node.inputs else None
        if node.op_type in options.operators and node.domain == "" and source is not None:
            nodes_of.setdefault(source, []).append(node)
    targets, reasons = [], Counter[str]()
    for value, nodes in nodes_of.items():
        target = _target(value, nodes)
        if labels is not None and value in labels.of and not labels.are_fixed(labels.of[value]).all():
            target = "joint equalization chose their factors"
        if isinstance(target, str):
            reasons[target] += 1
        else:
            targets.append(target)
    return targets, reasons


def _target(value: ir.Value, nodes: list[ir.Node]) -> SmoothQuantTarget | str:
    if value.is_graph_output():
        return "their input is an output of the model"
    if value.const_value is not None or value.dtype != ir.DataType.FLOAT:
        return "their input is not a float32 activation"
    if any(use.idx != 0 for use in value.uses() if use.node in nodes):
        return "they read their input twice"
    layers = [linear_layer(node) for node in nodes]
    linear = [layer for layer in layers if isinstance(layer, LinearLayer)]
    if len(linear) < len(layers):
        return next(layer for layer in layers if isinstance(layer, str))
    kinds = {(layer.input_axis, layer.layout.inputs) for layer in linear}
    if len(kinds) > 1:
        return "layers read their input along several axes"
    if value.shape is None or value.shape[linear[0].input_axis] != linear[0].layout.inputs:
        return "the length of the channel axis is not known"
    return SmoothQuantTarget(value, linear[0].input_axis, tuple(linear))


class _Smoother:
    """Smooths one tensor after the other and counts what was changed."""

    def __init__(
        self, model: ir.Model, statistics: Statistics, options: SmoothQuant, roundings: tuple[Rounding | None, Rounding]
    ) -> None:
        self._names = FreshNames(model)
        self._ranges_now = CurrentRanges(statistics)
        self._options = options
        self._roundings = roundings
        self._targets = 0
        self._done: dict[str, str] = {}
        self._declined: Counter[str] = Counter()

    def sweep(self, targets: Sequence[SmoothQuantTarget], bias: Rounding | None) -> None:
        """Divide the tensors that gain enough, one after the other.

        Args:
            targets: The tensors.
            bias: How biases with a scale of their own are rounded, or None.
        """
        self._targets = max(self._targets, len(targets))
        self._declined.clear()
        for target in targets:
            self._smooth(target, bias)

    def _smooth(self, target: SmoothQuantTarget, bias: Rounding | None) -> None:
        name = target.value.name or ""
        ranges = self._ranges_now.ranges(name)
        if ranges is None:
            self._declined["there are no statistics of their input"] += 1
            return
        # With one scale per weight, a few extreme channels cost so much that it pays to pass a Clip.
        bounded = self._options.alpha is None and not self._roundings[1].per_channel
        result = target.absorption(bounded=bounded)
        if isinstance(result, str) and not self._options.insert:
            self._declined[result] += 1
            return
        fold = result if isinstance(result, FactorAbsorption) else None
        factors = self._chosen(target, ranges, fold, bias)
        if factors is None:
            return
        for layer in target.layers:
            multiplied = layer.layout.scaled(array_of(layer.weight), np.ones(layer.layout.outputs), factors)
            layer.weight.const_value = tensor_from_array(multiplied, layer.weight.name or "")
        if fold is None:
            insert_product(target.value, target.nodes, 1.0 / factors, target.axis, self._names)
            self._done[name] = "inserted"
            return
        self._done[name] = "restored" if fold.restored else "folded"
        fold.apply(factors, self._names)
        self._ranges_now.divide(name, factors)

    def _chosen(
        self, target: SmoothQuantTarget, ranges: ChannelRanges, fold: FactorAbsorption | None, bias: Rounding | None
    ) -> np.ndarray | None:
        """Return the factors, or None if they do not gain enough."""
        layers = [
            ReadingLayer.of(layer.layout.view(np.ascontiguousarray(array_of(layer.weight)))) for layer in target.layers
        ]
        products = 1 if fold is None else fold.products
        if self._options.alpha is not None:
            factors = smooth_factors(ranges, layers, self._options.alpha)
        else:
            makers = [] if fold is None else self._constants(target, fold)
            if fold is not None and not self._roundings[1].per_channel:
                makers += self._makers(target, fold, bias)
            limited = partial(_limited, ranges=ranges, fold=fold)
            factors, error_without, error = best_factors(ranges, layers, *self._roundings, makers, limited)
            if not self._pays(error_without, error, products):
                return None
        # An operand of a multiplication is quantized itself; powers of two survive that exactly.
        if fold is None or fold.restored:
            factors = powers_of_two(factors, _SPAN)
        return factors if fold is None else within_span(factors, fold)

    def _constants(self, target: SmoothQuantTarget, fold: FactorAbsorption) -> list[SharedStep]:
        """Return the constant operands that are divided; they have one step for all channels."""
        steps: list[SharedStep] = []
        if self._roundings[0] is None:
            return steps
        step = (2 / self._roundings[0].steps) ** 2 / 12
        for edit in fold.rounded:
            extent = np.zeros(target.channels)
            extent[edit.channels] = self._extent(edit)
            read = [value for value in edit.reader.inputs if value is not edit.value] if edit.reader is not None else []
            product = edit.reader is not None and edit.reader.op_type == "Mul"
            energy = self._ranges_now.mean_square(read[0].name or "") if product and read and read[0] else 1.0
            steps.append(SharedStep(extent, step * energy))
        return steps

    @staticmethod
    def _extent(edit: ScaleConstant) -> np.ndarray:
        """Return the largest magnitude in each channel of a constant."""
        array = np.abs(array_of(edit.value).astype(np.float64))
        count = edit.channels.stop - edit.channels.start
        if array.ndim < edit.from_end or array.shape[-edit.from_end] != count:
            return np.full(count, array.max(initial=0.0))
        rows: np.ndarray = np.moveaxis(array, -edit.from_end, 0).reshape(count, -1).max(axis=1)
        return rows

    def _makers(self, target: SmoothQuantTarget, fold: FactorAbsorption, bias: Rounding | None) -> list[SharedStep]:
        """Return the weights and biases that compute a tensor, if they have one step for all channels."""
        steps = []
        for edit in fold.makers:
            layer = edit.layer
            weight = layer.layout.view(np.ascontiguousarray(array_of(layer.weight)))
            peak = np.zeros(target.channels)
            peak[edit.channels] = np.abs(weight).max(axis=(2, 3)).reshape(-1)
            read = layer.node.inputs[0]
            energy = self._ranges_now.mean_square("" if read is None else read.name or "")
            weights = weight.shape[2] * weight.shape[3]
            steps.append(SharedStep(peak, (2 / self._roundings[1].steps) ** 2 / 12 * weights * energy))
            if bias is not None and layer.bias is not None:
                extent = np.zeros(target.channels)
                extent[edit.channels] = bias_magnitude(array_of(layer.bias), layer.layout.outputs)
                steps.append(SharedStep(extent, (2 / bias.steps) ** 2 / 12))
        return steps

    def _pays(self, error_without: float, error: float, products: int) -> bool:
        # Without a multiplication there is no cost, so any clear gain is worth it.
        if not products:
            return error_without > error * (1.0 + _FREE_GAIN * (self._options.gain - 1.0))
        return error_without >= self._options.tolerance and error_without > error * self._options.gain * products

    def notes(self, reasons: Counter[str]) -> tuple[Note, ...]:
        """Return what was changed, and why other tensors were not."""
        kinds = Counter(self._done.values())
        summary = Note.of(
            "SmoothQuant divided the channels of {count} of {tensors} tensors: {folded} at no cost, {restored} with a "
            "multiplication that restores the values for other readers, {inserted} with an inserted multiplication",
            NoteKind.DONE if self._done else NoteKind.IDLE,
            count=len(self._done),
            tensors=self._targets,
            folded=kinds["folded"],
            restored=kinds["restored"],
            inserted=kinds["inserted"],
        )
        message = "no SmoothQuant in front of {count} layers: {reason}"
        return (summary, *one_per_reason(message, self._declined + reasons, NoteKind.NOT_SMOOTHED))


def _limited(factors: np.ndarray, ranges: ChannelRanges, fold: FactorAbsorption | None) -> np.ndarray:
    """Return factors that satisfy the bounds of a fold."""
    bounds = () if fold is None else fold.bounds
    result = factors
    for edit in bounds:
        result = result.copy() if result is factors else result
        result[edit.channels] = within_bound(factors[edit.channels], ranges.high[edit.channels], edit.bound)
    return result


def within_span(factors: np.ndarray, fold: FactorAbsorption) -> np.ndarray:
    """Return factors limited so that multiplications that restore them stay exact in 8 bits."""
    for edit in fold.restored:
        for constant in edit.constants:
            present = array_of(constant).reshape(-1).astype(np.float64)
            product = np.abs(present * factors[edit.channels])
            lifted = np.maximum(product, product.max() * 2.0**-_SPAN)
            factors = factors.copy()
            factors[edit.channels] *= lifted / np.where(product > 0, product, lifted)
    return factors
