"""Joint equalization: one factor for each channel of the model, all chosen together.

::

    y = W2 Relu(W1 x + b1)      =      y = (W2 / S) Relu(S W1 x + S b1)        for every diagonal S > 0

With one scale per tensor, the channel with the largest values decides how coarsely all others are rounded. Factors can
make channels alike, but the factor of a channel counts in every weight, bias and tensor that has the channel, and what
helps one of them harms another. So the sum of the estimated errors of all of them is made small at once:

- A weight has steps in proportion to its largest value. Its error reaches the outputs of the layer with the energy of
  the inputs, and counts by the importance of the outputs.
- A tensor has steps in proportion to the largest value that new samples are expected to have, and its error counts by
  the importance of its channels.
- A bias that is rounded by itself, likewise.
- Factors pass SiLU and its like (`gates`) by a multiplication, whose constant is rounded too.

Every error is a product of sums of powers of the factors, so there is one optimum (`geometric_program`).

Cross-layer equalization (Nagel et al. 2019, https://arxiv.org/abs/1906.04721) and SmoothQuant (Xiao et al. 2022,
https://arxiv.org/abs/2211.10438) choose factors for one pair of layers at a time; they do not pass a Concat, a Split or
a shuffle of channels, and weigh either weights or activations.
"""

import math
from collections.abc import Sequence

import numpy as np

from quantry.equalize.channel_labels import ChannelLabels, LabelledClip, LabelledConstant, LabelledLayer
from quantry.equalize.geometric_program import log_sum
from quantry.equalize.linear_layer import (
    array_of,
    scaled_bias,
    store_array,
    store_input,
)
from quantry.equalize.rounding_errors import Importance, ObservedChannels, RoundingErrors, observed_tensors
from quantry.equalize.types import WeightActivationTypes
from quantry.graph.edit import FreshNames
from quantry.graph.float_model import FloatModel
from quantry.graph.weights import rebuilt
from quantry.memo import stage
from quantry.notes import Note, one_per_reason
from quantry.observe import Needs, Statistics
from quantry.recipe import JointEqualization
from quantry.runtime.environment import depends_on

Floats = np.ndarray
"""float64."""

_REACHES, _ROOM = 0.8, 1.25
"""A channel that comes this close to the bound of a Clip keeps the bound. Another one may grow until this many times
its largest value reaches the bound, so that larger values of other samples are not cut off."""

_HEADROOM = 1e3
"""Sums of products on the way to a result may be this many times larger than the result."""

_STEP = math.log(2.0) / 32
"""Logarithms of factors are whole multiples of this: 2 %, far less than any factor gains."""

_GAIN = 0.02
"""Smaller gains of the estimated error change nothing."""


def joint_needs(model: FloatModel, types: WeightActivationTypes) -> Needs:
    """Return the statistics of activations that joint equalization needs.

    Args:
        model: The model to equalize.
        types: Types of its tensors.
    """
    labels = ChannelLabels(model.model)
    return Needs(tuple((value.name or "", axis) for value, axis in observed_tensors(labels, types)))


@stage(name="joint", version=8, environment=depends_on("onnx_ir", "numpy"))
def equalize_jointly(
    model: FloatModel,
    statistics: Statistics,
    options: JointEqualization,
    types: WeightActivationTypes,
) -> FloatModel:
    """Return a model that computes the same, whose channels suit common scales.

    Where channels pass a Clip, it computes the same for values up to 1.25 times those observed.

    Args:
        model: The model; it is not modified.
        statistics: Its statistics, including what `joint_needs` asks for.
        options: How to search.
        types: Types of the model's tensors.
    """
    if types.activation is None or not types.all_integers:
        message = "joint equalization: nothing was changed, because types that are not integers represent outliers well"
        return FloatModel(model.model, (Note.of(message),))
    copy = model.model.clone()
    labels = ChannelLabels(copy)
    observed = ObservedChannels(statistics)
    importance = Importance(labels, observed)
    bounds = _bounds(labels, observed)
    numbers = labels.positions()
    problem = RoundingErrors(labels, observed, importance, types)
    blocked = one_per_reason("no joint equalization through {count} nodes: {reason}", labels.reasons)
    if not problem.terms:
        return FloatModel(model.model, (Note.of("joint equalization: no channel can have a factor"), *blocked))
    logarithms = _limited(problem.solved(options), bounds, numbers)
    # Whole steps, because the last bits of exponentials differ between processors.
    logarithms = np.round(logarithms / _STEP) * _STEP
    start_error, error = (float(np.exp(log_sum(problem.terms, u)[0])) for u in (np.zeros_like(logarithms), logarithms))
    if not error < start_error * (1 - _GAIN):
        return FloatModel(model.model, (Note.of("joint equalization: no factors would help"), *blocked))
    factors, names = np.exp(logarithms), FreshNames(copy)
    for layer in labels.layers:
        _scale_layer(layer, factors[numbers[layer.outputs]], factors[numbers[layer.inputs]])
    for constant in labels.constants:
        _scale_constant(constant, factors[numbers[constant.labels]], names)
    for gate in labels.gates:
        gate.restore(factors[numbers[gate.labels]], names)
    for bound in bounds:
        bound.scale(factors, numbers, names)
    if not _stays_finite(labels, observed, factors[numbers]):
        message = "joint equalization: values would leave the range of float32"
        return FloatModel(model.model, (Note.of(message), *blocked))
    summary = Note.of(
        "joint equalization chose {count} factors for the channels of {layers} layers; estimated rounding error "
        "{before:.3g} -> {after:.3g}",
        count=problem.count,
        layers=len(labels.layers),
        before=start_error,
        after=error,
    )
    return FloatModel(rebuilt(copy), (summary, *blocked))


def _stays_finite(labels: ChannelLabels, observed: ObservedChannels, factors: Floats) -> bool:
    """Whether scaled weights, and what their layers compute, are far from the largest number of float32."""
    most = np.finfo(np.float32).max / _HEADROOM
    for labelled in labels.layers:
        layer = labelled.layer
        statistics = observed.of(layer.output, layer.layout.outputs)
        peaks = [np.abs(array_of(value)).max() for value in (layer.weight, layer.bias) if value is not None]
        if statistics is not None:
            peaks.append((statistics.largest * factors[labelled.outputs]).max())
        if not all(peak < most for peak in peaks):
            return False
    return True


class _Bound:
    """The upper bound of a Clip.

    Channels that reach it share a factor, with which the bound is multiplied. The others may not grow beyond it.
    """

    def __init__(self, labels: ChannelLabels, clip: LabelledClip, observed: ObservedChannels) -> None:
        self._clip = clip
        self._flat = clip.labels.reshape(-1)
        statistics = observed.of(clip.node.outputs[0], len(self._flat))
        self._high = np.full(len(self._flat), clip.bound) if statistics is None else statistics.high
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

    def limit(self, u: Floats, numbers: np.ndarray) -> None:
        """Lower the factors of channels that would exceed the bound."""
        if not self._reaching.any():
            return
        own_numbers = numbers[self._flat]
        common = u[own_numbers[self._reaching][0]]
        room = np.log(self._clip.bound / (_ROOM * np.maximum(self._high, np.finfo(np.float32).tiny)))
        highest = np.where(self._reaching, np.inf, common + np.maximum(room, 0.0))
        # A channel without a factor stays where it is, and so does the bound.
        np.minimum.at(u, own_numbers[own_numbers > 0], highest[own_numbers > 0])

    def scale(self, factors: Floats, numbers: np.ndarray, names: FreshNames) -> None:
        """Multiply the bound."""
        clip_factors = factors[numbers[self._flat]]
        factor = clip_factors[self._reaching][0] if self._reaching.any() else clip_factors.max()
        bound = self._clip.node.inputs[2]
        if factor != 1.0 and bound is not None:
            store_input(self._clip.node, 2, array_of(bound) * factor, names)


def _bounds(labels: ChannelLabels, observed: ObservedChannels) -> list[_Bound]:
    bounds = [_Bound(labels, clip, observed) for clip in labels.clips]
    # Channels that are held at one bound may pass another one, which is held then too.
    while any(bound.anchor(labels) for bound in bounds):
        pass
    return bounds


def _limited(u: Floats, bounds: Sequence[_Bound], numbers: np.ndarray) -> Floats:
    """Return logarithms of factors with which no channel exceeds a bound."""
    limited = u.copy()
    # A bound that gives way moves others, which rarely takes more than two rounds.
    for _ in bounds:
        previous = limited.copy()
        for bound in bounds:
            bound.limit(limited, numbers)
        if np.array_equal(limited, previous):
            break
    return limited


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
    multipliers = factors.reshape(-1)[0] if np.all(factors == factors.reshape(-1)[0]) else factors
    store_input(constant.node, constant.index, array * multipliers, names)
