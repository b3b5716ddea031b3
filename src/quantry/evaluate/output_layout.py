"""What the axes of outputs mean: which channels belong together, and which outputs are maps without a batch axis.

A model may return boxes and scores as two outputs, or join them as its last step. The comparison with the float model
must not depend on that: 80 scores in one tensor with 4 coordinates would hide any error of the boxes.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.errors import QuantryError
from quantry.evaluate.decisions import channel_axis, is_map
from quantry.facts.operators import CONVOLUTIONS, Family, facts
from quantry.graph.edit import is_learned
from quantry.graph.segments import Segment, segment_of
from quantry.runtime.sessions import run_session, simulation_session

_LOG = logging.getLogger("quantry.evaluate")

_MOST_PARTS = 16
"""A detector joins a handful of things; an output with more parts joins something else, such as channels."""

Arrays = Mapping[str, NDArray[Any]]
Parts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class OutputLayout:
    """What the axes of a model's outputs mean.

    Attributes:
        axes: The axis of the channels of outputs, by name, where the graph determines it. Axes count a batch axis.
        parts: The computed channels of each part of outputs that have several, by name.
        maps: Names of outputs that say something about positions although they have the shape of class scores.
        without_batch: Names of those that have no batch axis: a model for one image may drop it.
    """

    axes: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, Parts] = field(default_factory=dict)
    maps: frozenset[str] = frozenset()
    without_batch: frozenset[str] = frozenset()

    def with_batch(self, name: str, output: NDArray[Any]) -> NDArray[Any]:
        """Return an output with a batch axis; added if it has none.

        Args:
            name: Its name.
            output: The output.
        """
        return output[None] if name in self.without_batch else output

    def axis(self, name: str, output: NDArray[Any]) -> int:
        """Return the axis of an output's channels.

        Args:
            name: Its name.
            output: The output, with a batch axis.
        """
        known = self.axes.get(name)
        return channel_axis(output) if known is None or known >= output.ndim else known

    def is_map(self, name: str, output: NDArray[Any]) -> bool:
        """Return whether an output says something about each of many positions.

        Args:
            name: Its name.
            output: The output, with a batch axis.
        """
        return is_map(output) or (name in self.maps and output.size > 0)


PLAIN_LAYOUT = OutputLayout()
"""The values alone tell which axis has the channels, and every output has one part."""


def output_layout(model: ir.Model, feeds: Arrays) -> OutputLayout:
    """Return what the axes of a model's outputs mean.

    The channels of a layer's output are known. What follows the last layers runs once more with one position of these
    layers' results changed: only some positions of an output then change, but all of its channels. The nodes at the end
    that only move and join values run on labels instead of values: the labels show where each value of an output comes
    from. Channels whose values come from the same places are one part, so boxes of several scales, joined along
    another axis, stay together.

    Args:
        model: The float model.
        feeds: One sample.
    """
    model = model.clone()  # because tensors get types
    moving = _last_nodes(model, _moved)
    decoding = _last_nodes(model, lambda node: () if is_learned(node) else node.inputs)
    axes = dict(_axes_of_layers(model.graph.outputs))
    if not decoding:
        return OutputLayout(axes)  # without running the model, which may be large
    joining = moving if any(facts(node).family is Family.JOIN for node in moving) else []
    outputs = frozenset(value.name or "" for value in model.graph.outputs)
    tails = [segment_of(model, nodes, outputs, frozenset()) for nodes in (decoding, joining) if nodes]
    try:
        known = _values(model, {name for tail in tails for name in tail.inputs}, feeds)
        for value in (value for tail in tails for value in tail.view.inputs):
            value.dtype = ir.DataType.from_numpy(known[value.name or ""].dtype)
        floats = {name: known[name] for name in outputs if known[name].dtype.kind == "f" and known[name].size}
        flat = frozenset(_flat(floats, feeds))
        axes |= _axes_after_layers(OutputLayout(axes, without_batch=flat), tails[0], known)
        single = _axes_of_single_channels(floats)
        axes |= single
        parts = dict(_parts(OutputLayout(axes, without_batch=flat), tails[1], known)) if joining else {}
    except QuantryError as error:
        _LOG.debug("outputs are compared as a whole: %s", error)  # such as an output that is no tensor
        return PLAIN_LAYOUT
    flat = frozenset(name for name in flat if len(parts.get(name, ())) > 1 or _has_partner(name, flat, floats))
    return OutputLayout({**dict.fromkeys(flat, 2), **axes}, parts, flat.union(single), flat)


def _last_nodes(model: ir.Model, followed: Callable[[ir.Node], Iterable[ir.Value | None]]) -> list[ir.Node]:
    """Return the nodes at the end of a graph, in order, as far as anything is followed back."""
    found: set[ir.Node] = set()
    seen: set[ir.Node | None] = {None}
    waiting = [value.producer() for value in model.graph.outputs]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        inputs = tuple(followed(node))
        if inputs:
            found.add(node)
            waiting += [value.producer() for value in inputs if value is not None]
    return [node for node in model.graph if node in found]


def _moved(node: ir.Node) -> Iterable[ir.Value | None]:
    """Return the inputs whose values a node only moves; none if it computes something."""
    row = facts(node)
    if row.family is Family.JOIN:
        return node.inputs
    return node.inputs[:1] if row.copies is not None else ()


def _values(model: ir.Model, names: set[str], feeds: Arrays) -> dict[str, NDArray[Any]]:
    """Return the outputs of a model for one sample, and some other tensors."""
    copy = model.clone()
    values = {value.name: value for node in copy.graph for value in node.outputs}
    shown = {value.name for value in copy.graph.outputs}
    copy.graph.outputs.extend(values[name] for name in sorted(names) if name in values and name not in shown)
    return {**feeds, **run_session(simulation_session(copy), feeds)}


def _flat(floats: Arrays, feeds: Arrays) -> Iterator[str]:
    """Yield the outputs for one image that may have dropped the batch axis."""
    if {array.shape[0] for array in feeds.values() if array.ndim} == {1}:
        yield from (name for name, array in floats.items() if array.ndim == 2 and len(array) > 1)


def _has_partner(name: str, flat: Iterable[str], floats: Arrays) -> bool:
    """Return whether another output says something else about the same positions, as boxes and scores do."""
    rows, width = floats[name].shape
    return any(len(floats[other]) == rows and floats[other].shape[1] != width for other in flat)


def _axes_of_layers(outputs: Iterable[ir.Value]) -> Iterator[tuple[str, int]]:
    """Yield the axis of the channels of each output that a layer returns."""
    for value in outputs:
        node = value.producer()
        if node is not None and is_learned(node):
            yield value.name or "", 1 if node.op_type in CONVOLUTIONS else -1


def _axes_of_single_channels(floats: Arrays) -> dict[str, int]:
    """Return the axis of single channels, such as the score of a face: another output has the same positions."""
    found = {}
    for name, array in floats.items():
        for other in floats.values():
            differs = [axis for axis, (a, b) in enumerate(zip(array.shape, other.shape, strict=False)) if a != b]
            if array.ndim == other.ndim > 2 and len(differs) == 1 and differs != [0] and array.shape[differs[0]] == 1:
                found[name] = differs[0]
    return found


def _axes_after_layers(layout: OutputLayout, tail: Segment, known: Arrays) -> dict[str, int]:
    """Return the axis of the channels of each output that is computed from layers, where it can be determined."""
    given = {name: known[name] for name in tail.inputs}
    changed = {value.name or "": _changed_at_one_position(value, given[value.name or ""]) for value in tail.view.inputs}
    if not tail.shown:
        return {}
    session = simulation_session(tail)
    before, after = run_session(session, given), run_session(session, changed)
    found = {}
    for name in before:
        if before[name].shape != after[name].shape or before[name].size == 0:
            continue  # such as the boxes that a NonMaxSuppression has left
        differs = layout.with_batch(name, before[name] != after[name])
        if differs.ndim < 3:
            continue
        shares = [float(np.moveaxis(differs, axis, 0).reshape(length, -1).any(axis=1).mean()) if length > 1 else 0.0
                  for axis, length in enumerate(differs.shape)]  # fmt: skip
        *_, second, first = sorted(shares[1:])
        # Softmax over positions, for example, changes everything, so that nothing shows.
        if first > max(0.5, 2 * second):
            found[name] = shares.index(first, 1)
    return found


def _changed_at_one_position(value: ir.Value, array: NDArray[Any]) -> NDArray[Any]:
    """Return a layer's result with other values at one position; other arrays as they are."""
    node = value.producer()
    if node is None or not is_learned(node) or array.ndim < 3 or array.size == 0 or array.dtype.kind != "f":
        return array
    channels = 1 if node.op_type in CONVOLUTIONS else array.ndim - 1
    place = tuple(slice(None) if axis in (0, channels) else length // 2 for axis, length in enumerate(array.shape))
    other = array.copy()
    # Far from the usual values in both directions, so that functions that are flat somewhere show it too.
    size = 3 * array.std(dtype=np.float64) + 1e-3
    signs = np.where(np.arange(array.shape[channels]) % 2, -size, size)
    other[place] = (array.mean(dtype=np.float64) + signs).astype(array.dtype)
    return other


def _parts(layout: OutputLayout, tail: Segment, known: Arrays) -> Iterator[tuple[str, Parts]]:
    """Yield the outputs whose channels come from several places, with the channels of each part.

    Channels that hold constants or inputs of the model are omitted, because no model changes them.
    """
    computed = {name: number for number, name in enumerate(tail.inputs, 1) if known[name].dtype.kind == "f"}
    # Inputs of the model are the same in both models; whole numbers are shapes and indices, which say where values go.
    for value in tail.view.inputs:
        if value.producer() is None:
            computed.pop(value.name or "", None)
    session, given = simulation_session(tail), {name: known[name] for name in tail.inputs}
    # Twice with other labels: what does not change with them is constant, also if it equals a label.
    labels = ({name: np.full_like(known[name], sign * n) for name, n in computed.items()} for sign in (1, -1))
    sources, others = (run_session(session, given | label) for label in labels)
    for name, source in sources.items():
        if name not in layout.axes or known[name].dtype.kind != "f" or not source.size:
            continue
        places = layout.with_batch(name, np.where(source == others[name], 0, source))
        if places.ndim < 3:
            continue
        columns = np.moveaxis(places, layout.axes[name], 0).reshape(places.shape[layout.axes[name]], -1)
        parts: dict[bytes, list[int]] = {}
        for channel, column in enumerate(columns):
            if column.any():
                parts.setdefault(column.tobytes(), []).append(channel)
        if 0 < len(parts) <= _MOST_PARTS and (len(parts) > 1 or sum(map(len, parts.values())) < len(columns)):
            yield name, tuple(map(tuple, parts.values()))
