"""What the axes of outputs mean: which channels belong together, and which outputs are maps without a batch axis.

A model may return boxes and scores as two outputs, or join them as its last step. The comparison with the float model
must not depend on that: 80 scores in one tensor with 4 coordinates would hide any error of the boxes.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.errors import QuantryError
from quantry.evaluate.decisions import channel_axis
from quantry.graph.edit import is_learned
from quantry.graph.operators import CONVOLUTIONS, Family, facts
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
        axes: The axis of the channels of outputs, by name, as far as the model tells, and of all outputs with several
            parts. Axes count a batch axis.
        parts: The channels of each part of the outputs that have several, by name.
        without_batch: Names of outputs whose first axis has positions: a model for one image may drop the batch axis.
    """

    axes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    parts: Mapping[str, Parts] = field(default_factory=lambda: MappingProxyType({}))
    without_batch: frozenset[str] = frozenset()

    def with_batch(self, name: str, output: NDArray[Any]) -> NDArray[Any]:
        """Return an output with a batch axis, if it has lost its own.

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


PLAIN_LAYOUT = OutputLayout()
"""Every output has a batch axis and one part."""


def output_layout(model: ir.Model, feeds: Arrays) -> OutputLayout:
    """Return what the axes of a model's outputs mean.

    What follows the last layers runs once more with one position of these layers' results changed. Only some positions
    of an output then change, but all of its channels. The nodes at the end that only move and join values run on labels
    instead of values: the labels show where each value of an output comes from. Channels whose values come from the
    same places are one part, so boxes of several scales, joined along another axis, stay together.

    Args:
        model: The float model.
        feeds: One sample.
    """
    model = model.clone()  # because tensors get types
    moving = _last_nodes(model, _moved)
    decoding = _last_nodes(model, lambda node: () if is_learned(node) else node.inputs)
    outputs = frozenset(value.name or "" for value in model.graph.outputs)
    tails = [segment_of(model, nodes, outputs, frozenset()) for nodes in (moving, decoding)]
    try:
        known = _values(model, {name for tail in tails for name in tail.inputs}, feeds)
        for value in (value for tail in tails for value in tail.view.inputs):
            value.dtype = ir.DataType.from_numpy(known[value.name or ""].dtype)
        layout = OutputLayout(without_batch=frozenset(_without_batch(outputs, known, feeds)))
        axes = dict(_channel_axes(layout, tails[1], known))
        layout = OutputLayout(axes, without_batch=layout.without_batch)
        joins = any(facts(node).family is Family.JOIN for node in moving)
        found = list(_parts(layout, tails[0], known)) if joins else []
    except QuantryError as error:
        _LOG.debug("outputs are compared as a whole: %s", error)  # such as an output that is no tensor
        return PLAIN_LAYOUT
    parts = {name: channels for name, _, channels in found}
    return OutputLayout({**axes, **{name: axis for name, axis, _ in found}}, parts, layout.without_batch)


def _last_nodes(model: ir.Model, followed: Callable[[ir.Node], Iterable[ir.Value | None]]) -> list[ir.Node]:
    """Return the nodes at the end of a graph, in order, as far as anything is followed back."""
    found: set[ir.Node] = set()
    waiting = [value.producer() for value in model.graph.outputs]
    while waiting:
        node = waiting.pop()
        inputs = () if node is None or node in found else tuple(followed(node))
        if node is not None and inputs:
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


def _without_batch(outputs: Iterable[str], known: Arrays, feeds: Arrays) -> Iterator[str]:
    """Yield the outputs for one image that have no batch axis."""
    if {array.shape[0] for array in feeds.values() if array.ndim} == {1}:
        yield from (name for name in outputs if known[name].ndim == 2 and min(known[name].shape) > 1)


def _channel_axes(layout: OutputLayout, tail: Segment, known: Arrays) -> Iterator[tuple[str, int]]:
    """Yield the axis of the channels of each output, where it shows."""
    given = {name: known[name] for name in tail.inputs}
    changed = {value.name or "": _changed_at_one_position(value, given[value.name or ""]) for value in tail.view.inputs}
    if not tail.shown:
        return
    session = simulation_session(tail)
    before, after = run_session(session, given), run_session(session, changed)
    for name in before:
        differs = layout.with_batch(name, before[name] != after[name])
        if differs.ndim < 3:
            continue
        shares = [float(np.moveaxis(differs, axis, 0).reshape(length, -1).any(axis=1).mean()) if length > 1 else 0.0
                  for axis, length in enumerate(differs.shape)]  # fmt: skip
        *_, second, first = sorted(shares[1:])
        # Softmax over positions, for example, changes everything, so that nothing shows.
        if first > 2 * second:
            yield name, shares.index(first, 1)


def _changed_at_one_position(value: ir.Value, array: NDArray[Any]) -> NDArray[Any]:
    """Return a layer's result with other values at one position; other arrays as they are."""
    node = value.producer()
    if node is None or not is_learned(node) or array.ndim < 3 or array.dtype.kind != "f":
        return array
    channels = 1 if node.op_type in CONVOLUTIONS else array.ndim - 1
    place = tuple(slice(None) if axis in (0, channels) else length // 2 for axis, length in enumerate(array.shape))
    other = array.copy()
    # Far from the usual values in both directions, so that functions that are flat somewhere show it too.
    size = 3 * array.std() + 1e-3
    signs = np.where(np.arange(array.shape[channels]) % 2, -size, size).astype(array.dtype)
    other[place] = array.mean() + signs
    return other


def _parts(layout: OutputLayout, tail: Segment, known: Arrays) -> Iterator[tuple[str, int, Parts]]:
    """Yield the outputs whose channels come from several places, with the axis and the channels of each part."""
    # Whole numbers are shapes and indices, which say where values go.
    labels = {
        name: np.full_like(known[name], number) if known[name].dtype.kind == "f" else known[name]
        for number, name in enumerate(tail.inputs)
    }
    sources = run_session(simulation_session(tail), labels)
    for name, source in sources.items():
        values, places = (layout.with_batch(name, array) for array in (known[name], source))
        if places.ndim < 3 or values.dtype.kind != "f":
            continue
        axis = layout.axis(name, values.astype(np.float64))
        columns = np.moveaxis(places, axis, 0).reshape(places.shape[axis], -1)
        parts: dict[bytes, list[int]] = {}
        for channel, column in enumerate(columns):
            parts.setdefault(column.tobytes(), []).append(channel)
        if 1 < len(parts) <= _MOST_PARTS:
            yield name, axis, tuple(map(tuple, parts.values()))
