"""Check a protobuf model before onnx-ir reads it: text, tensors, attributes and functions must be what they claim.

Libraries crash, hang or allocate without limit where these do not hold, so the checks read no claimed size without
comparing it with the bytes that are there, and count nested functions before anything expands them.
"""

import math
from collections.abc import Iterable, Iterator

import onnx
from onnx import AttributeProto, TensorProto

from quantry.errors import ModelError

EXPANSION_LIMIT = 20_000
"""Nodes that functions may always expand to. onnxruntime needs 20 seconds to load 32,000 expanded nodes; the largest
language models have about 20,000."""

_EXPANSION_FACTOR = 200
"""Larger models may expand to this many nodes per node in the file: a layer with a body of 200 nodes. Files that are
made to expand without end double with every function, so a few nodes become millions."""

_MOST_EXPANDED = 400_000
"""No model may expand to more nodes, unless the file itself has half as many."""

NESTING_LIMIT = 32
"""Most levels of graphs inside graphs; protobuf itself reads at most about 40."""

_ATTRIBUTE_FIELDS = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.TYPE_PROTO: "tp",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors",
    AttributeProto.GRAPHS: "graphs",
    AttributeProto.SPARSE_TENSORS: "sparse_tensors",
    AttributeProto.TYPE_PROTOS: "type_protos",
}


_BITS = {
    **dict.fromkeys(("FLOAT4E2M1", "INT4", "UINT4"), 4),
    **dict.fromkeys(("INT2", "UINT2"), 2),
    **dict.fromkeys(("FLOAT16", "BFLOAT16", "INT16", "UINT16"), 16),
    **dict.fromkeys(("FLOAT", "INT32", "UINT32"), 32),
    **dict.fromkeys(("DOUBLE", "INT64", "UINT64", "COMPLEX64"), 64),
    "COMPLEX128": 128,
}
"""Bits per element by type; types that are not listed have 8."""

# Which typed field holds the elements of a type that is not stored as raw bytes, from onnx.proto.
_TYPED_FIELDS = {
    "FLOAT": "float_data",
    "COMPLEX64": "float_data",
    "STRING": "string_data",
    "INT64": "int64_data",
    "DOUBLE": "double_data",
    "COMPLEX128": "double_data",
    "UINT32": "uint64_data",
    "UINT64": "uint64_data",
}
_EVERY_TYPED_FIELD = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")


def check_well_formed(proto: onnx.ModelProto, label: str) -> None:
    """Check everything in a model that later code takes for granted.

    Args:
        proto: The model.
        label: Name of the model in messages.

    Raises:
        ModelError: Something does not hold; the message names the node or the tensor.
    """
    for entry in proto.opset_import:
        _check_text(entry.domain, "operator domain", f"opset_import of {label}")
    _check_graph(proto.graph, label, 1)
    for function in proto.functions:
        location = f"function {_shown(function.name)} in {label}"
        for name in (function.domain, function.name, *function.input, *function.output, *function.attribute):
            _check_text(name, "name", location)
        _check_nodes(function.node, location, 1, in_function=True)
    _check_expansion(proto, label)


def _shown(name: object) -> str:
    return repr(name)


def _check_text(text: object, what: str, location: str) -> None:
    # protobuf returns bytes for text that is not UTF-8.
    if not isinstance(text, str):
        raise ModelError(f"every {what} must be UTF-8 text, got {text!r}; {location}")


def _check_graph(graph: onnx.GraphProto, label: str, depth: int, *, in_function: bool = False) -> None:
    _check_text(graph.name, "graph name", f"in {label}")
    location = f"in graph {graph.name!r} of {label}"
    if depth > NESTING_LIMIT:
        raise ModelError(f"graphs must be nested at most {NESTING_LIMIT} levels deep, got more; {location}")
    for value in (*graph.input, *graph.output, *graph.value_info):
        _check_value(value, location)
    for tensor in graph.initializer:
        _check_text(tensor.name, "initializer name", location)
        if not tensor.name:
            raise ModelError(f"every initializer must have a name, got an empty one; {location}")
        check_tensor(tensor, f"tensor {tensor.name!r} {location}")
    for value in graph.input:
        if not value.name:
            raise ModelError(f"every input must have a name, got an empty one; {location}")
    _check_nodes(graph.node, location, depth, in_function=in_function)


def _check_value(value: onnx.ValueInfoProto, location: str) -> None:
    _check_text(value.name, "tensor name", location)
    for tensor_type in _tensor_types(value.type):
        if tensor_type.elem_type not in TensorProto.DataType.values():
            raise ModelError(
                f"the type of a tensor must be one that ONNX defines, got {tensor_type.elem_type}; "
                f"tensor {value.name!r} {location}"
            )
        for dim in tensor_type.shape.dim:
            _check_text(dim.dim_param, "name of an axis", f"tensor {value.name!r} {location}")


def _tensor_types(kind: onnx.TypeProto) -> Iterator[onnx.TypeProto.Tensor]:
    if kind.HasField("tensor_type"):
        yield kind.tensor_type
    elif kind.HasField("sequence_type"):
        yield from _tensor_types(kind.sequence_type.elem_type)
    elif kind.HasField("optional_type"):
        yield from _tensor_types(kind.optional_type.elem_type)


def _check_nodes(nodes: Iterable[onnx.NodeProto], location: str, depth: int, *, in_function: bool) -> None:
    for node in nodes:
        for text in (node.name, node.op_type, node.domain, *node.input, *node.output):
            _check_text(text, "name", f"node {_shown(node.name or node.op_type)} {location}")
        at = f"node {node.name or node.op_type!r} {location}"
        if not node.op_type:
            raise ModelError(f"every node must have an operator, got none; {at}")
        names = [attribute.name for attribute in node.attribute]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ModelError(f"every attribute of a node must have a unique name, got {twice!r} twice; {at}")
        for attribute in node.attribute:
            _check_attribute(attribute, at, depth, in_function=in_function)


def _check_attribute(attribute: onnx.AttributeProto, location: str, depth: int, *, in_function: bool) -> None:
    _check_text(attribute.name, "attribute name", location)
    at = f"attribute {attribute.name!r} of {location}"
    if not attribute.name:
        raise ModelError(f"every attribute must have a name, got an empty one; {location}")
    if attribute.ref_attr_name:
        _check_text(attribute.ref_attr_name, "attribute name", at)
        if not in_function:
            raise ModelError(
                f"only a function may refer to an attribute of its caller, got {attribute.ref_attr_name!r}; {at}"
            )
        if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
            raise ModelError(f"a function must contain its graphs, got one that its caller gives; {at}")
        return
    field = _ATTRIBUTE_FIELDS.get(attribute.type)
    if field is None:
        raise ModelError(f"every attribute must have a type that ONNX defines, got {attribute.type}; {at}")
    present = {descriptor.name for descriptor, _ in attribute.ListFields()} & set(_ATTRIBUTE_FIELDS.values())
    # Empty lists have no field at all, and some writers omit numbers that are 0.
    if present - {field} or (not present and field in ("t", "g", "sparse_tensor", "tp")):
        kind = AttributeProto.AttributeType.Name(attribute.type)
        raise ModelError(f"an attribute of type {kind} must have this kind of value, got {sorted(present)}; {at}")
    for tensor in (*([attribute.t] if field == "t" else ()), *attribute.tensors):
        check_tensor(tensor, at)
    for graph in (*([attribute.g] if field == "g" else ()), *attribute.graphs):
        _check_graph(graph, at, depth + 1, in_function=in_function)


def check_tensor(tensor: onnx.TensorProto, location: str) -> None:
    """Check that a tensor has a type, no negative axis, and as many elements as its shape says.

    Raises:
        ModelError: It has not; the message names the tensor.
    """
    if tensor.data_type not in TensorProto.DataType.values() or tensor.data_type == TensorProto.UNDEFINED:
        raise ModelError(f"every tensor must have a type that ONNX defines, got {tensor.data_type}; {location}")
    if any(length < 0 for length in tensor.dims):
        raise ModelError(f"no axis of a tensor may be negative, got the shape {list(tensor.dims)}; {location}")
    if tensor.data_location == TensorProto.EXTERNAL:
        _check_external(tensor, location)
        return
    name = TensorProto.DataType.Name(tensor.data_type)
    field_name = _TYPED_FIELDS.get(name, "int32_data")
    filled = {field: len(getattr(tensor, field)) for field in _EVERY_TYPED_FIELD if len(getattr(tensor, field))}
    elements = math.prod(tensor.dims)
    expected = {field_name: _typed_length(name, elements), "raw_data": -(-elements * _BITS.get(name, 8) // 8)}
    if tensor.HasField("raw_data"):
        filled["raw_data"] = len(tensor.raw_data)
    if name == "STRING":
        del expected["raw_data"]
    if len(filled) > 1 or any(expected.get(field) != length for field, length in filled.items()):
        raise ModelError(
            f"a tensor must be well formed: {elements} elements of the shape {list(tensor.dims)} as {name}, "
            f"got {filled}; {location}"
        )
    if not filled and elements:
        raise ModelError(f"a tensor must hold the {elements} elements of its shape, got none; {location}")


def _typed_length(name: str, elements: int) -> int:
    """Return the length of the typed field: complex numbers have two entries, packed types share one byte each."""
    if name.startswith("COMPLEX"):
        return 2 * elements
    bits = _BITS.get(name, 8)
    return -(-elements * bits // 8) if bits < 8 else elements


def _check_external(tensor: onnx.TensorProto, location: str) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    for key, value in entries.items():
        _check_text(key, "key of external data", location)
        _check_text(value, "value of external data", location)
    if not entries.get("location"):
        raise ModelError(f"external data must name its file, got the entries {sorted(entries)}; {location}")
    for key in ("offset", "length"):
        if key in entries and not entries[key].isdecimal():
            raise ModelError(f"the {key} of external data must be a number, got {entries[key]!r}; {location}")


def _check_expansion(proto: onnx.ModelProto, label: str) -> None:
    """Check that functions neither call themselves nor expand to more nodes than any real model has."""
    expansion = _Expansion(proto, label)
    if len(expansion.bodies) < len(proto.functions):
        raise ModelError(f"every function must have a unique name, got one twice; in {label}")
    largest = max(
        (
            expansion.size(proto.graph.node, ()),
            *(expansion.size(body.node, (called,)) for called, body in expansion.bodies.items()),
        )
    )
    written = len(proto.graph.node) + sum(len(function.node) for function in proto.functions)
    limit = max(EXPANSION_LIMIT, min(_EXPANSION_FACTOR * written, _MOST_EXPANDED), 2 * written)
    if largest > limit:
        raise ModelError(
            f"a model must have at most {limit} nodes after its functions are expanded, got {largest} from "
            f"{written} in the file; in {label}"
        )


_Called = tuple[str, str, str]  # domain, name and overload of a function


class _Expansion:
    """Counts the nodes of a model after its functions are expanded, without expanding them."""

    def __init__(self, proto: onnx.ModelProto, label: str) -> None:
        self.bodies = {(body.domain, body.name, body.overload): body for body in proto.functions}
        self._label = label
        self._sizes: dict[_Called, int] = {}

    def size(self, nodes: Iterable[onnx.NodeProto], callers: tuple[_Called, ...]) -> int:
        """Return the number of nodes that ``nodes`` expand to; ``callers`` are the functions around them."""
        total = 0
        for node in nodes:
            called = (node.domain, node.op_type, node.overload)
            total += self._size_of_call(called, callers, node) if called in self.bodies else 1
            for attribute in node.attribute:
                for graph in (attribute.g, *attribute.graphs):
                    total += self.size(graph.node, callers)
        return total

    def _size_of_call(self, called: _Called, callers: tuple[_Called, ...], node: onnx.NodeProto) -> int:
        location = f"node {node.name or node.op_type!r} in {self._label}"
        if called in callers:
            raise ModelError(f"a function must not call itself, got {called[0]}.{called[1]}, which does; {location}")
        if len(callers) >= NESTING_LIMIT:
            raise ModelError(f"functions must be nested at most {NESTING_LIMIT} levels deep, got more; {location}")
        if called not in self._sizes:
            self._sizes[called] = self.size(self.bodies[called].node, (*callers, called))
        return self._sizes[called]
