"""Bodies of If, Loop and Scan as models of their own, and back into the model.

A body reads its inputs and, by name, tensors of the graph around it. As a model, both are inputs; constants become its
own. A quantized body goes back to its place, where the names that quantization added get the place as a prefix: two
graphs must not use one name for different tensors.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.errors import ModelError
from quantry.facts.operators import LINEAR
from quantry.graph.passes.convert_opset import convert_opset
from quantry.graph.passes.infer_shapes import infer_shapes
from quantry.graph.passes.tidy import remove_unused
from quantry.graph.weights import rebuilt

Call = Mapping[str, NDArray[Any]]
"""What a body read when it ran once: its inputs and the tensors of the graph around it, by name."""

BODY_ATTRIBUTES = {"If": ("then_branch", "else_branch"), "Loop": ("body",), "Scan": ("body",)}
"""The attributes that hold the bodies of each operator."""


@dataclass(frozen=True, order=True)
class BodyPlace:
    """A body of a node of the main graph.

    Attributes:
        node: Name of the node.
        attribute: The attribute that holds the body.
    """

    node: str
    attribute: str

    def __str__(self) -> str:
        return f"{self.attribute} of {self.node!r}"


def bodies_with_layers(graph: ir.Graph) -> Iterator[tuple[ir.Node, BodyPlace]]:
    """Yield the nodes of the main graph with a body that has layers, at any depth, and where the body is."""
    for node in graph:
        for attribute in BODY_ATTRIBUTES.get(node.op_type, ()) if node.domain == "" else ():
            nodes = ir.traversal.RecursiveGraphIterator(body_of(node, attribute))
            if any(inner.op_type in LINEAR and inner.domain == "" for inner in nodes):
                yield node, BodyPlace(node.name or "", attribute)


def body_of(node: ir.Node, attribute: str) -> ir.Graph:
    """Return the body that an attribute of a node holds."""
    return node.attributes[attribute].as_graph()


def outer_values(body: ir.Graph) -> list[ir.Value]:
    """Return the values of other graphs that a body reads, constants included, in the order of their first use."""
    inner_graphs = {id(body), *(id(graph) for graph in body.subgraphs())}
    read = [value for node in ir.traversal.RecursiveGraphIterator(body) for value in node.inputs if value is not None]
    inner = [value for graph in body.subgraphs() for value in graph.outputs]
    return [value for value in dict.fromkeys((*read, *body.outputs, *inner)) if id(value.graph) not in inner_graphs]


def body_model(model: ir.Model, body_place: BodyPlace, calls: Sequence[Call], *, any_size: bool = False) -> ir.Model:
    """Return a body as a model.

    Args:
        model: The model that contains the body; it is not changed.
        body_place: Where the body is.
        calls: What it read, for types and ranks that the model does not declare; may be empty if it declares all.
        any_size: Whether the inputs may have sizes other than the declared ones, as states of a loop that grow.

    Raises:
        ModelError: Type or rank of an input is unknown.
    """
    node = next(node for node in model.graph if node.name == body_place.node)
    body = body_of(node, body_place.attribute)
    outer = outer_values(body)
    constants = [value for value in outer if value.is_initializer() and not value.is_graph_input()]
    view = ir.GraphView(
        [*body.inputs, *(value for value in outer if value not in constants)],
        body.outputs,
        nodes=list(body),
        initializers=[*body.initializers.values(), *constants],
        opset_imports=model.graph.opset_imports,
        name=body.name,
    )
    functions = tuple(function.clone() for function in model.functions.values())
    single = ir.Model(view.clone(), ir_version=model.ir_version, functions=functions)
    for value in single.graph.inputs:
        _complete(value, [call[value.name or ""] for call in calls], any_size=any_size)
    infer_shapes(single)
    return rebuilt(single)


def _complete(value: ir.Value, arrays: Sequence[NDArray[Any]], *, any_size: bool) -> None:
    """Give an input the type and rank that it had, and only those sizes that it always had."""
    if not arrays:
        if value.dtype is None or value.shape is None:
            raise ModelError(f"type and rank of {value.name!r}, which a body reads, must be known, got {value.type}")
        return
    value.type = ir.TensorType(ir.DataType.from_numpy(arrays[0].dtype))
    rank = arrays[0].ndim
    declared = value.shape if value.shape is not None and len(value.shape) == rank else [None] * rank
    sizes = [
        dim if isinstance(dim, int) and not any_size and {array.shape[axis] for array in arrays} == {dim} else None
        for axis, dim in enumerate(declared)
    ]
    value.shape = ir.Shape(sizes)


def with_bodies(model: ir.Model, bodies: Mapping[BodyPlace, ir.Model]) -> ir.Model:
    """Return a copy of the model with other bodies.

    Args:
        model: The model.
        bodies: What replaces the body at each place: an edited result of `body_model`.
    """
    opset = max(model.opset_imports[""], *(body.opset_imports[""] for body in bodies.values()))
    copy = _at_opset(model.clone(), opset)
    values = {value.name: value for value in (*copy.graph.inputs, *copy.graph.initializers.values())}
    values |= {value.name: value for node in copy.graph for value in node.outputs}
    for body_place, body in bodies.items():
        node = next(node for node in copy.graph if node.name == body_place.node)
        inside = _at_opset(body.clone(), opset)
        _add_functions(copy, inside)
        for domain, version in inside.opset_imports.items():
            copy.opset_imports.setdefault(domain, version)
        copy.ir_version = max(copy.ir_version or 0, inside.ir_version or 0)
        _place(node, body_place, inside.graph, values)
    remove_unused(copy)
    return rebuilt(copy)


def _at_opset(model: ir.Model, opset: int) -> ir.Model:
    return convert_opset(model, opset) if model.opset_imports[""] < opset else model


def _place(node: ir.Node, body_place: BodyPlace, graph: ir.Graph, values: Mapping[str | None, ir.Value]) -> None:
    """Make a graph the body of a node; it then reads tensors of the main graph instead of further inputs."""
    old_body = body_of(node, body_place.attribute)
    names = {value.name for value in _values(old_body)}
    nodes = {inner.name for inner in ir.traversal.RecursiveGraphIterator(old_body)}
    count = len(old_body.inputs)
    for value in graph.inputs[count:]:
        value.replace_all_uses_with(values[value.name], replace_graph_outputs=True)
    del graph.inputs[count:]
    for name, value in tuple(graph.initializers.items()):
        outer = values.get(name)
        if outer is not None and _same_constant(outer, value) and not value.is_graph_output():
            value.replace_all_uses_with(outer)
            del graph.initializers[name]
    for value in list(_values(graph)):
        if value.name and value.name not in names:
            value.name = f"{body_place.node}.{body_place.attribute}/{value.name}"
    for inner in graph:
        if inner.name not in nodes:
            inner.name = f"{body_place.node}.{body_place.attribute}/{inner.name}"
    # What was seen during calibration is not declared.
    for value, declared in zip((*graph.inputs, *graph.outputs), (*old_body.inputs, *old_body.outputs), strict=True):
        value.type, value.shape = declared.type, declared.shape
    graph.name = old_body.name
    node.attributes[body_place.attribute] = ir.AttrGraph(body_place.attribute, graph)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def _same_constant(outer: ir.Value, inner: ir.Value) -> bool:
    first, second = outer.const_value, inner.const_value
    if first is None or second is None or first.dtype != second.dtype or first.shape != second.shape:
        return False
    return first is second or np.array_equal(first.numpy(), second.numpy())


def _add_functions(model: ir.Model, body: ir.Model) -> None:
    """Add the functions of a body under an overload of its own: the main graph may define the same names otherwise."""
    renamed: dict[tuple[str, str, str], str] = {}
    for key, function in body.functions.items():
        if key in model.functions and _text(model.functions[key]) == _text(function):
            continue
        text = _text(function)
        overload = next(
            name
            for name in _overloads()
            if (*key[:2], name) not in model.functions or _text(model.functions[*key[:2], name]) == text
        )
        renamed[key] = overload
        clone = function.clone()
        clone.overload = overload
        model.functions[clone.identifier()] = clone
    for node in ir.traversal.RecursiveGraphIterator(body.graph):
        node.overload = renamed.get((node.domain, node.op_type, node.overload), node.overload)


def _overloads() -> Iterator[str]:
    number = 1
    while True:
        yield "body" if number == 1 else f"body_{number}"
        number += 1


def _text(function: ir.Function) -> bytes:
    proto = ir.serde.serialize_function(function)
    proto.overload = ""
    return bytes(proto.SerializeToString(deterministic=True))


def states_of(graph: ir.Graph, body_place: BodyPlace) -> tuple[tuple[str, str], ...]:
    """Return the states that a Loop or Scan passes from one run of its body to the next: names at its start and end.

    Args:
        graph: The main graph.
        body_place: Where the body is.
    """
    node = next(node for node in graph if node.name == body_place.node)
    if node.op_type == "If":
        return ()
    body, count = body_of(node, body_place.attribute), state_count(node)
    # Before the states, a body of Loop has the number of the round and a condition, and returns a condition.
    inputs, outputs = (body.inputs[2:], body.outputs[1:]) if node.op_type == "Loop" else (body.inputs, body.outputs)
    pairs = zip(inputs[:count], outputs[:count], strict=True)
    return tuple((start.name or "", end.name or "") for start, end in pairs)


def state_count(node: ir.Node) -> int:
    """Return how many states a Loop or Scan has."""
    if node.op_type == "Loop":
        return len(node.inputs) - 2
    return len(node.inputs) - node.attributes["num_scan_inputs"].as_int()
