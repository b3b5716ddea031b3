"""Splits convolutions into few groups of output channels, where one scale for all of them loses too much."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from quantry.equalize.channel_class import ChannelClass, channel_class, linear_layers
from quantry.equalize.channel_layout import ChannelLayout
from quantry.equalize.conv_groups import split_convolution
from quantry.equalize.linear_layer import LinearLayer, array_of
from quantry.equalize.reindex import energies, reindex
from quantry.equalize.weight_steps import ChannelWeights, WeightStep, best_runs, chosen_runs
from quantry.graph.edit import FreshNames
from quantry.graph.float_model import FloatModel
from quantry.graph.weights import rebuilt
from quantry.memo import stage
from quantry.recipe import ChannelGroups, PerTensor, PowerOfTwoScale, TensorSpec
from quantry.runtime.environment import depends_on

_ENOUGH = 4
"""A convolution of fewer channels is not worth splitting."""


@stage(name="group_channels", version=1, environment=depends_on("onnx_ir", "numpy"))
def group_channels(model: FloatModel, options: ChannelGroups, weight: TensorSpec) -> FloatModel:
    """Return a model that computes the same, in which some convolutions are several.

    Args:
        model: The model; it is left as it was.
        options: How many groups, and when.
        weight: What weights become.
    """
    step = weight_step(weight)
    if step is None:
        note = "channel groups: weights have scales enough, or no integers; nothing was changed"
        return FloatModel(model.model, (note,))
    grouping = _Grouping(model.model.clone(), options, step)
    grouping.run()
    changed = rebuilt(grouping.model) if grouping.split else model.model
    return FloatModel(changed, grouping.notes())


def weight_step(weight: TensorSpec) -> WeightStep | None:
    """Return how weights are rounded, or None where they are no integers or have more scales than one."""
    if not weight.dtype.is_integer or not isinstance(weight.granularity, PerTensor):
        return None
    return WeightStep(2 ** (weight.dtype.bits - 1) - 1, isinstance(weight.scale, PowerOfTwoScale))


class _Grouping:
    """Goes through the convolutions of a model, class by class of their channels."""

    def __init__(self, model: ir.Model, options: ChannelGroups, step: WeightStep) -> None:
        self.model = model
        self.split: dict[ir.Node, int] = {}
        self._names = FreshNames(model)
        self._options = options
        self._step = step
        self._convolutions = 0
        self._declined: Counter[str] = Counter()

    def run(self) -> None:
        """Split what pays."""
        layers = linear_layers(self.model)
        done: set[ir.Node] = set()
        wanted: list[tuple[ChannelClass, list[LinearLayer]]] = []
        for node, layer in layers.items():
            if node.op_type != "Conv":
                continue
            self._convolutions += 1
            if node in done:
                continue
            found = layer if isinstance(layer, str) else channel_class(layer, layers)
            if isinstance(found, str):
                self._declined[found] += not isinstance(layer, LinearLayer) or self._loses_much(layer)
                continue
            members = [one for one in (*found.makers, *found.carriers) if one.node.op_type == "Conv"]
            done.update(one.node for one in members)
            wanted.append((found, members))
        # All channels get their order first: a layer that was split is no longer there to read others in theirs.
        worth = [one for found, members in wanted for one in self._ordered(found, members)]
        for layer, ends in worth:
            self.split[layer.node] = len(ends)
            split_convolution(layer, ends, self._names)

    def _loses_much(self, layer: LinearLayer) -> bool:
        weights = channel_weights(layer, np.ones(layer.layout.outputs))
        return self._is_lossy(weights)

    def _is_lossy(self, weights: ChannelWeights) -> bool:
        return best_runs(weights, self._step, 1)[0][0] > self._options.tolerance

    def _ordered(
        self, channels: ChannelClass, members: Sequence[LinearLayer]
    ) -> list[tuple[LinearLayer, tuple[int, ...]]]:
        """Put the channels of a class in the order that gains most; return the layers that gain, and their runs."""
        known = [(layer, channel_weights(layer, energies(channels, layer))) for layer in members]
        lossy = [(layer, weights) for layer, weights in known if self._is_lossy(weights)]
        if not lossy or channels.count < _ENOUGH:
            return []
        orders = [np.argsort(weights.peaks, kind="stable") for _, weights in lossy]
        totals = [self._total(order, [weights for _, weights in lossy]) for order in orders]
        order = orders[int(np.argmin(totals))]
        runs = [(layer, self._runs(weights.taken(order))) for layer, weights in lossy]
        worth = [(layer, ends) for layer, ends in runs if len(ends) > 1]
        self._declined["their rounding error would not fall by enough"] += len(lossy) - len(worth)
        if worth:
            reindex(channels, order)
        return worth

    def _runs(self, weights: ChannelWeights) -> tuple[int, ...]:
        return chosen_runs(weights, self._step, self._options.groups, self._options.gain)[1]

    def _total(self, order: np.ndarray, known: Sequence[ChannelWeights]) -> float:
        """Return the error that all layers of a class are left with in one order."""
        total = 0.0
        for weights in known:
            results = best_runs(weights, self._step, 1)
            factor, _ = chosen_runs(weights.taken(order), self._step, self._options.groups, self._options.gain)
            total += results[0][0] / factor
        return total

    def notes(self) -> tuple[str, ...]:
        """Return what was done and what was not."""
        made = sum(self.split.values())
        summary = f"channel groups: {len(self.split)} of {self._convolutions} convolutions became {made}"
        left = sorted((+self._declined).items())
        return (summary, *(f"no channel groups of {count} convolutions: {reason}" for reason, count in left))


def channel_weights(layer: LinearLayer, reach: np.ndarray) -> ChannelWeights:
    """Return what is known of a layer's output channels.

    Args:
        layer: The layer.
        reach: (outputs,) how much of a channel's mean square reaches the layers behind.
    """
    layout: ChannelLayout = layer.layout
    view = layout.view(np.ascontiguousarray(array_of(layer.weight))).astype(np.float64)
    flat = view.reshape(layout.outputs, -1)
    return ChannelWeights(np.abs(flat).max(axis=1), (flat**2).sum(axis=1), flat.shape[1], reach)
