"""SmoothQuant of a graph: find tensors that linear layers read, choose factors, divide and multiply."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantry.equalize.folding import Fold, find_fold, insert_product
from quantry.equalize.linear_layer import LinearLayer, array_of, linear_layer
from quantry.equalize.smooth_factors import (
    ChannelRanges,
    ReadingLayer,
    Rounding,
    best_factors,
    powers_of_two,
    smooth_factors,
)
from quantry.memo import stage
from quantry.observe import Needs, Statistics, TensorStats
from quantry.prepare import FloatModel
from quantry.prepare.graph.fresh_name import FreshNames
from quantry.prepare.weights import rebuilt, tensor_from_array
from quantry.recipe import PerTensor, SmoothQuant, TensorSpec

_FREE_GAIN = 0.1
"""What costs no operator is worth doing where the error falls by this part of it."""

_SPAN = 6
"""Factors of an inserted multiplication are powers of two, at most this many doublings apart."""


@dataclass(frozen=True, eq=False)
class Site:
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


def smooth_needs(model: FloatModel, options: SmoothQuant) -> Needs:
    """Return what smoothing wants to know of the activations.

    Args:
        model: The model to smooth.
        options: Which operators.
    """
    sites, _ = _find_sites(model.model, options)
    return Needs(tuple((site.value.name or "", site.axis) for site in sites))


@stage(name="smooth", version=1)
def smooth(
    model: FloatModel, statistics: Statistics, options: SmoothQuant, activation: TensorSpec, weight: TensorSpec
) -> FloatModel:
    """Return a model that computes the same, whose activations have fewer outliers.

    Args:
        model: The prepared model; it is left as it was.
        statistics: What was observed of it, with what `smooth_needs` asks for.
        options: What to do.
        activation: What activations become.
        weight: What weights become.
    """
    if not (activation.dtype.is_integer and weight.dtype.is_integer):
        note = "SmoothQuant: types that are no integers have scales enough for outliers; nothing was changed"
        return FloatModel(model.model, (*model.notes, note))
    copy = model.model.clone()
    roundings = (
        Rounding(activation.dtype.bits, activation.symmetric),
        Rounding(weight.dtype.bits, weight.symmetric, not isinstance(weight.granularity, PerTensor)),
    )
    smoother = _Smoother(copy, statistics, options, roundings)
    sites, reasons = _find_sites(copy, options)
    for site in sites:
        smoother.smooth(site)
    return FloatModel(rebuilt(copy), (*model.notes, *smoother.notes(reasons)))


def _find_sites(model: ir.Model, options: SmoothQuant) -> tuple[list[Site], Counter[str]]:
    """Return the tensors that layers read, in the order of the graph, and how many others there are by reason."""
    found: dict[ir.Value, list[ir.Node]] = {}
    for node in model.graph:
        source = node.inputs[0] if node.inputs else None
        if node.op_type in options.operators and node.domain == "" and source is not None:
            found.setdefault(source, []).append(node)
    sites, reasons = [], Counter[str]()
    for value, nodes in found.items():
        site = _site(value, nodes)
        if isinstance(site, str):
            reasons[site] += 1
        else:
            sites.append(site)
    return sites, reasons


def _site(value: ir.Value, nodes: list[ir.Node]) -> Site | str:
    if value.is_graph_output():
        return "their input is an output of the model"
    if value.const_value is not None or value.dtype != ir.DataType.FLOAT:
        return "their input is no float32 activation"
    if any(use.idx != 0 for use in value.uses() if use.node in nodes):
        return "they read their input twice"
    layers = [linear_layer(node) for node in nodes]
    known = [layer for layer in layers if isinstance(layer, LinearLayer)]
    if len(known) < len(layers):
        return next(layer for layer in layers if isinstance(layer, str))
    kinds = {(layer.input_axis, layer.layout.inputs) for layer in known}
    if len(kinds) > 1:
        return "layers read their input along several axes"
    if value.shape is None or value.shape[known[0].input_axis] != known[0].layout.inputs:
        return "the length of the channel axis is not known"
    return Site(value, known[0].input_axis, tuple(known))


class _Smoother:
    """Smooths one site after the other and counts what happened."""

    def __init__(
        self, model: ir.Model, statistics: Statistics, options: SmoothQuant, roundings: tuple[Rounding, Rounding]
    ) -> None:
        self._names = FreshNames(model)
        self._statistics = statistics
        self._options = options
        self._roundings = roundings
        self._sites = self._folded = self._restored = self._inserted = 0
        self._declined: Counter[str] = Counter()

    def smooth(self, site: Site) -> None:
        """Divide a tensor where it pays."""
        self._sites += 1
        stats = self._statistics.tensors.get(site.value.name or "")
        if stats is None or stats.channel_minima is None or not stats.finite_count:
            self._declined["nothing was observed of their input"] += 1
            return
        fold = find_fold(site.value, site.nodes, site.axis, site.channels)
        if isinstance(fold, str) and not self._options.insert:
            self._declined[fold] += 1
            return
        products = fold.products if isinstance(fold, Fold) else 1
        factors = self._chosen(site, stats, products)
        if factors is None:
            return
        for layer in site.layers:
            multiplied = layer.layout.scaled(array_of(layer.weight), np.ones(layer.layout.outputs), factors)
            layer.weight.const_value = tensor_from_array(multiplied, layer.weight.name or "")
        if isinstance(fold, Fold):
            fold.apply(factors, self._names)
            self._folded += not products
            self._restored += bool(products)
        else:
            insert_product(site.value, site.nodes, 1.0 / factors, site.axis, self._names)
            self._inserted += 1

    def _chosen(self, site: Site, stats: TensorStats, products: int) -> np.ndarray | None:
        """Return the factors, or None where they do not pay."""
        assert stats.channel_minima is not None
        assert stats.channel_maxima is not None
        ranges = ChannelRanges.of(stats.channel_minima, stats.channel_maxima, _mean_square(stats))
        layers = [
            ReadingLayer.of(layer.layout.view(np.ascontiguousarray(array_of(layer.weight)))) for layer in site.layers
        ]
        if self._options.alpha is not None:
            factors = smooth_factors(ranges, layers, self._options.alpha)
        else:
            factors, before, after = best_factors(ranges, layers, *self._roundings)
            if not self._pays(before, after, products):
                return None
        return powers_of_two(factors, _SPAN) if products else factors

    def _pays(self, before: float, after: float, products: int) -> bool:
        if not products:
            return before > after * (1.0 + _FREE_GAIN * (self._options.gain - 1.0))
        return before >= self._options.tolerance and before > after * self._options.gain * products

    def notes(self, reasons: Counter[str]) -> tuple[str, ...]:
        """Return what was done and what was not."""
        done = self._folded + self._restored + self._inserted
        summary = (
            f"SmoothQuant divided the channels of {done} of {self._sites} tensors: {self._folded} at no cost, "
            f"{self._restored} through a gate or a branch that gets its values back by a multiplication, "
            f"{self._inserted} by a multiplication of their own"
        )
        left = sorted((self._declined + reasons).items())
        return (summary, *(f"no SmoothQuant before {count} layers: {reason}" for reason, count in left))


def _mean_square(stats: TensorStats) -> float:
    distribution = stats.distribution()
    middle = (distribution.lower + distribution.upper) / 2
    return float(distribution.counts @ (middle * middle) / max(distribution.total, 1.0))
