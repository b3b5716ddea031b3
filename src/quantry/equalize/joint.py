"""Joint equalization: one factor for each channel of the model, all chosen together.

::

    y = W2 Relu(W1 x + b1)      =      y = (W2 / S) Relu(S W1 x + S b1)        for every diagonal S > 0

With one scale per tensor, the channel with the largest values decides how coarsely all others are rounded. Factors can
make channels alike, but the factor of a channel counts in every weight, bias and tensor that has the channel, and what
helps one of them harms another. So the sum of the estimated errors of all of them is made small at once:

- A weight has steps in proportion to its largest value. Its error reaches the outputs of the layer with the energy of
  the inputs, and counts by the importance of the outputs.
- A tensor has steps in proportion to its largest value, and its error counts by the importance of its channels.
- A bias that is rounded by itself, likewise.

Every error is a product of sums of powers of the factors, so there is one optimum (`geometric_program`).

Cross-layer equalization (Nagel et al. 2019, https://arxiv.org/abs/1906.04721) and SmoothQuant (Xiao et al. 2022,
https://arxiv.org/abs/2211.10438) choose factors for one pair of layers at a time; they do not pass a Concat, a Split or
a shuffle of channels, and weigh either weights or activations.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantry.equalize.channel_labels import ChannelLabels, LabelledClip, LabelledConstant, LabelledLayer
from quantry.equalize.fit_powers import is_rounded
from quantry.equalize.geometric_program import NORM, SharedScale, Term, WeightScale, log_sum, minimized
from quantry.equalize.linear_layer import (
    LinearLayer,
    array_of,
    bias_magnitude,
    scaled_bias,
    store_array,
    store_input,
)
from quantry.graph.edit import FreshNames
from quantry.graph.float_model import FloatModel
from quantry.graph.joined import Joined
from quantry.graph.operators import Family, facts
from quantry.graph.weights import rebuilt
from quantry.memo import stage
from quantry.numerics.histogram import mean_square
from quantry.observe import Needs, Statistics
from quantry.recipe import Bias, JointEqualization, OwnBias, PerTensor, PowerOfTwoScale, TensorSpec
from quantry.runtime.environment import depends_on

Floats = np.ndarray
"""float64."""

_FARTHEST = 7.0
"""Logarithms of factors stay within this; larger ones belong to channels that do nothing."""

_PULL = 1e-6
"""What the square of a logarithm counts, so that channels without any effect keep their factor."""

_LEAST_POWER = 1e-6
"""Share of the mean energy of a layer's outputs that a channel at least counts with."""

_REACHES, _ROOM = 0.8, 1.25
"""A channel that comes this close to the bound of a Clip keeps the bound. Another one may grow until this many times
its largest value reaches the bound, so that larger values of other samples are not cut off."""

_HEADROOM = 1e3
"""Sums of products on the way to a result may be this many times larger than the result."""

_STEP = math.log(2.0) / 32
"""Logarithms of factors are whole multiples of this: 2 %, far less than any factor gains."""

_GAIN = 0.02
"""Smaller gains of the estimated error change nothing."""


def joint_needs(model: FloatModel) -> Needs:
    """Return the statistics of activations that joint equalization needs.

    Args:
        model: The model to equalize.
    """
    labels = ChannelLabels(model.model)
    return Needs(tuple((value.name or "", axis) for value, axis in _observed(labels)))


def _observed(labels: ChannelLabels) -> Iterator[tuple[ir.Value, int]]:
    """Yield the tensors whose channels count, with the axis of the channels."""
    read = {layer.layer.node.inputs[0] for layer in labels.layers}
    clipped = {clip.node.outputs[0] for clip in labels.clips}
    for value in labels.of:
        axis = labels.axis_of(value)
        if axis is not None and value.name and (value in read or value in clipped or _is_rounded(value)):
            yield value, axis


def _is_rounded(value: ir.Value) -> bool:
    """Whether a tensor is likely to be rounded with a scale of its own."""
    producer = value.producer()
    if producer is None or facts(producer).family is Family.LOOKUP:
        return False
    readers = [use.node for use in value.uses()]
    # Parts of a Concat are rounded with its scale, so its result stands for all of them.
    if readers and all(facts(reader).family is Family.JOIN for reader in readers):
        return False
    return is_rounded(value)


@stage(name="joint", version=3, environment=depends_on("onnx_ir", "numpy"))
def equalize_jointly(
    model: FloatModel,
    statistics: Statistics,
    options: JointEqualization,
    activation: TensorSpec,
    weight: TensorSpec,
    bias: Bias | None = None,
) -> FloatModel:
    """Return a model that computes the same, whose channels suit common scales.

    Where channels pass a Clip, it computes the same for values up to 1.25 times those observed.

    Args:
        model: The model; it is not modified.
        statistics: Its statistics, including what `joint_needs` asks for.
        options: How to search.
        activation: Type of activations.
        weight: Type of weights.
        bias: Type of biases; None if they have no scale of their own.
    """
    if not (activation.dtype.is_integer and weight.dtype.is_integer):
        note = "joint equalization: nothing was changed, because types that are not integers represent outliers well"
        return FloatModel(model.model, (note,))
    copy = model.model.clone()
    labels = ChannelLabels(copy)
    observed = _Observed(statistics)
    importance = _Importance(labels, observed)
    own = bias.spec if isinstance(bias, OwnBias) else None
    bounds = _bounds(labels, observed)
    places = labels.positions()
    problem = _Problem(labels, observed, importance, (activation, weight, own))
    left = tuple(f"no joint equalization through {count} nodes: {why}" for why, count in sorted(labels.reasons.items()))
    if not problem.terms:
        return FloatModel(model.model, ("joint equalization: no channel can have a factor", *left))
    found = _limited(problem.solved(options.iterations), bounds, places)
    # Whole steps, because the last bits of exponentials differ between processors.
    found = np.round(found / _STEP) * _STEP
    before, after = (float(np.exp(log_sum(problem.terms, u)[0])) for u in (np.zeros_like(found), found))
    if not after < before * (1 - _GAIN):
        return FloatModel(model.model, ("joint equalization: no factors would help", *left))
    factors, names = np.exp(found), FreshNames(copy)
    for layer in labels.layers:
        _scale_layer(layer, factors[places[layer.outputs]], factors[places[layer.inputs]])
    for constant in labels.constants:
        _scale_constant(constant, factors[places[constant.labels]], names)
    for bound in bounds:
        bound.scale(factors, places, names)
    if not _stays_finite(labels, observed, factors[places]):
        return FloatModel(model.model, ("joint equalization: values would leave the range of float32", *left))
    summary = (
        f"joint equalization chose {problem.count} factors for the channels of {len(labels.layers)} layers; estimated "
        f"rounding error {before:.3g} -> {after:.3g}"
    )
    return FloatModel(rebuilt(copy), (summary, *left))


def _stays_finite(labels: ChannelLabels, observed: "_Observed", factors: Floats) -> bool:
    """Whether scaled weights, and what their layers compute, are far from the largest number of float32."""
    most = np.finfo(np.float32).max / _HEADROOM
    for labelled in labels.layers:
        layer = labelled.layer
        seen = observed.of(layer.output, layer.layout.outputs)
        peaks = [np.abs(array_of(value)).max() for value in (layer.weight, layer.bias) if value is not None]
        if seen is not None:
            peaks.append((seen.peak * factors[labelled.outputs]).max())
        if not all(peak < most for peak in peaks):
            return False
    return True


@dataclass(frozen=True, eq=False)
class _Channels:
    """What was observed of the channels of a tensor, float64 [C] each.

    Attributes:
        peak: Largest magnitudes.
        high: Largest values.
        energy: Mean squares.
        active: Shares of values other than 0.
    """

    peak: Floats
    high: Floats
    energy: Floats
    active: Floats


class _Observed:
    """What was observed of the channels of all tensors."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics

    def of(self, value: ir.Value | None, count: int) -> _Channels | None:
        """Return what was observed of a tensor; None if nothing was.

        Args:
            value: The tensor.
            count: Number of channels. Where they were not observed one by one, all are like the whole tensor.
        """
        stats = self._statistics.tensors.get("" if value is None else value.name or "")
        if stats is None or not stats.finite_count:
            return None
        channels = stats.channels
        if channels is None or len(channels.minima) != count:
            peak = max(abs(stats.minimum), abs(stats.maximum))
            numbers = peak, stats.maximum, mean_square(stats), 1.0
            return _Channels(*(np.full(count, number) for number in numbers))
        low, high = channels.minima.astype(np.float64), channels.maxima.astype(np.float64)
        each = stats.count / count
        return _Channels(np.maximum(np.abs(low), np.abs(high)), high, channels.squares / each, channels.nonzero / each)


class _Bound:
    """The upper bound of a Clip.

    Channels that reach it share a factor, with which the bound is multiplied. The others may not grow beyond it.
    """

    def __init__(self, labels: ChannelLabels, clip: LabelledClip, observed: _Observed) -> None:
        self._clip = clip
        self._flat = clip.labels.reshape(-1)
        seen = observed.of(clip.node.outputs[0], len(self._flat))
        self._high = np.full(len(self._flat), clip.bound) if seen is None else seen.high
        self._reaching = self._high >= _REACHES * clip.bound
        if self._reaching.any():
            labels.join(self._flat[self._reaching], self._flat[self._reaching][:1])

    def anchor(self, labels: ChannelLabels) -> bool:
        """Hold the bound if a channel without a factor passes it, which could be cut off; return if that was needed."""
        fixed = labels.are_fixed(self._flat)
        if not fixed.any() or not self._reaching.any() or fixed[self._reaching].all():
            return False
        labels.join(self._flat[self._reaching], self._flat[fixed][:1])
        return True

    def limit(self, u: Floats, places: np.ndarray) -> None:
        """Lower the factors of channels that would exceed the bound."""
        if not self._reaching.any():
            return
        where = places[self._flat]
        common = u[where[self._reaching][0]]
        room = np.log(self._clip.bound / (_ROOM * np.maximum(self._high, np.finfo(np.float32).tiny)))
        highest = np.where(self._reaching, np.inf, common + np.maximum(room, 0.0))
        # A channel without a factor stays where it is, and so does the bound.
        np.minimum.at(u, where[where > 0], highest[where > 0])

    def scale(self, factors: Floats, places: np.ndarray, names: FreshNames) -> None:
        """Multiply the bound."""
        own = factors[places[self._flat]]
        factor = own[self._reaching][0] if self._reaching.any() else own.max()
        bound = self._clip.node.inputs[2]
        if factor != 1.0 and bound is not None:
            store_input(self._clip.node, 2, array_of(bound) * factor, names)


def _bounds(labels: ChannelLabels, observed: _Observed) -> list[_Bound]:
    bounds = [_Bound(labels, clip, observed) for clip in labels.clips]
    # Channels that are held at one bound may pass another one, which is held then too.
    while any(bound.anchor(labels) for bound in bounds):
        pass
    return bounds


def _limited(u: Floats, bounds: Sequence[_Bound], places: np.ndarray) -> Floats:
    """Return logarithms of factors with which no channel exceeds a bound."""
    found = u.copy()
    # A bound that gives way moves others, which rarely takes more than two rounds.
    for _ in bounds:
        before = found.copy()
        for bound in bounds:
            bound.limit(found, places)
        if np.array_equal(found, before):
            break
    return found


class _Importance:
    """What the square of an error counts in each channel.

    An error as large as all outputs of a layer counts 1, for every layer. Inside a layer, an output counts by what the
    layers that read it make of an error.
    """

    def __init__(self, labels: ChannelLabels, observed: _Observed) -> None:
        places = labels.positions()
        self._labels, self._places = labels, places
        self.outputs: dict[LinearLayer, Floats] = {}
        self._read: dict[ir.Value, Floats] = {}
        self._counted = np.zeros(places.max() + 1)
        # Backwards: the importance of a layer's outputs is known when all their readers have been visited.
        for labelled in reversed(labels.layers):
            layer, source = labelled.layer, labelled.layer.node.inputs[0]
            seen = observed.of(source, layer.layout.inputs)
            if source is None or seen is None:
                continue
            squares = np.square(_weights(layer)).sum(axis=-1)
            groups, _, inputs = squares.shape
            power = np.matmul(squares, seen.energy.reshape(groups, inputs, 1)).reshape(-1)
            if not power.any():
                continue
            own = self.outputs[layer] = self._of_outputs(places[labelled.outputs], power)
            # Rounding leaves zeros as they are, and errors in front of a Relu matter only where it is open.
            read = np.matmul(own.reshape(groups, 1, -1), squares).reshape(-1) * seen.active
            self._counted += np.bincount(places[labelled.inputs], read, minlength=len(self._counted))
            # Where labels do not vary, layers may read the channels along different axes.
            if labels.axis_of(source) is not None:
                self._read[source] = self._read.get(source, 0.0) + read

    def of_tensor(self, value: ir.Value) -> Floats:
        """Return the importance of the channels of a tensor: in the layers that read it, or else its copies."""
        direct = self._read.get(value)
        if direct is not None:
            return direct
        places = self._places[self._labels.of[value].reshape(-1)]
        return np.where(places > 0, self._counted[places], 0.0)

    def _of_outputs(self, places: np.ndarray, power: Floats) -> Floats:
        """Return the importance of a layer's outputs.

        Args:
            places: (outputs,) numbers of their factors.
            power: (outputs,) energies.
        """
        power = np.maximum(power, _LEAST_POWER * power.mean())
        relative = np.where(places > 0, self._counted[places], 0.0) * power
        followed = places > 0
        # Nothing is known about outputs whose readers were not followed: they count as much as others on average.
        relative[~followed] = relative[followed].mean() if relative.any() else 1.0
        if not relative.any():
            relative[:] = 1.0
        result: Floats = relative / relative.sum() / power
        return result


class _Problem:
    """The errors of all weights, biases and tensors whose channels have factors."""

    def __init__(
        self,
        labels: ChannelLabels,
        observed: _Observed,
        importance: _Importance,
        types: tuple[TensorSpec, TensorSpec, TensorSpec | None],
    ) -> None:
        self._places = labels.positions()
        self._observed, self._importance = observed, importance
        self._activation, self._weight, self._bias = types
        self.count = int(self._places.max())
        self.terms: list[Term] = []
        for labelled in labels.layers:
            self._add_layer(labelled)
        for values in self._with_one_scale(labels):
            self._add_tensors(values, labels)

    def solved(self, iterations: int) -> Floats:
        """Return the logarithms of the best factors; the first one is 0, for everything that has no factor."""

        def objective(u: Floats) -> tuple[float, Floats]:
            value, slope = log_sum(self.terms, np.clip(u, -_FARTHEST, _FARTHEST))
            return value + _PULL * float(u @ u), slope + 2 * _PULL * u

        found: Floats = np.clip(minimized(objective, np.zeros(self.count + 1), iterations), -_FARTHEST, _FARTHEST)
        return found

    def _add_layer(self, labelled: LabelledLayer) -> None:
        layer = labelled.layer
        importance = self._importance.outputs.get(layer)
        where_in, where_out = self._places[labelled.inputs], self._places[labelled.outputs]
        seen = self._observed.of(layer.node.inputs[0], layer.layout.inputs)
        if importance is None or seen is None or not (where_in.any() or where_out.any()):
            return
        weights = _weights(layer)
        groups, outputs, inputs, taps = weights.shape
        peaks = np.abs(weights).max(axis=-1)
        highest = peaks.max()
        self.terms.append(
            WeightScale(
                (peaks / highest) ** NORM,
                seen.energy.reshape(groups, inputs) * taps,
                importance.reshape(groups, outputs),
                where_out.reshape(groups, outputs),
                where_in.reshape(groups, inputs),
                _level(self._weight) + 2 * np.log(highest),
                not isinstance(self._weight.granularity, PerTensor),
            )
        )
        if self._bias is not None and layer.bias is not None and where_out.any():
            magnitude = bias_magnitude(array_of(layer.bias), len(importance))
            if magnitude.any():
                self.terms.append(SharedScale(magnitude, importance, where_out, _level(self._bias)))

    def _with_one_scale(self, labels: ChannelLabels) -> list[list[ir.Value]]:
        """Return the tensors that are rounded, in lists that share a scale."""
        rounded = [value for value, _ in _observed(labels) if _is_rounded(value)]
        if not isinstance(self._activation.scale, PowerOfTwoScale):
            return [[value] for value in rounded]
        # Integer NPUs copy, join and pool integers, so all tensors around such a node have one scale.
        joined: Joined[ir.Value] = Joined()
        for value in labels.of:
            producer = value.producer()
            npu = None if producer is None else facts(producer).npu
            if producer is not None and npu is not None and (npu.moves or npu.align):
                joined.join([value, *(part for part in producer.inputs if part in labels.of)])
        found: dict[ir.Value, list[ir.Value]] = {}
        for value in rounded:
            found.setdefault(joined.root(value), []).append(value)
        return list(found.values())

    def _add_tensors(self, values: Sequence[ir.Value], labels: ChannelLabels) -> None:
        peaks, importances, places = [], [], []
        for value in values:
            where = self._places[labels.of[value].reshape(-1)]
            seen = self._observed.of(value, len(where))
            if seen is not None:
                peaks.append(seen.peak)
                importances.append(self._importance.of_tensor(value))
                places.append(where)
        if not peaks:
            return
        peak, importance, where = np.concatenate(peaks), np.concatenate(importances), np.concatenate(places)
        if where.any() and peak.any() and importance.any():
            self.terms.append(SharedScale(peak, importance, where, _level(self._activation)))


def _weights(layer: LinearLayer) -> Floats:
    """Return the weights of a layer, (groups, outputs/groups, inputs/groups, kernel)."""
    weights: Floats = layer.layout.view(np.ascontiguousarray(array_of(layer.weight))).astype(np.float64)
    return weights


def _level(spec: TensorSpec) -> float:
    """Return the logarithm of the error of values up to 1: a twelfth of the square of a step."""
    steps = 2 ** (spec.dtype.bits - 1) - 1 if spec.symmetric else 2**spec.dtype.bits - 1
    return -float(np.log(12.0 * steps**2))


def _scale_layer(labelled: LabelledLayer, outputs: Floats, inputs: Floats) -> None:
    layer = labelled.layer
    if np.all(outputs == 1.0) and np.all(inputs == 1.0):
        return
    store_array(layer.weight, layer.layout.scaled(array_of(layer.weight), outputs, 1.0 / inputs))
    if layer.bias is not None:
        store_array(layer.bias, scaled_bias(array_of(layer.bias), outputs))


def _scale_constant(constant: LabelledConstant, factors: Floats, names: FreshNames) -> None:
    """Multiply a constant operand by the factors of the channels that it is added to."""
    value = constant.node.inputs[constant.index]
    assert value is not None
    if np.all(factors == 1.0):
        return
    array = array_of(value)
    # Factors have the rank of the result. A constant may lack leading axes, and gets them only if channels are there;
    # with one factor for all channels it keeps its shape.
    while factors.ndim > array.ndim and len(factors) == 1:
        factors = factors[0]
    own = factors.reshape(-1)[0] if np.all(factors == factors.reshape(-1)[0]) else factors
    store_input(constant.node, constant.index, array * own, names)
