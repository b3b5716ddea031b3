"""Find the operators that a backend refuses, by giving it each of them alone with its Q/DQ pairs."""

from collections.abc import Callable, Iterable

import onnx_ir as ir

from quantry.errors import ModelError
from quantry.graph.qdq import is_dequantize, is_pair_node, is_quantize, read_through
from quantry.graph.save import serialize

_OPSET_FALLBACK = 21


def refused_units(nodes: list[ir.Node], opened: Callable[[bytes], object]) -> dict[str, str]:
    """Return the nodes that a backend refuses, with its message.

    Args:
        nodes: All nodes of a model; values have types and shapes.
        opened: Opens a model on the backend, or raises ModelError.

    Returns:
        By node name, the backend's message. Units with the same operator, types, shapes and attributes are tried once.
    """
    messages: dict[str, str | None] = {}
    refused: dict[str, str] = {}
    for node in nodes:
        if is_pair_node(node):
            continue
        key = _kind(node)
        if key not in messages:
            messages[key] = _message(node, opened)
        message = messages[key]
        if message is not None:
            refused[node.name or ""] = message
    return refused


def _message(node: ir.Node, opened: Callable[[bytes], object]) -> str | None:
    unit = _unit(node)
    if unit is None:
        return None
    try:
        opened(unit)
    except ModelError as error:
        return refusal(error)
    return None


def refusal(error: ModelError) -> str:
    """Return what a backend said about a model that it does not open, shortened."""
    return str(error.__cause__ or error)[:300]


def _unit(node: ir.Node) -> bytes | None:
    """Return a model of one operator with the quantizers before and after it; None if shapes are unknown."""
    graph = node.graph
    if graph is None:
        return None
    members = {node}
    for value in node.inputs:
        tensor = read_through(value)
        if tensor is not None and tensor.node is not None:
            members.add(tensor.node)
            quantize = tensor.integers.producer()
            if quantize is not None and is_quantize(quantize):
                members.add(quantize)
    for output in node.outputs:
        for use in output.uses():
            if is_quantize(use.node):
                members.add(use.node)
                members.update(later.node for later in use.node.outputs[0].uses() if is_dequantize(later.node))
    inner = {value for member in members for value in member.outputs}
    inputs = _unique(v for m in members for v in m.inputs if v is not None and v not in inner and v.const_value is None)
    outputs = _unique(v for v in inner if not any(use.node in members for use in v.uses()))
    if any(value.shape is None or value.type is None for value in (*inputs, *outputs)):
        return None
    try:
        extracted = ir.convenience.extract(graph, inputs=inputs, outputs=outputs)
    except (ValueError, AttributeError):
        return None
    opsets = graph.opset_imports or {"": _OPSET_FALLBACK}
    return serialize(ir.Model(extracted, ir_version=10, producer_name="quantry")) if opsets else None


def _unique(values: Iterable[ir.Value]) -> list[ir.Value]:
    return sorted(dict.fromkeys(values), key=lambda value: value.name or "")


def _kind(node: ir.Node) -> str:
    def described(value: ir.Value | None) -> str:
        if value is None:
            return "-"
        tensor = read_through(value)
        return f"{value.dtype}{value.shape}{'' if tensor is None else tensor.dtype}{value.const_value is None}"

    attributes = sorted((key, str(attribute.value)) for key, attribute in node.attributes.items())
    readers = sorted({use.node.op_type for output in node.outputs for use in output.uses()})
    tensors = [described(value) for value in (*node.inputs, *node.outputs)]
    return f"{node.domain}:{node.op_type}:{tensors}:{attributes}:{readers}"
