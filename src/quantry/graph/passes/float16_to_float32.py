"""Convert a float16 model to float32."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from quantry.errors import ModelError
from quantry.graph.operators import LINEAR

_HALF, _SINGLE = ir.DataType.FLOAT16, ir.DataType.FLOAT

_LAZY_BYTES = 1_000_000  # larger weights are converted whenever they are read, so that both forms are rarely in memory

_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")


def check_float_type(model: ir.Model, label: str) -> None:
    """Check that a model computes in float32.

    Raises:
        ModelError: It computes in float16, bfloat16 or float64.
    """
    if _uses_half(model):
        raise ModelError(
            "the model must compute in float32, got a float16 model; "
            f"set float16_to_float32=True in PrepareOptions to convert it; in {label}"
        )
    for dtype in (ir.DataType.BFLOAT16, ir.DataType.DOUBLE):
        value = next((value for value in _inputs_and_weights(model) if value.dtype == dtype), None)
        if value is not None:
            raise ModelError(
                f"the model must compute in float32, got {dtype.name}; export it in float32; "
                f"tensor {value.name!r} in {label}"
            )


def float16_to_float32(model: ir.Model) -> tuple[str, ...]:
    """Convert weights, inputs, outputs, constants and casts from float16 to float32; only on request.

    float32 represents every float16 number, so weights keep their values; intermediate results are rounded less.
    """
    if not _uses_half(model):
        return ()
    ports = [value.name for value in (*model.graph.inputs, *model.graph.outputs) if value.dtype == _HALF]
    weights = 0
    for graph in _all_graphs(model):
        for value in graph.initializers.values():
            weights += _widen_weight(value)
        for value in (*graph.inputs, *(output for node in graph for output in node.outputs)):
            _widen_type(value)
        for node in graph:
            _widen_attributes(node)
    changed = f"; {', '.join(str(name) for name in ports)} are now float32" if ports else ""
    return (f"converted the model with {weights} float16 weights to float32{changed}",)


def _all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    yield from model.graphs()
    for function in model.functions.values():
        yield function.graph
        yield from function.graph.subgraphs()


def _uses_half(model: ir.Model) -> bool:
    return any(
        any(value.dtype == _HALF for value in (*graph.initializers.values(), *graph.inputs, *graph.outputs))
        or any(_is_half(attribute) for node in graph for attribute in node.attributes.values())
        for graph in _all_graphs(model)
    )


def _inputs_and_weights(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.inputs
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type in LINEAR and node.domain == "":
            yield from (value for value in node.inputs if value is not None and value.is_initializer())


def _is_half(attribute: ir.Attr) -> bool:
    """Return whether an attribute is a float16 tensor or names the type float16."""
    if attribute.is_ref():
        return False
    if attribute.type == ir.AttributeType.TENSOR:
        return attribute.as_tensor().dtype == _HALF
    return attribute.name in _TYPE_ATTRIBUTES and attribute.type == ir.AttributeType.INT and attribute.value == _HALF


def _widen_weight(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None or tensor.dtype != _HALF:
        return False
    value.const_value = _widened(tensor, value.name or "")
    value.dtype = _SINGLE
    return True


def _widened(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    def widen() -> ir.TensorProtocol:
        return ir.Tensor(tensor.numpy().astype(np.float32), name=name)

    lazy = ir.LazyTensor(widen, _SINGLE, ir.Shape(tensor.shape.numpy()), name=name)
    return lazy if tensor.nbytes > _LAZY_BYTES else widen()


def _widen_type(value: ir.Value) -> None:
    if isinstance(value.type, ir.TensorType) and value.dtype == _HALF:
        # Types may be shared between values, so a new one replaces it.
        value.type = ir.TensorType(_SINGLE, denotation=value.type.denotation)


def _widen_attributes(node: ir.Node) -> None:
    for attribute in tuple(node.attributes.values()):
        if not _is_half(attribute):
            continue
        if attribute.type == ir.AttributeType.TENSOR:
            tensor = attribute.as_tensor()
            node.attributes.add(ir.AttrTensor(attribute.name, _widened(tensor, tensor.name or "")))
        else:
            node.attributes.add(ir.AttrInt64(attribute.name, int(_SINGLE)))
