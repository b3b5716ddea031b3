"""What rounding costs a model whose channels have factors, and the factors with which it costs least."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantry.equalize.channel_labels import ChannelLabels, LabelledLayer
from quantry.equalize.fit_powers import is_rounded
from quantry.equalize.gates import Gate, connected, sensitivity
from quantry.equalize.geometric_program import (
    NORM,
    Evaluated,
    SharedScale,
    SharedScales,
    Terms,
    WeightScale,
    log_sum,
    minimize_posynomial,
)
from quantry.equalize.linear_layer import LinearLayer, array_of, bias_magnitude
from quantry.equalize.types import WeightActivationTypes
from quantry.facts.operators import Family, facts
from quantry.graph.joined import Joined
from quantry.numerics.histogram import mean_square
from quantry.observe import Statistics
from quantry.recipe import JointEqualization, PerTensor, PowerOfTwoScale, TensorSpec

Floats = np.ndarray
"""float64."""

_FARTHEST = 7.0
"""Logarithms of factors stay within this; larger ones belong to channels that do nothing."""

_PULL = 1e-6
"""What the square of a logarithm counts, so that channels without any effect keep their factor."""

_LEAST_POWER = 1e-6
"""Share of the mean energy of a layer's outputs that a channel at least counts with."""

_LEAST_SECOND = 0.1
"""A channel counts with at least this share of its largest value, also if only one sample uses it."""

_POWERS = (0.25, 0.5, 1.0)
"""The sum of the errors has steep slopes for the largest ones and almost none for the others, which then stay where
they are. So power means that count small errors too come first."""


def observed_tensors(labels: ChannelLabels, types: WeightActivationTypes) -> Iterator[tuple[ir.Value, int]]:
    """Yield the tensors whose channels count, with the axis of the channels.

    Args:
        labels: The channels of the model's tensors.
        types: Types of the tensors.
    """
    read = {layer.layer.node.inputs[0] for layer in labels.layers}
    clipped = {clip.node.outputs[0] for clip in labels.clips}
    for value in labels.of:
        axis = labels.axis_of(value)
        if axis is not None and value.name and (value in read or value in clipped or _is_rounded(value, types)):
            yield value, axis


def _is_rounded(value: ir.Value, types: WeightActivationTypes) -> bool:
    """Whether a tensor is likely to be rounded with a scale of its own."""
    producer = value.producer()
    if producer is None or facts(producer).family is Family.LOOKUP:
        return False
    readers = [use.node for use in value.uses()]
    # Parts of a Concat are rounded with its scale, so its result stands for all of them.
    if readers and all(facts(reader).family is Family.JOIN for reader in readers):
        return False
    return is_rounded(value, types.fused_activations)


@dataclass(frozen=True, eq=False)
class ChannelNumbers:
    """What was observed of the channels of a tensor, float64 [C] each.

    Attributes:
        peak: Magnitudes that new samples are expected to reach, see `_peaks`.
        largest: Largest magnitudes.
        high: Largest values.
        energy: Mean squares.
        active: Shares of values other than 0.
    """

    peak: Floats
    largest: Floats
    high: Floats
    energy: Floats
    active: Floats


class ObservedChannels:
    """What was observed of the channels of all tensors."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics

    def of(self, value: ir.Value | None, count: int) -> ChannelNumbers | None:
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
            numbers = peak, peak, stats.maximum, mean_square(stats), 1.0
            return ChannelNumbers(*(np.full(count, number) for number in numbers))
        each = stats.count / count
        largest, high = (extremes.astype(np.float64) for extremes in (channels.peaks, channels.maxima))
        expected = _peaks(largest, channels.runners_up.astype(np.float64))
        return ChannelNumbers(expected, largest, high, channels.squares / each, channels.nonzero / each)


def _peaks(largest: Floats, runners_up: Floats) -> Floats:
    """Return the magnitudes that new samples are expected to reach, (c,): what the second-strongest sample reaches.

    The strongest sample of each channel stands for a new one. Factors that fit the largest values of all samples put
    the peaks of hundreds of channels at the end of the range, where those of new samples are cut off. With these peaks
    they are cut off in the samples that were seen too, so that the range is chosen with regard to it.

    Args:
        largest: Largest magnitudes.
        runners_up: Those of the second-strongest samples, all 0 with one sample.
    """
    return np.maximum(runners_up, _LEAST_SECOND * largest) if runners_up.any() else largest


class Importance:
    """What the square of an error counts in each channel.

    An error as large as all outputs of a layer counts 1, for every layer. Inside a layer, an output counts by what the
    layers that read it make of an error.
    """

    def __init__(self, labels: ChannelLabels, observed: ObservedChannels) -> None:
        numbers = labels.positions()
        self._labels, self._places = labels, numbers
        self.outputs: dict[LinearLayer, Floats] = {}
        self._read: dict[ir.Value, Floats] = {}
        self._counted = np.zeros(numbers.max() + 1)
        # Backwards: the importance of a layer's outputs is known when all their readers have been visited.
        for labelled in reversed(labels.layers):
            layer, source = labelled.layer, labelled.layer.node.inputs[0]
            observations = observed.of(source, layer.layout.inputs)
            if source is None or observations is None:
                continue
            squares = np.square(_weights(layer)).sum(axis=-1)
            groups, _, inputs = squares.shape
            power = np.matmul(squares, observations.energy.reshape(groups, inputs, 1)).reshape(-1)
            if not power.any():
                continue
            importance = self.outputs[layer] = self._of_outputs(numbers[labelled.outputs], power)
            # Rounding leaves zeros as they are, and errors in front of a Relu matter only where it is open.
            read = np.matmul(importance.reshape(groups, 1, -1), squares).reshape(-1) * observations.active
            self._counted += np.bincount(numbers[labelled.inputs], read, minlength=len(self._counted))
            # Where labels do not vary, layers may read the channels along different axes.
            if labels.axis_of(source) is not None:
                self._read[source] = self._read.get(source, 0.0) + read

    def of_tensor(self, value: ir.Value) -> Floats:
        """Return the importance of the channels of a tensor: in the layers that read it, or else its copies."""
        direct = self._read.get(value)
        if direct is not None:
            return direct
        numbers = self._places[self._labels.of[value].reshape(-1)]
        return np.where(numbers > 0, self._counted[numbers], 0.0)

    def _of_outputs(self, numbers: np.ndarray, power: Floats) -> Floats:
        """Return the importance of a layer's outputs.

        Args:
            numbers: (outputs,) numbers of their factors.
            power: (outputs,) energies.
        """
        power = np.maximum(power, _LEAST_POWER * power.mean())
        relative = np.where(numbers > 0, self._counted[numbers], 0.0) * power
        followed = numbers > 0
        # Nothing is known about outputs whose readers were not followed: they count as much as others on average.
        relative[~followed] = relative[followed].mean() if relative.any() else 1.0
        if not relative.any():
            relative[:] = 1.0
        result: Floats = relative / relative.sum() / power
        return result


class RoundingErrors:
    """The errors of all weights, biases and tensors whose channels have factors."""

    def __init__(
        self,
        labels: ChannelLabels,
        observed: ObservedChannels,
        importance: Importance,
        types: WeightActivationTypes,
    ) -> None:
        self._places = labels.positions()
        self._observed, self._importance, self._types = observed, importance, types
        assert types.activation is not None
        self._activation, self._weight, self._bias = types.activation, types.weight, types.own_bias
        self.count = int(self._places.max())
        self.terms: list[Terms] = []
        self._shared: list[SharedScale] = []
        for labelled in labels.layers:
            self._add_layer(labelled)
        for values in self._with_one_scale(labels):
            self._add_tensors(values, labels)
        self._gates = labels.gates
        for gate in labels.gates:
            self._add_gate(gate)
        if self._shared:
            self.terms.append(SharedScales(self._shared))

    def solved(self, options: JointEqualization) -> Floats:
        """Return the logarithms of the best factors; the first one is 0, for everything that has no factor."""
        free = np.ones(self.count + 1, dtype=bool)
        logarithms = self._minimized(np.zeros(self.count + 1), free, options.iterations, _POWERS)
        evaluated = [term.evaluate(logarithms) for term in self.terms]
        for gate_numbers in connected([self._places[gate.labels] for gate in self._gates]):
            free[gate_numbers] = self._loss_without(logarithms, evaluated, gate_numbers) >= options.gain
        # Neighbours of factors that do not pay for a multiplication are chosen again without them.
        if free.all():
            return logarithms
        return self._minimized(np.where(free, logarithms, 0.0), free, options.iterations // 2, _POWERS[1:])

    def _minimized(self, start: Floats, free: np.ndarray, iterations: int, powers: Sequence[float]) -> Floats:
        """Return the logarithms of the best factors if only some of them are free."""
        u = start
        for power in powers:

            def objective(u: Floats, power: float = power) -> tuple[float, Floats]:
                value, slope = log_sum(self.terms, np.clip(u, -_FARTHEST, _FARTHEST), power)
                return value + _PULL * float(u @ u), np.where(free, slope + 2 * _PULL * u, 0.0)

            u = minimize_posynomial(objective, u, max(1, iterations // len(powers)))
        bounded: Floats = np.clip(u, -_FARTHEST, _FARTHEST)
        return bounded

    def _loss_without(self, u: Floats, evaluated: Sequence[Evaluated], removed: np.ndarray) -> float:
        """Return by how much the errors of everything that has some of the factors grow without these factors.

        Args:
            u: Logarithms of all factors.
            evaluated: The terms at ``u``.
            removed: Positions of the factors in ``u``.
        """
        without = u.copy()
        without[removed] = 0.0
        is_removed = np.zeros(len(u), dtype=bool)
        is_removed[removed] = True
        error = error_without = 0.0
        for term, now in zip(self.terms, evaluated, strict=True):
            affected = np.bincount(now.owners, is_removed[now.places], minlength=len(now.values)) > 0
            if affected.any():
                error += float(np.exp(now.values[affected]).sum())
                error_without += float(np.exp(term.evaluate(without).values[affected]).sum())
        return error_without / error if error > 0 else 1.0

    def _add_layer(self, labelled: LabelledLayer) -> None:
        layer = labelled.layer
        importance = self._importance.outputs.get(layer)
        where_in, where_out = self._places[labelled.inputs], self._places[labelled.outputs]
        observations = self._observed.of(layer.node.inputs[0], layer.layout.inputs)
        if importance is None or observations is None or not (where_in.any() or where_out.any()):
            return
        weights = _weights(layer)
        groups, outputs, inputs, taps = weights.shape
        peaks = np.abs(weights).max(axis=-1)
        highest = peaks.max()
        self.terms.append(
            WeightScale(
                (peaks / highest) ** NORM,
                observations.energy.reshape(groups, inputs) * taps,
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
                self._shared.append(SharedScale(magnitude, importance, where_out, _level(self._bias)))

    def _add_gate(self, gate: Gate) -> None:
        """Add the error of the constant by which the input of a gate is multiplied."""
        inputs = self._observed.of(gate.source, len(gate.labels))
        if inputs is None:
            return
        counted = self._importance.of_tensor(gate.source) * sensitivity(inputs.energy)
        if counted.any():
            numbers, level = self._places[gate.labels], _level(self._activation)
            self._shared.append(SharedScale(np.ones(len(numbers)), counted, numbers, level, inverse=True))

    def _with_one_scale(self, labels: ChannelLabels) -> list[list[ir.Value]]:
        """Return the tensors that are rounded, in lists that share a scale."""
        rounded = [value for value, _ in observed_tensors(labels, self._types) if _is_rounded(value, self._types)]
        if not isinstance(self._activation.scale, PowerOfTwoScale):
            return [[value] for value in rounded]
        # Integer NPUs copy, join and pool integers, so all tensors around such a node have one scale.
        joined: Joined[ir.Value] = Joined()
        for value in labels.of:
            producer = value.producer()
            npu = None if producer is None else facts(producer).npu
            if producer is not None and npu is not None and (npu.moves or npu.align):
                joined.join([value, *(operand for operand in producer.inputs if operand in labels.of)])
        groups: dict[ir.Value, list[ir.Value]] = {}
        for value in rounded:
            groups.setdefault(joined.root(value), []).append(value)
        return list(groups.values())

    def _add_tensors(self, values: Sequence[ir.Value], labels: ChannelLabels) -> None:
        peaks, importances, numbers = [], [], []
        for value in values:
            tensor_numbers = self._places[labels.of[value].reshape(-1)]
            channels = self._observed.of(value, len(tensor_numbers))
            if channels is not None:
                peaks.append(channels.peak)
                importances.append(self._importance.of_tensor(value))
                numbers.append(tensor_numbers)
        if not peaks:
            return
        peak, importance, tensor_numbers = np.concatenate(peaks), np.concatenate(importances), np.concatenate(numbers)
        if tensor_numbers.any() and peak.any() and importance.any():
            self._shared.append(SharedScale(peak, importance, tensor_numbers, _level(self._activation)))


def _weights(layer: LinearLayer) -> Floats:
    """Return the weights of a layer, (groups, outputs/groups, inputs/groups, kernel)."""
    weights: Floats = layer.layout.view(np.ascontiguousarray(array_of(layer.weight))).astype(np.float64)
    return weights


def _level(spec: TensorSpec) -> float:
    """Return the logarithm of the error of values up to 1: a twelfth of the square of a step.

    With a zero point all levels count for one sign, as after a Relu. For weights and tensors of both signs that is half
    of their step; the exact step gained nothing on small networks (-1.2 to -0.3 dB with 4-bit weights).
    """
    steps = 2 ** (spec.dtype.bits - 1) - 1 if spec.symmetric else 2**spec.dtype.bits - 1
    return -float(np.log(12.0 * steps**2))
