"""The look-up form of a quantized model: a Q/DQ pair, and what is computed from it alone, in one pass over the values.

A session that keeps every pair writes an activation once as integers and once as floats again, and as often for the
function after it. What follows a pair has only as many different values as its integer type, so all of it is a table
with one entry for each integer, up to where another tensor comes in::

    Conv -> Q -> DQ ----------------------> Mul -> Q -> DQ -> Conv        Conv -> LookUp -> Conv
                 +-> Sigmoid -> Q -> DQ ----^

onnxruntime itself computes the entries, with the nodes that the table replaces, so they are the same bits. The operator
LookUp is in our compiled library (``numerics/c/look_up.c``). It is for sessions only: no written model has it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from quantry.facts.operators import KNOWN_DOMAINS
from quantry.numerics import kernels
from quantry.runtime.sessions import run_session, simulation_session

_DOMAIN = "quantry"
_INTEGERS = (np.int8, np.uint8, np.int16, np.uint16)

# Functions of single values. onnxruntime computes some as polynomials, so every chain is tested; see `_Chain`.
_FUNCTIONS = (
    *("Abs", "Add", "Clip", "Div", "Elu", "Erf", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu"),
    *("Max", "Min", "Mul", "Neg", "Relu", "Round", "Sigmoid", "Sign", "Sub", "Tanh"),
)

_ROUNDING = ("Floor", "Round", "Sign")

# A table of 16 bits has 256 KB: it takes the cache from other tensors, so it must replace some passes.
_LARGE_TABLE, _LEAST_NODES = 1 << 12, 4

# Odd lengths: vectors have 4, 8 or 16 numbers, and what is left over may be computed by other instructions.
_WINDOWS = (1, 2, 3, 5, 7, 11, 13, 15, 19, 31)


@dataclass(frozen=True, eq=False)
class _Pair:
    """A Q/DQ pair with one scale.

    Attributes:
        quantizer: Index of its QuantizeLinear.
        dequantizer: Index of its DequantizeLinear.
        scale: The scale.
        zero_point: The zero point, of the type of the integers; shape ().
        low: The smallest level minus the zero point.
        high: The largest level minus the zero point.
    """

    quantizer: int
    dequantizer: int
    scale: np.float32
    zero_point: NDArray[Any]
    low: int
    high: int

    @property
    def values(self) -> NDArray[np.float32]:
        """Everything that its DequantizeLinear can return, in the order of the integers."""
        return np.arange(self.low, self.high + 1, dtype=np.float32) * self.scale


@dataclass(frozen=True)
class _Region:
    """A pair and the nodes that compute from it alone.

    Attributes:
        pair: The pair.
        nodes: Indices of the nodes after it, in order.
        exits: Tensors that other nodes, or users of the model, read.
    """

    pair: _Pair
    nodes: Sequence[int]
    exits: Sequence[str]


def use_look_ups(model: onnx.ModelProto) -> int:
    """Replace pairs, and functions of them, by look-ups wherever the results are the same bits, in place.

    Args:
        model: A quantized model without external data. Only a session with `SessionOptions.look_ups` can run it.

    Returns:
        Number of look-ups; 0 if this installation has no compiled kernels.
    """
    if kernels.library_file() is None or not any(node.op_type == "QuantizeLinear" for node in model.graph.node):
        return 0
    _merge_dequantizers(model)
    reader = _Reader(model)
    regions = list(_regions(reader))
    if not regions:
        return 0
    placed: dict[int, list[onnx.NodeProto]] = {}
    removed: set[int] = set()
    for region in regions:
        pair = region.pair
        start = np.array([pair.scale, pair.low, pair.high], np.float32)
        placed[pair.quantizer], tables = [], _tables(reader, region)
        for name in region.exits:
            parameters = np.concatenate([start, tables.get(name, start[:0])])
            model.graph.initializer.append(numpy_helper.from_array(parameters, f"{name}/look_up"))
            source = reader.nodes[pair.quantizer].input[0]
            placed[pair.quantizer].append(
                helper.make_node("LookUp", [source, f"{name}/look_up"], [name], f"{name}/look_up", domain=_DOMAIN)
            )
        removed |= {pair.quantizer, pair.dequantizer, *region.nodes}
    nodes = [
        written
        for index, node in enumerate(reader.nodes)
        for written in (*placed.get(index, ()), *([] if index in removed else [node]))
    ]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return sum(map(len, placed.values()))


def _merge_dequantizers(model: onnx.ModelProto) -> None:
    """Let all readers of a quantized tensor read the same DequantizeLinear; some tools write one for each reader."""
    dequantizers = [node for node in model.graph.node if node.op_type == "DequantizeLinear"]
    if len({node.input[0] for node in dequantizers}) == len(dequantizers):
        return
    visible = _visible(model)
    first: dict[str, str] = {}
    merged: dict[str, str] = {}
    nodes = []
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name in merged:
                node.input[index] = merged[name]
        if node.op_type == "DequantizeLinear" and node.output[0] not in visible:
            key = f"{node.domain} {node.input} {node.attribute}"
            if first.setdefault(key, node.output[0]) != node.output[0]:
                merged[node.output[0]] = first[key]
                continue
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _visible(model: onnx.ModelProto) -> set[str]:
    """Return the tensors that users of the model, or bodies of control flow, read."""
    captured = (name for node in model.graph.node if node.attribute for name in _captured(node))
    return {output.name for output in model.graph.output}.union(captured)


class _Reader:
    """Who writes and reads the tensors of a graph.

    Args:
        model: The model.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.nodes = list(model.graph.node)
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self.readers: dict[str, list[int]] = defaultdict(list)
        self.visible = _visible(model)
        for index, node in enumerate(self.nodes):
            for name in node.input:
                self.readers[name].append(index)
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self._constants[node.output[0]] = node.attribute[0].t
        self.pairs = {
            pair.quantizer: pair
            for index, node in enumerate(self.nodes)
            if node.op_type == "QuantizeLinear" and (pair := self._pair(index)) is not None
        }
        infos = (*model.graph.input, *model.graph.value_info, *model.graph.output)
        self._ranks = {
            info.name: len(info.type.tensor_type.shape.dim) for info in infos if info.type.tensor_type.HasField("shape")
        }

    def is_constant(self, name: str) -> bool:
        """Whether a tensor is a constant, or an input that is omitted."""
        return not name or name in self._constants

    def number(self, name: str) -> NDArray[Any] | None:
        """Return a constant that is a single number, in its own type; None if the tensor is anything else."""
        tensor = self._constants.get(name)
        if tensor is None or any(size != 1 for size in tensor.dims):
            return None
        return np.asarray(numpy_helper.to_array(tensor))

    def broadcasts(self, name: str, result: str) -> bool:
        """Whether a constant is omitted, or a number that gives a result no further dimensions."""
        number = self.number(name)
        return not name or (number is not None and number.ndim <= self._ranks.get(result, 0))

    def constants_of(self, nodes: Iterable[onnx.NodeProto]) -> list[onnx.TensorProto]:
        """Return the initializers that nodes read."""
        names = {name for node in nodes for name in node.input if name in self._constants}
        constants = []
        for name in sorted(names):
            tensor = onnx.TensorProto()
            tensor.CopyFrom(self._constants[name])
            tensor.name = name
            # Values have one dimension in a chain, and a number must not give them more.
            del tensor.dims[:]
            constants.append(tensor)
        return constants

    def first_value(self, pair: _Pair) -> str:
        """Return the name of what a pair's DequantizeLinear returns."""
        return str(self.nodes[pair.dequantizer].output[0])

    def _pair(self, index: int) -> _Pair | None:
        """Return the pair that a QuantizeLinear begins; None if it is of another kind, or its integers are read."""
        node = self.nodes[index]
        if node.domain not in KNOWN_DOMAINS or len(node.input) != 3:
            return None
        integers = node.output[0]
        scale, zero_point = self.number(node.input[1]), self.number(node.input[2])
        if self.is_constant(node.input[0]) or integers in self.visible or scale is None or zero_point is None:
            return None
        if scale.dtype != np.float32 or zero_point.dtype not in _INTEGERS or not _has_only_axis(node):
            return None
        readers = self.readers[integers]
        if len(readers) != 1 or not self._restores(self.nodes[readers[0]], node):
            return None
        ends, zero = np.iinfo(zero_point.dtype), int(zero_point.reshape(-1)[0])
        step = np.float32(scale.reshape(-1)[0])
        return (
            _Pair(index, readers[0], step, zero_point.reshape(()), ends.min - zero, ends.max - zero)
            if step > 0
            else None
        )

    def _restores(self, node: onnx.NodeProto, quantizer: onnx.NodeProto) -> bool:
        """Whether a node is a DequantizeLinear with the scale and zero point of a QuantizeLinear."""
        if node.op_type != "DequantizeLinear" or node.domain not in KNOWN_DOMAINS or len(node.input) != 3:
            return False
        for input_name, quantizer_input in zip(node.input[1:], quantizer.input[1:], strict=True):
            first, second = (
                (None, None)
                if input_name == quantizer_input
                else (self.number(input_name), self.number(quantizer_input))
            )
            if input_name != quantizer_input and (
                first is None or second is None or first.dtype != second.dtype or first != second
            ):
                return False
        return _has_only_axis(node)


def _has_only_axis(node: onnx.NodeProto) -> bool:
    return all(attribute.name == "axis" for attribute in node.attribute)


def _captured(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that the bodies of a node read."""
    for attribute in node.attribute:
        if attribute.type not in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
            continue
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from inner.input
                yield from _captured(inner)
            yield from (output.name for output in graph.output)


def _regions(reader: _Reader) -> Iterator[_Region]:
    """Yield disjoint regions that contain all pairs."""
    used: set[int] = set()
    for index, pair in reader.pairs.items():
        if index in used:
            continue
        region = _grown(reader, pair)
        if region.nodes and _chain(reader, region) is None:
            region = _Region(pair, (), [reader.first_value(pair)])
        used |= {pair.quantizer, pair.dequantizer, *region.nodes}
        yield region


def _grown(reader: _Reader, pair: _Pair) -> _Region:
    """Return the largest region of a pair."""
    first = reader.first_value(pair)
    values, nodes, pending = {first}, [], {*reader.readers[first]}
    while pending:
        index = min(pending)
        pending.discard(index)
        inner = reader.pairs.get(index)
        if inner is None and not _is_function(reader, reader.nodes[index], values):
            continue
        group = [index] if inner is None else [index, inner.dequantizer]
        nodes += group
        values |= {name for member in group for name in reader.nodes[member].output}
        pending |= set(reader.readers[reader.nodes[group[-1]].output[0]])
    if pair.high - pair.low >= _LARGE_TABLE and len(nodes) < _LEAST_NODES:
        nodes = []
    inside = {pair.quantizer, pair.dequantizer, *nodes}
    written = [first, *(name for index in sorted(nodes) for name in reader.nodes[index].output)]
    exits = [name for name in written if name in reader.visible or not inside >= set(reader.readers[name])]
    return _Region(pair, sorted(nodes), exits)


def _is_function(reader: _Reader, node: onnx.NodeProto, values: set[str]) -> bool:
    """Whether a node computes each value from known tensors and constant numbers alone."""
    if node.op_type not in _FUNCTIONS or node.domain not in KNOWN_DOMAINS or len(node.output) != 1:
        return False
    return all(name in values or reader.broadcasts(name, node.output[0]) for name in node.input)


class _Chain:
    """Computes the exits of regions that have the same functions.

    Args:
        reader: The graph.
        region: One of the regions.
    """

    def __init__(self, reader: _Reader, region: _Region) -> None:
        first, nodes = reader.first_value(region.pair), [onnx.NodeProto() for _ in region.nodes]
        inputs = [helper.make_tensor_value_info(first, onnx.TensorProto.FLOAT, [None])]
        for copy, index in zip(nodes, region.nodes, strict=True):
            copy.CopyFrom(reader.nodes[index])
        # Scales and other numbers of a layer are inputs, so that one session serves all layers.
        for pair in _inner_pairs(reader, region):
            names = [f"{pair.quantizer}/{kind}" for kind in ("scale", "zero_point")]
            types = (onnx.TensorProto.FLOAT, helper.np_dtype_to_tensor_dtype(pair.zero_point.dtype))
            inputs += [helper.make_tensor_value_info(name, type_, []) for name, type_ in zip(names, types, strict=True)]
            for index in (pair.quantizer, pair.dequantizer):
                nodes[region.nodes.index(index)].input[1:] = names
        for index, position in _free_numbers(reader, region):
            name = f"{index}/number"
            nodes[region.nodes.index(index)].input[position] = name
            inputs.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, []))
        self.exits = [name for name in region.exits if name != first]
        outputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None]) for name in self.exits]
        graph = helper.make_graph(nodes, "chain", inputs, outputs, reader.constants_of(nodes))
        opsets, version = reader.model.opset_import, reader.model.ir_version
        model = helper.make_model(graph, opset_imports=opsets, ir_version=version)
        self._session = simulation_session(model.SerializeToString(), threads=1, interleaved=True)
        self._names = [value.name for value in inputs]
        self.is_alike_everywhere = self._is_alike_everywhere(_inputs(reader, region))

    def __call__(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the exits.

        Args:
            inputs: See `_inputs`.
        """
        return list(run_session(self._session, dict(zip(self._names, inputs, strict=True))).values())

    def _is_alike_everywhere(self, inputs: Sequence[NDArray[Any]]) -> bool:
        """Whether onnxruntime computes a value alike at the end of a tensor and in the middle of a long one."""
        complete, values = self(inputs), inputs[0]
        starts = [len(values) * eighth // 8 for eighth in range(8)]
        windows = [slice(start, start + length) for start in starts for length in _WINDOWS]
        return all(
            np.array_equal(eighth, every[window])
            for window in windows
            for eighth, every in zip(self([values[window], *inputs[1:]]), complete, strict=True)
        )


def _inner_pairs(reader: _Reader, region: _Region) -> list[_Pair]:
    return [reader.pairs[index] for index in region.nodes if index in reader.pairs]


def _inputs(reader: _Reader, region: _Region) -> list[NDArray[Any]]:
    """Return the inputs of a chain: the pair's values, scale and zero point of each pair after it, free numbers."""
    inner = _inner_pairs(reader, region)
    numbers = [number for pair in inner for number in (np.array(pair.scale), pair.zero_point)]
    free = (reader.number(reader.nodes[index].input[position]) for index, position in _free_numbers(reader, region))
    return [region.pair.values, *numbers, *(number.reshape(()) for number in free if number is not None)]


def _free_numbers(reader: _Reader, region: _Region) -> list[tuple[int, int]]:
    """Return the constant inputs that a chain does not depend on, as indices of node and input.

    A region that rounds has numbers of its own in every layer, and onnxruntime has no fusion for which they matter.
    """
    if not any(reader.nodes[index].op_type in _ROUNDING for index in region.nodes):
        return []
    return [
        (index, position)
        for index in region.nodes
        if reader.nodes[index].op_type in ("Add", "Mul", "Sub")
        for position, name in enumerate(reader.nodes[index].input)
        if (number := reader.number(name)) is not None and number.dtype == np.float32
    ]


# By functions. A model has the same few chains in every layer and in every trial of a search, and opening a session
# takes a hundred times as long as running it.
_CHAINS: dict[str, _Chain] = {}


def _chain(reader: _Reader, region: _Region) -> _Chain | None:
    """Return what computes a region; None if results depend on the position in a tensor."""
    signature = _signature(reader, region)
    if signature not in _CHAINS:
        _CHAINS[signature] = _Chain(reader, region)
    return _CHAINS[signature] if _CHAINS[signature].is_alike_everywhere else None


def _signature(reader: _Reader, region: _Region) -> str:
    """Return what decides how onnxruntime fuses and computes a region: all but scales of pairs and free numbers."""
    names = {reader.first_value(region.pair): "0"}
    described = [f"{item.domain} {item.version}" for item in reader.model.opset_import]
    free = set(_free_numbers(reader, region))
    for index in region.nodes:
        node, pair = reader.nodes[index], reader.pairs.get(index)
        read = node.input[:1] if node.op_type in ("QuantizeLinear", "DequantizeLinear") else node.input
        inputs = [
            "number" if (index, position) in free else names.get(name) or str(reader.number(name))
            for position, name in enumerate(read)
        ]
        names |= {name: str(len(names)) for name in node.output}
        kind = "" if pair is None else pair.zero_point.dtype.char
        described.append(f"{node.domain}.{node.op_type}{inputs}{kind}{[str(item) for item in node.attribute]}")
    return f"{described} {[names[name] for name in region.exits]}"


def _tables(reader: _Reader, region: _Region) -> dict[str, NDArray[Any]]:
    """Return the values of each exit for all integers of the pair, but not those of the pair itself."""
    chain = _chain(reader, region) if region.nodes else None
    if chain is None:
        return {}
    exits = [name for name in region.exits if name != reader.first_value(region.pair)]
    return dict(zip(exits, chain(_inputs(reader, region)), strict=True))
