"""Runs a float model once, and then again only as far as a changed tensor has an effect.

All tensors of one sample are kept. For a changed tensor only the nodes after it run: those of its own segment in a
separate session, and the later segments as a whole. Everything else is taken from the first run.
"""

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from quantry.graph.segments import Segment, segment_of, values_used
from quantry.runtime.sessions import SessionOptions, open_session

Array = npt.NDArray[Any]
Tensors = Mapping[str, Array]

# More segments skip more nodes before a changed tensor, but each costs a session and copies between sessions.
MAX_SEGMENTS = 16
_NODES_IN_SEGMENT = 8


class Downstream:
    """A float model that can be continued from any tensor.

    Sessions are opened on first use and reused for all samples.

    Args:
        model: The float model; not modified.
        results: Names of the tensors that count; None takes the model's outputs.
        providers: Execution providers, first choice first.

    Attributes:
        results: Names of the tensors that count.
    """

    def __init__(
        self,
        model: ir.Model,
        results: Sequence[str] | None = None,
        providers: Sequence[str] = ("CPUExecutionProvider",),
    ) -> None:
        self._model = model
        self._providers = tuple(providers)
        self._nodes = list(model.graph)
        count = min(MAX_SEGMENTS, max(1, len(self._nodes) // _NODES_IN_SEGMENT))
        self._bounds = [round(index * len(self._nodes) / count) for index in range(count + 1)]
        self._sessions: dict[tuple[object, ...], tuple[Segment, Any]] = {}
        outputs = (value.name for value in model.graph.outputs if value.name)
        self.results = tuple(outputs if results is None else results)

    def run(self, sample: Tensors) -> dict[str, Array]:
        """Return every tensor of the main graph for one sample, the inputs too."""
        known = dict(sample)
        for number, (start, end) in enumerate(pairwise(self._bounds)):
            nodes = self._nodes[start:end]
            everything = frozenset(value for node in nodes for value in node.outputs)
            known |= self._execute(("all", number), nodes, everything, known)
        return known

    def changed(self, known: Tensors, tensors: Tensors) -> dict[str, Array]:
        """Return the results that change if some tensors do.

        Args:
            known: What `run` returned.
            tensors: New values of activations, or of weights of nodes, by name.
        """
        values = [self._values[name] for name in tensors]
        first = min((self._place(value) for value in values), default=len(self._nodes))
        number = max(index for index, bound in enumerate(self._bounds[:-1]) if bound <= max(first, 0))
        fresh: dict[str, Array] = dict(tensors)
        everywhere = ChainMap(fresh, dict(known))
        for index, (start, end) in enumerate(pairwise(self._bounds)):
            if index < number:
                continue
            later = self._used_from[end]
            if index == number:
                nodes = _affected(self._nodes[max(start, first) : end], values)
                key: tuple[object, ...] = ("from", *sorted(tensors))
                weights = [value for value in values if value.is_initializer()]
            elif any(value.name in fresh for node in self._nodes[start:end] for value in values_used(node)):
                nodes, key, weights = self._nodes[start:end], ("lean", index), []
            else:
                continue
            if nodes:
                fresh.update(self._execute(key, nodes, later, everywhere, weights))
        return {name: fresh[name] for name in self.results if name in fresh}

    def _execute(
        self,
        key: tuple[object, ...],
        nodes: Sequence[ir.Node],
        wanted: frozenset[ir.Value],
        feeds: Tensors,
        weights: Iterable[ir.Value] = (),
    ) -> dict[str, Array]:
        if key not in self._sessions:
            segment = _with_weights_as_inputs(segment_of(self._model, nodes, frozenset(), wanted), tuple(weights))
            self._sessions[key] = segment, open_session(segment, SessionOptions.float_segment(self._providers))
        segment, session = self._sessions[key]
        if not segment.passed:
            return {}
        values = session.run(list(segment.passed), {name: feeds[name] for name in segment.inputs})
        return dict(zip(segment.passed, values, strict=True))

    @cached_property
    def _values(self) -> dict[str, ir.Value]:
        graph = self._model.graph
        outputs = (value for node in self._nodes for value in node.outputs)
        return {value.name: value for value in (*graph.inputs, *graph.initializers.values(), *outputs) if value.name}

    @cached_property
    def _used_from(self) -> dict[int, frozenset[ir.Value]]:
        """By position, the values that nodes from there on use, and the results."""
        results = frozenset(self._values[name] for name in self.results)
        return {
            bound: results | {value for node in self._nodes[bound:] for value in values_used(node)}
            for bound in self._bounds
        }

    @cached_property
    def _positions(self) -> dict[ir.Node, int]:
        return {node: position for position, node in enumerate(self._nodes)}

    def _place(self, value: ir.Value) -> int:
        """Return the position of the first node that can be affected."""
        producer = value.producer()
        if producer is not None:
            return self._positions[producer] + 1
        readers = [self._positions[use.node] for use in value.uses() if use.node in self._positions]
        return min(readers, default=len(self._nodes))


def _affected(nodes: Sequence[ir.Node], changed: Iterable[ir.Value]) -> list[ir.Node]:
    reached = set(changed)
    found = []
    for node in nodes:
        if any(value in reached for value in values_used(node)):
            found.append(node)
            reached.update(node.outputs)
    return found


def _with_weights_as_inputs(segment: Segment, weights: Sequence[ir.Value]) -> Segment:
    if not weights:
        return segment
    view = segment.view
    initializers = [value for value in view.initializers.values() if value not in weights]
    changed = ir.GraphView(
        [*view.inputs, *weights],
        view.outputs,
        nodes=list(view),
        initializers=initializers,
        opset_imports=view.opset_imports,
        name=view.name,
    )
    return Segment(segment.whole, changed, segment.shown, segment.passed)
