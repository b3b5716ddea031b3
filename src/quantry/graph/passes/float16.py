"""Convert a model from float16 to float32, and back."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from quantry.errors import Float16Error, ModelError
from quantry.facts.operators import LINEAR, Family, of_family
from quantry.notes import Note

_HALF, _SINGLE = ir.DataType.FLOAT16, ir.DataType.FLOAT
_LAYERS = (*LINEAR, *of_family(Family.RECURRENT))

_LAZY_BYTES = 1_000_000  # larger weights are converted whenever they are read, so that both forms are rarely in memory

_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")

_ALWAYS_SINGLE = {"Resize": (2,), "Upsample": (1,), "DynamicQuantizeLinear": (0,)}
"""Inputs that the ONNX standard defines as float32 even in a float16 model."""

_LARGEST_HALF = float(np.finfo(np.float16).max)


def check_float_type(model: ir.Model, label: str) -> None:
    """Check that a model computes in float32; parts of it may compute in other types, and stay as they are.

    Raises:
        ModelError: It computes in float16, bfloat16 or float64.
    """
    if any(value.dtype == _SINGLE for value in _weights_of_layers(model)):
        return
    if _uses_half(model):
        raise Float16Error.of(label)
    for dtype in (ir.DataType.BFLOAT16, ir.DataType.DOUBLE):
        value = next((value for value in _inputs_and_weights(model) if value.dtype == dtype), None)
        if value is not None:
            raise ModelError(
                f"the model must compute in float32, got {dtype.name}; export it in float32; "
                f"tensor {value.name!r} in {label}"
            )


def float16_to_float32(model: ir.Model) -> tuple[Note, ...]:
    """Convert weights, inputs, outputs, constants and casts from float16 to float32; only on request.

    float32 represents every float16 number, so weights keep their values; intermediate results are rounded less.
    """
    if not _uses_half(model):
        return ()
    ports = [value.name for value in (*model.graph.inputs, *model.graph.outputs) if value.dtype == _HALF]
    weights = _convert(model, _HALF, _SINGLE)
    message = "converted the model with {count} float16 weights to float32"
    if not ports:
        return (Note.of(message, count=weights),)
    return (Note.of(message + "; {tensors} are now float32", count=weights, tensors=", ".join(map(str, ports))),)


def float32_to_float16(model: ir.Model) -> None:
    """Convert weights, inputs, outputs, constants and casts from float32 to float16.

    Values beyond +-65504 become that, so that masks stay finite. A Q/DQ pair needs opset 19 or later for float16
    scales.
    """
    for graph in _all_graphs(model):
        for node in graph:
            _name_the_type(node)
    _convert(model, _SINGLE, _HALF)


def float32_to_bfloat16(model: ir.Model) -> None:
    """Convert weights, inputs, outputs, constants and casts from float32 to bfloat16."""
    for graph in _all_graphs(model):
        for node in graph:
            _name_the_type(node)
    _convert(model, _SINGLE, ir.DataType.BFLOAT16)


def _name_the_type(node: ir.Node) -> None:
    """Write a constant that is float32 only by the standard's default as a tensor."""
    if node.op_type == "Constant" and "value_float" in node.attributes:
        number = node.attributes.pop("value_float").as_float()
        node.attributes.add(ir.AttrTensor("value", ir.tensor(np.array(number, np.float32))))
    elif node.op_type == "ConstantOfShape" and "value" not in node.attributes:
        node.attributes.add(ir.AttrTensor("value", ir.tensor(np.zeros(1, np.float32))))


def _convert(model: ir.Model, source: ir.DataType, target: ir.DataType) -> int:
    """Replace one type by another in a whole model and return the number of initializers of that type."""
    weights = 0
    for graph in _all_graphs(model):
        for value in graph.initializers.values():
            weights += _convert_weight(value, source, target)
        for value in (*graph.inputs, *(output for node in graph for output in node.outputs)):
            if isinstance(value.type, ir.TensorType) and value.dtype == source and not _stays(value, target):
                # Types may be shared between values, so a new one replaces it.
                value.type = ir.TensorType(target, denotation=value.type.denotation)
        for node in graph:
            _convert_attributes(node, source, target)
    return weights


def _stays(value: ir.Value, target: ir.DataType) -> bool:
    """Whether an operator needs a value in float32."""
    if target == _SINGLE:
        return False
    return any(use.idx in _ALWAYS_SINGLE.get(use.node.op_type, ()) for use in value.uses())


def _all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    yield from model.graphs()
    for function in model.functions.values():
        yield function.graph
        yield from function.graph.subgraphs()


def _uses_half(model: ir.Model) -> bool:
    return any(
        any(value.dtype == _HALF for value in (*graph.initializers.values(), *graph.inputs, *graph.outputs))
        or any(_has_type(attribute, _HALF) for node in graph for attribute in node.attributes.values())
        for graph in _all_graphs(model)
    )


def _inputs_and_weights(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.inputs
    yield from _weights_of_layers(model)


def _weights_of_layers(model: ir.Model) -> Iterator[ir.Value]:
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type in _LAYERS and node.domain == "":
            yield from (value for value in node.inputs if value is not None and _is_constant(value))


def _is_constant(value: ir.Value) -> bool:
    producer = value.producer()
    return value.is_initializer() or (producer is not None and producer.op_type == "Constant")


def _has_type(attribute: ir.Attr, dtype: ir.DataType) -> bool:
    """Return whether an attribute is a tensor of a type, or names the type."""
    if attribute.is_ref():
        return False
    if attribute.type == ir.AttributeType.TENSOR:
        return attribute.as_tensor().dtype == dtype
    return attribute.name in _TYPE_ATTRIBUTES and attribute.type == ir.AttributeType.INT and attribute.value == dtype


def _convert_weight(value: ir.Value, source: ir.DataType, target: ir.DataType) -> bool:
    tensor = value.const_value
    if tensor is None or tensor.dtype != source or _stays(value, target):
        return False
    value.const_value = _converted(tensor, value.name or "", target)
    value.dtype = target
    return True


def _converted(tensor: ir.TensorProtocol, name: str, target: ir.DataType) -> ir.TensorProtocol:
    def convert() -> ir.TensorProtocol:
        values = tensor.numpy()
        limited = np.clip(values, -_LARGEST_HALF, _LARGEST_HALF) if target == _HALF else values
        return ir.Tensor(limited.astype(target.numpy()), name=name)

    lazy = ir.LazyTensor(convert, target, ir.Shape(tensor.shape.numpy()), name=name)
    return lazy if tensor.nbytes > _LAZY_BYTES else convert()


def _convert_attributes(node: ir.Node, source: ir.DataType, target: ir.DataType) -> None:
    if any(_stays(output, target) for output in node.outputs):
        return
    for attribute in tuple(node.attributes.values()):
        if not _has_type(attribute, source):
            continue
        if attribute.type == ir.AttributeType.TENSOR:
            tensor = attribute.as_tensor()
            node.attributes.add(ir.AttrTensor(attribute.name, _converted(tensor, tensor.name or "", target)))
        else:
            node.attributes.add(ir.AttrInt64(attribute.name, int(target)))
