"""Cut a graph into segments that run one after the other.

All tensors that a session returns are in memory at once. With segments, buffers are reused within one sample: memory
is that of two segments instead of the whole model, and the values of one segment are counted while the next one runs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import onnx_ir as ir

SEGMENT_BYTES = 3_000_000
"""Target size of a segment's outputs: about what fits into the second-level caches of two cores."""

MAX_SEGMENTS = 16
"""Each segment is a session, so their number is limited."""

_WINDOW = 0.3
"""A segment may be smaller or larger than its target by this fraction if less data then crosses its end."""

Lengths = Mapping[str, int]
"""Lengths of the symbolic axes, by name."""


@dataclass(frozen=True)
class TensorType:
    """Number type and shape of a tensor, as far as known.

    Attributes:
        dtype: Number type, or None if it is unknown or NumPy does not have it.
        shape: One entry per axis: its length, the name of a symbolic axis, or None; None if the rank is unknown.
    """

    dtype: np.dtype[np.generic] | None
    shape: tuple[int | str | None, ...] | None

    def concrete_shape(self, lengths: Lengths) -> tuple[int, ...] | None:
        """Return the shape for given lengths of symbolic axes, or None if an axis stays unknown."""
        if self.shape is None:
            return None
        shape = [lengths.get(dim) if isinstance(dim, str) else dim for dim in self.shape]
        numbers = tuple(length for length in shape if length is not None)
        return numbers if len(numbers) == len(shape) else None

    def nbytes(self, lengths: Lengths) -> int:
        """Return the size in bytes; 0 if unknown."""
        shape = self.concrete_shape(lengths)
        return 0 if shape is None or self.dtype is None else int(np.prod(shape)) * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Segment:
    """A run of consecutive nodes.

    Attributes:
        whole: The model that contains the nodes.
        view: The nodes with their inputs and outputs, as a view of the graph.
        shown: Names of the tensors it returns to the caller.
        passed: Names of the tensors that later segments read; some may be in `shown` too.
    """

    whole: ir.Model
    view: ir.GraphView
    shown: tuple[str, ...]
    passed: tuple[str, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of its inputs: inputs of the whole model, and tensors of earlier segments."""
        return tuple(_names(self.view.inputs))

    @property
    def weights(self) -> tuple[ir.TensorProtocol, ...]:
        """The initializers that it uses."""
        values = self.view.initializers.values()
        return tuple(value.const_value for value in values if value.const_value is not None)

    def extracted(self) -> ir.Model:
        """Return the segment as a separate model; weights are shared, not copied."""
        functions = tuple(self.whole.functions.values())
        return ir.Model(self.view.clone(), ir_version=self.whole.ir_version, functions=functions)


def tensor_types(model: ir.Model) -> dict[str, TensorType]:
    """Return number type and shape of every tensor of the main graph, by name."""
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    return {value.name: _tensor_type(value) for value in values if value.name}


def cut_into_segments(model: ir.Model, results: Iterable[str], lengths: Lengths) -> tuple[Segment, ...]:
    """Return the model as segments of roughly equal size that return the given tensors; empty if there are none.

    Args:
        model: The float model; it is not changed.
        results: Tensors to return: outputs of nodes of the main graph.
        lengths: Lengths of symbolic axes, as far as known, to estimate sizes.
    """
    nodes = list(model.graph)
    returned = frozenset(results)
    types = tensor_types(model)
    bounds = [0, *_cuts(nodes, returned, types, lengths), len(nodes)]
    last_use = _last_uses(nodes)
    segments = (
        segment_of(model, nodes[start:end], returned, frozenset(value for value, use in last_use.items() if use >= end))
        for start, end in pairwise(bounds)
    )
    # Nodes after the last tensor need not run, and onnxruntime does not run anything without an output.
    return tuple(segment for segment in segments if segment.shown or segment.passed)


def segment_of(
    model: ir.Model, nodes: Sequence[ir.Node], returned: frozenset[str], used_later: frozenset[ir.Value]
) -> Segment:
    """Return consecutive nodes as a segment.

    Args:
        model: The model that contains the nodes; it is not changed.
        nodes: The nodes, in order.
        returned: Names of tensors to return.
        used_later: Tensors that later segments read.
    """
    produced = [value for node in nodes for value in node.outputs if value.name]
    sources = dict.fromkeys(value for node in nodes for value in values_used(node))
    for value in produced:
        sources.pop(value, None)
    initializers = [value for value in sources if value.is_initializer()]
    inputs = [value for value in sources if not value.is_initializer()]
    outputs = [value for value in produced if value.name in returned or value in used_later]
    view = ir.GraphView(
        inputs,
        outputs,
        nodes=nodes,
        initializers=initializers,
        opset_imports=model.graph.opset_imports,
        name=model.graph.name,
    )
    return Segment(
        model,
        view,
        tuple(name for name in _names(outputs) if name in returned),
        tuple(_names(value for value in outputs if value in used_later)),
    )


def _cuts(
    nodes: Sequence[ir.Node], returned: frozenset[str], types: Mapping[str, TensorType], lengths: Lengths
) -> list[int]:
    """Return the positions before which to cut, ascending."""
    sizes = {name: kind.nbytes(lengths) if kind.dtype is not None else None for name, kind in types.items()}
    returned_bytes = list(
        accumulate((sum(sizes[n] or 0 for n in _names(node.outputs) if n in returned) for node in nodes), initial=0)
    )
    crossing = list(_crossing_bytes(nodes, sizes))
    target = max(SEGMENT_BYTES, -(-returned_bytes[-1] // MAX_SEGMENTS))
    cuts: list[int] = []
    for _ in range(MAX_SEGMENTS - 1):
        start = cuts[-1] if cuts else 0
        possible = [
            (crossed, position)
            for position, crossed in enumerate(crossing)
            if position > start
            and crossed is not None
            and returned_bytes[position] - returned_bytes[start] >= (1 - _WINDOW) * target
        ]
        near = [pair for pair in possible if returned_bytes[pair[1]] - returned_bytes[start] <= (1 + _WINDOW) * target]
        if not possible or returned_bytes[-1] - returned_bytes[start] <= (1 + _WINDOW) * target:
            break
        cuts.append(min(near)[1] if near else possible[0][1])
    return cuts


def _crossing_bytes(nodes: Sequence[ir.Node], sizes: Mapping[str, int | None]) -> Iterator[int | None]:
    """Yield for each position the number of bytes that cross it; None if something other than an array crosses it."""
    last_use = _last_uses(nodes)
    alive: dict[ir.Value, int | None] = {}
    for position, node in enumerate(nodes):
        alive = {value: size for value, size in alive.items() if last_use[value] >= position}
        yield None if None in alive.values() else sum(size or 0 for size in alive.values())
        alive |= {value: sizes[value.name] for value in node.outputs if value.name and value in last_use}


def _last_uses(nodes: Sequence[ir.Node]) -> dict[ir.Value, int]:
    """Return the position of the last node that uses each value."""
    return {value: position for position, node in enumerate(nodes) for value in values_used(node)}


def values_used(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values of the main graph that a node uses, including in its subgraphs."""
    yield from (value for value in node.inputs if value is not None)
    for attribute in node.attributes.values():
        graphs: Sequence[ir.Graph] = ()
        if attribute.type == ir.AttributeType.GRAPH:
            graphs = [attribute.as_graph()]
        elif attribute.type == ir.AttributeType.GRAPHS:
            graphs = attribute.as_graphs()
        for graph in graphs:
            for inner in ir.traversal.RecursiveGraphIterator(graph):
                yield from (value for value in inner.inputs if value is not None and value.graph is node.graph)
            yield from (value for value in graph.outputs if value.graph is node.graph)


def _tensor_type(value: ir.Value) -> TensorType:
    dtype = None
    if isinstance(value.type, ir.TensorType) and value.type.dtype in NUMPY_TYPES:
        dtype = np.dtype(value.type.dtype.numpy())
    if value.shape is None:
        return TensorType(dtype, None)
    return TensorType(dtype, tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape))


def _names(values: Iterable[ir.Value]) -> list[str]:
    return [value.name for value in values if value.name]


NUMPY_TYPES = (
    ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BOOL,
    ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64,
    ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64,
)  # fmt: skip
"""Types of tensors that NumPy has too."""
