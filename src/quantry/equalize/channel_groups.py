"""Splits convolutions whose weight loses too much with a single scale into a few, each with a scale of its own.

::

    x -> Conv -> Relu -> y        x -> Conv -> Relu -> Concat -> y          a depthwise one reads its part of a Split
                                  x -> Conv -> Relu -/

A function after the convolution is split as well, so that a runtime can still fuse the two.

With peaks ``p_c`` of the channels, ``n`` weights in each, energies ``e_c`` of the channels and ``u_c`` the part of a
channel's mean square that reaches the next layers, rounding with one step per group ``g`` leaves a relative error of

    sum over g of step(max over c in g of p_c)**2 / 12 * sum over c in g of n * u_c    /    sum over c of e_c * u_c

in the next layers, if inputs are white noise. Groups are runs of consecutive channels, so dynamic programming finds the
best ones.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantry.equalize.linear_layer import ChannelLayout, LinearLayer, array_of, taken_bias
from quantry.equalize.tied_channels import FUNCTIONS, TiedChannels, energies, linear_layers, reorder, tied_channels
from quantry.graph.edit import FreshNames
from quantry.graph.float_model import FloatModel
from quantry.graph.weights import new_initializer, rebuilt
from quantry.memo import stage
from quantry.notes import Note, one_per_reason
from quantry.recipe import ChannelGroups, PerTensor, PowerOfTwoScale, TensorSpec
from quantry.runtime.environment import depends_on


@dataclass(frozen=True)
class WeightStep:
    """How a weight with one scale is rounded.

    Attributes:
        levels: Number of steps on each side of zero.
        power_of_two: Whether steps are powers of two.
    """

    levels: int
    power_of_two: bool

    def squared(self, peaks: np.ndarray) -> np.ndarray:
        """Return the mean squared rounding errors for given largest magnitudes, same shape."""
        steps = np.asarray(peaks, dtype=np.float64) / self.levels
        # The next larger power of two, so that the peak is still in range.
        if self.power_of_two:
            steps = np.where(steps > 0, 2.0 ** np.ceil(np.log2(np.where(steps > 0, steps, 1.0))), 0.0)
        result: np.ndarray = steps**2 / 12
        return result


@dataclass(frozen=True, eq=False)
class ChannelWeights:
    """The weights of a layer's output channels.

    Attributes:
        peaks: (C,) largest magnitude of a weight.
        squares: (C,) sum of squares.
        count: Number of weights of a channel.
        reach: (C,) which part of a channel's mean square reaches the next layers.
    """

    peaks: np.ndarray
    squares: np.ndarray
    count: int
    reach: np.ndarray

    def taken(self, order: np.ndarray) -> "ChannelWeights":
        """Return the same for the channels in another order."""
        return ChannelWeights(self.peaks[order], self.squares[order], self.count, self.reach[order])


def best_runs(weights: ChannelWeights, step: WeightStep, most: int) -> list[tuple[float, tuple[int, ...]]]:
    """Return, for 1 to ``most`` runs of consecutive channels, the least relative error and where the runs end.

    Args:
        weights: The channels, in the order in which they are cut.
        step: How they are rounded.
        most: The largest number of runs.
    """
    size = len(weights.peaks)
    energy = float(weights.squares @ weights.reach)
    if energy <= 0:
        return [(0.0, (size,))]
    costs = _run_costs(weights, step) / energy
    least, cuts = costs[0].copy(), np.zeros((most, size), dtype=np.int64)
    results: list[tuple[float, tuple[int, ...]]] = [(float(least[-1]), (size,))]
    for runs in range(1, min(most, size)):
        # Entry (i, j): the first i + 1 channels in one run less, the channels after them up to j as one run.
        candidates = least[:-1, None] + costs[1:]
        cuts[runs] = candidates.argmin(axis=0) + 1
        least = candidates.min(axis=0)
        results.append((float(least[-1]), _ends(cuts, runs, size)))
    return results


def _run_costs(weights: ChannelWeights, step: WeightStep) -> np.ndarray:
    """Return the error of every run from channel i to channel j: (C, C), infinite where j < i."""
    size = len(weights.peaks)
    upper = np.triu(np.ones((size, size), dtype=bool))
    peaks = np.maximum.accumulate(np.where(upper, weights.peaks[None, :], 0.0), axis=1)
    reach = np.concatenate([[0.0], np.cumsum(weights.reach)]) * weights.count
    noise = reach[None, 1:] - reach[:-1, None]
    costs: np.ndarray = np.where(upper, step.squared(peaks) * noise, np.inf)
    return costs


def _ends(cuts: np.ndarray, runs: int, size: int) -> tuple[int, ...]:
    ends = [size]
    for number in range(runs, 0, -1):
        ends.append(int(cuts[number, ends[-1] - 1]))
    return tuple(reversed(ends))


def chosen_runs(weights: ChannelWeights, step: WeightStep, most: int, gain: float) -> tuple[float, tuple[int, ...]]:
    """Return the factor by which the error falls, and where the runs end; one run if it falls by less than ``gain``.

    More runs are only chosen if they lower the error by another factor of ``gain``.
    """
    results = best_runs(weights, step, most)
    undivided = results[0][0]
    best = results[0]
    for error, ends in results[1:]:
        # Every further group costs an operator, so it must gain as much as the first.
        if error * gain <= best[0]:
            best = (error, ends)
    factor = undivided / best[0] if best[0] > 0 else 1.0
    return factor, best[1]


_SPLIT_BY_INPUT = 13
"""From this opset on, Split reads the lengths of its parts from an input."""


@dataclass(frozen=True, eq=False)
class _Group:
    """One group: its number, its channels and unused names."""

    number: int
    channels: slice
    names: FreshNames

    @property
    def count(self) -> int:
        return int(self.channels.stop - self.channels.start)

    def value(self, like: ir.Value) -> ir.Value:
        lengths = None
        if like.shape is not None:
            lengths = ir.Shape([self.count if axis == 1 else length for axis, length in enumerate(like.shape)])
        return ir.Value(name=self.names.value(f"{like.name}_group{self.number}"), shape=lengths, type=like.type)

    def node(self, like: ir.Node, inputs: Sequence[ir.Value | None]) -> ir.Node:
        attributes = [attribute for attribute in like.attributes.values() if attribute.name != "group"]
        name = self.names.node(f"{like.name or like.op_type}_group{self.number}")
        return ir.Node("", like.op_type, inputs, attributes, outputs=[self.value(like.outputs[0])], name=name)


def split_convolution(layer: LinearLayer, ends: Sequence[int], names: FreshNames) -> None:
    """Replace a Conv, and the function after it, by groups and a Concat.

    Args:
        layer: A Conv of one group, or a depthwise one.
        ends: Where the runs of output channels end.
        names: Unused names.
    """
    graph = layer.node.graph
    source = layer.node.inputs[0]
    assert isinstance(graph, ir.Graph)
    assert source is not None
    starts = (0, *ends[:-1])
    groups = [
        _Group(number, slice(start, stop), names) for number, (start, stop) in enumerate(zip(starts, ends, strict=True))
    ]
    old = [layer.node, *_functions_after(layer.node)]
    tail = old[-1].outputs[0]
    depthwise = layer.layout.groups > 1
    sources = _parts(graph, layer.node, source, groups) if depthwise else [source] * len(groups)
    joined = [_write(graph, layer, old, group, source_part) for group, source_part in zip(groups, sources, strict=True)]
    output = ir.Value(name=names.value(f"{tail.name}_joined"), shape=tail.shape, type=tail.type)
    concat = ir.Node("", "Concat", joined, [ir.AttrInt64("axis", 1)], outputs=[output])
    concat.name = names.node(f"{layer.node.name or 'Conv'}_join")
    graph.insert_before(layer.node, concat)
    for node, index in tuple(tail.uses()):
        node.replace_input_with(index, output)
    unused = [value for value in (layer.weight, layer.bias) if value is not None]
    graph.remove(list(reversed(old)), safe=True)
    for value in unused:
        graph.initializers.pop(value.name or "")
    # The result keeps its name, which recipes may refer to.
    # Swap the names: the old value is about to be removed.
    name, tail.name = tail.name, output.name
    output.name = name


def _functions_after(node: ir.Node) -> list[ir.Node]:
    """Return the only function that reads a node's result: one of `FUNCTIONS`, or ``x * sigmoid(x)`` as two nodes."""
    value = node.outputs[0]
    readers = list(dict.fromkeys(use.node for use in value.uses()))
    if len(readers) == 1 and readers[0].op_type in FUNCTIONS and readers[0].domain == "":
        first, *constants = readers[0].inputs
        alone = all(constant is None or constant.is_initializer() for constant in constants)
        return readers if first is value and alone and readers[0].graph is node.graph else []
    if len(readers) != 2 or any(reader.graph is not node.graph or reader.domain != "" for reader in readers):
        return []
    product = next((reader for reader in readers if reader.op_type == "Mul"), None)
    gate = next((reader for reader in readers if reader.op_type in ("Sigmoid", "HardSigmoid")), None)
    if product is None or gate is None or [use.node for use in gate.outputs[0].uses()] != [product]:
        return []
    return [gate, product]


def _parts(graph: ir.Graph, node: ir.Node, source: ir.Value, groups: Sequence[_Group]) -> list[ir.Value]:
    """Split the input of a depthwise convolution."""
    names = groups[0].names
    lengths = np.array([group.count for group in groups], dtype=np.int64)
    outputs = [group.value(source) for group in groups]
    inputs: list[ir.Value] = [source]
    attributes = [ir.AttrInt64("axis", 1)]
    if graph.opset_imports.get("", _SPLIT_BY_INPUT) >= _SPLIT_BY_INPUT:
        inputs.append(new_initializer(names.value(f"{source.name}_lengths"), lengths))
        graph.register_initializer(inputs[1])
    else:
        attributes.append(ir.AttrInt64s("split", lengths.tolist()))
    split = ir.Node("", "Split", inputs, attributes, outputs=outputs, name=names.node(f"{node.name or 'Conv'}_split"))
    graph.insert_before(node, split)
    return outputs


def _write(graph: ir.Graph, layer: LinearLayer, old: Sequence[ir.Node], group: _Group, source: ir.Value) -> ir.Value:
    """Add one group of a convolution and the function after it; return its result."""
    constants = [_initializer(graph, layer.weight, array_of(layer.weight)[group.channels], group)]
    if layer.bias is not None:
        order = np.arange(group.channels.start, group.channels.stop)
        bias = taken_bias(array_of(layer.bias), order, layer.layout.outputs)
        constants.append(_initializer(graph, layer.bias, bias, group))
    convolution = group.node(old[0], [source, *constants])
    if layer.layout.groups > 1:
        convolution.attributes["group"] = ir.AttrInt64("group", group.count)
    graph.insert_before(layer.node, convolution)
    written_values = {old[0].outputs[0]: convolution.outputs[0]}
    for function in old[1:]:
        inputs = [value if value is None else written_values.get(value, value) for value in function.inputs]
        written = group.node(function, inputs)
        graph.insert_before(layer.node, written)
        written_values[function.outputs[0]] = written.outputs[0]
    return written_values[old[-1].outputs[0]]


def _initializer(graph: ir.Graph, like: ir.Value, array: np.ndarray, group: _Group) -> ir.Value:
    value = new_initializer(group.names.value(f"{like.name}_group{group.number}"), np.ascontiguousarray(array))
    graph.register_initializer(value)
    return value


_FEWEST_CHANNELS = 4
"""A convolution of fewer channels is not worth splitting."""


@stage(name="group_channels", version=2, environment=depends_on("onnx_ir", "numpy"))
def group_channels(model: FloatModel, options: ChannelGroups, weight: TensorSpec) -> FloatModel:
    """Return a model that computes the same, with some convolutions split into several.

    Args:
        model: The model; it is not modified.
        options: How many groups, and when.
        weight: Type of the weights.
    """
    step = weight_step(weight)
    if step is None:
        message = "channel groups: nothing was changed, because weights are not integers with a single scale"
        return FloatModel(model.model, (Note.of(message),))
    grouping = _Grouping(model.model.clone(), options, step)
    result = rebuilt(grouping.model) if grouping.run() else model.model
    return FloatModel(result, grouping.notes())


def weight_step(weight: TensorSpec) -> WeightStep | None:
    """Return how weights are rounded, or None if they are not integers with a single scale."""
    if not weight.dtype.is_integer or not isinstance(weight.granularity, PerTensor):
        return None
    return WeightStep(2 ** (weight.dtype.bits - 1) - 1, isinstance(weight.scale, PowerOfTwoScale))


class _Grouping:
    """Splits the convolutions of a model, one class of channels after the other."""

    def __init__(self, model: ir.Model, options: ChannelGroups, step: WeightStep) -> None:
        self.model = model
        self.split: dict[ir.Node, int] = {}
        self._names = FreshNames(model)
        self._options = options
        self._step = step
        self._convolutions = 0
        self._declined: Counter[str] = Counter()

    def run(self) -> bool:
        """Split the convolutions that gain enough, and return whether there is any."""
        layers = linear_layers(self.model)
        done: set[ir.Node] = set()
        reorderable: list[tuple[TiedChannels, list[LinearLayer]]] = []
        for node, layer in layers.items():
            if node.op_type != "Conv":
                continue
            self._convolutions += 1
            if node in done:
                continue
            channels = layer if isinstance(layer, str) else tied_channels(layer, layers)
            if isinstance(channels, str):
                lossy = isinstance(layer, str) or self._is_lossy(channel_weights(layer, np.ones(layer.layout.outputs)))
                self._declined[channels] += lossy
                continue
            members = [member for member in (*channels.makers, *channels.carriers) if member.node.op_type == "Conv"]
            done.update(member.node for member in members)
            reorderable.append((channels, members))
        # Reorder all channels first: a layer that was split is no longer there to be reordered.
        worth = [member for channels, members in reorderable for member in self._ordered(channels, members)]
        for layer, ends in worth:
            self.split[layer.node] = len(ends)
            split_convolution(layer, ends, self._names)
        return bool(self.split)

    def _is_lossy(self, weights: ChannelWeights) -> bool:
        return best_runs(weights, self._step, 1)[0][0] > self._options.tolerance

    def _ordered(
        self, channels: TiedChannels, members: Sequence[LinearLayer]
    ) -> list[tuple[LinearLayer, tuple[int, ...]]]:
        """Put the channels of a class in the best order; return the layers that gain enough, and their runs."""
        weights_of = [(layer, channel_weights(layer, energies(channels, layer))) for layer in members]
        lossy = [(layer, weights) for layer, weights in weights_of if self._is_lossy(weights)]
        if not lossy or channels.count < _FEWEST_CHANNELS:
            return []
        # Sorted by size, similar channels are neighbors. Every layer of the class would like its own order.
        orders = [np.argsort(weights.peaks, kind="stable") for _, weights in lossy]
        totals = [self._total(order, [weights for _, weights in lossy]) for order in orders]
        order = orders[int(np.argmin(totals))]
        runs = [(layer, self._runs(weights.taken(order))[1]) for layer, weights in lossy]
        worth = [(layer, ends) for layer, ends in runs if len(ends) > 1]
        self._declined["their rounding error would not fall by enough"] += len(lossy) - len(worth)
        if worth:
            reorder(channels, order)
        return worth

    def _runs(self, weights: ChannelWeights) -> tuple[float, tuple[int, ...]]:
        return chosen_runs(weights, self._step, self._options.groups, self._options.gain)

    def _total(self, order: np.ndarray, members: Sequence[ChannelWeights]) -> float:
        """Return the total error of all layers of a class for one order."""
        total = 0.0
        for weights in members:
            results = best_runs(weights, self._step, 1)
            factor, _ = self._runs(weights.taken(order))
            total += results[0][0] / factor
        return total

    def notes(self) -> tuple[Note, ...]:
        """Return what was changed, and why other layers were not."""
        summary = Note.of(
            "channel groups: {count} of {convolutions} convolutions became {parts}",
            count=len(self.split),
            convolutions=self._convolutions,
            parts=sum(self.split.values()),
        )
        return (summary, *one_per_reason("no channel groups of {count} convolutions: {reason}", +self._declined))


def channel_weights(layer: LinearLayer, reach: np.ndarray) -> ChannelWeights:
    """Return the weights of a layer's output channels.

    Args:
        layer: The layer.
        reach: (outputs,) which part of a channel's mean square reaches the next layers.
    """
    layout: ChannelLayout = layer.layout
    view = layout.view(np.ascontiguousarray(array_of(layer.weight))).astype(np.float64)
    flat = view.reshape(layout.outputs, -1)
    return ChannelWeights(np.abs(flat).max(axis=1), (flat**2).sum(axis=1), flat.shape[1], reach)
