"""Mutations of a model: each damages or changes one place, chosen by a random generator."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from onnx import TensorProto, helper, numpy_helper

_INTS = (0, 1, -1, 2, 3, 4, 5, 7, 8, 10, 13, 16, 21, 64, 255, 2**31 - 1, 2**31, 2**40, 2**62, -(2**31), 2**63 - 1)
_FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, float("inf"), float("-inf"), float("nan"), 0.5)
_OPERATORS = (
    *("Relu", "Add", "MatMul", "Gemm", "Conv", "Softmax", "Reshape", "Transpose", "Concat", "Slice", "Gather", "Cast"),
    *("Identity", "Constant", "Shape", "Split", "Squeeze", "Expand", "Where", "TopK", "ReduceSum", "CumSum", "Resize"),
    *("Pad", "Tile", "Range", "NonZero", "Loop", "If", "Einsum", "LSTM", "Erf", "Nope", "QuantizeLinear"),
)


def mutate(model: onnx.ModelProto, seed: int) -> bytes:
    """Return a mutated copy of a model as bytes; equal seeds give equal bytes."""
    generator = random.Random(seed)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for _ in range(generator.choice((1, 1, 1, 2, 3))):
        try:
            generator.choice(_MUTATIONS)(copy, generator)
        except (IndexError, ValueError):
            break  # an earlier mutation left nothing to change
    content = copy.SerializeToString()
    if generator.random() < 0.06:
        content = _damaged(content, generator)
    return content


def _damaged(content: bytes, generator: random.Random) -> bytes:
    damaged = bytearray(content)
    for _ in range(generator.randint(1, 3)):
        damaged[generator.randrange(len(damaged))] = generator.randrange(256)
    return bytes(damaged[: generator.choice((len(damaged), generator.randrange(len(damaged)) + 1))])


def _messages(message: Any) -> Iterator[Any]:
    """Yield a message and every message in it."""
    yield message
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for part in value if _is_repeated(field) else (value,):
                yield from _messages(part)


def _is_repeated(field: Any) -> bool:
    return bool(field.is_repeated) if hasattr(field, "is_repeated") else field.label == FieldDescriptor.LABEL_REPEATED


def _graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    return [message for message in _messages(model) if isinstance(message, onnx.GraphProto)]


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [message for message in _messages(model) if isinstance(message, onnx.NodeProto)]


def _names(model: onnx.ModelProto) -> list[str]:
    read = [name for node in _nodes(model) for name in (*node.input, *node.output)]
    return ["", "nowhere", *read, *(tensor.name for tensor in model.graph.initializer)]


def _scalar(field: Any, model: onnx.ModelProto, generator: random.Random) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return generator.choice(_names(model))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return generator.choice((b"", b"\x00", b"\xff\xfe\xd5", b"nearest", bytes(64)))
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return generator.choice(_FLOATS)
    if field.type == FieldDescriptor.TYPE_ENUM:
        return generator.choice(field.enum_type.values).number
    if field.type in (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_UINT32):
        return generator.choice([number for number in _INTS if 0 <= number < 2**31])
    return generator.choice(_INTS if field.type == FieldDescriptor.TYPE_INT64 else [n for n in _INTS if n >= 0])


def _change_field(model: onnx.ModelProto, generator: random.Random) -> None:
    """Change, remove, repeat or reorder one field of one message."""
    message = generator.choice(list(_messages(model)))
    present = [field for field, _ in message.ListFields()]
    field = generator.choice(present or list(message.DESCRIPTOR.fields))
    if generator.random() < 0.1:
        field = generator.choice(list(message.DESCRIPTOR.fields))
    if _is_repeated(field):
        _change_items(getattr(message, field.name), field, model, generator)
    elif field.type == FieldDescriptor.TYPE_MESSAGE or generator.random() < 0.2:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(field, model, generator))


def _change_items(items: Any, field: Any, model: onnx.ModelProto, generator: random.Random) -> None:
    is_message = field.type == FieldDescriptor.TYPE_MESSAGE
    action = generator.choice(("drop", "repeat", "change", "clear", "reverse"))
    if not len(items):
        if not is_message:
            items.append(_scalar(field, model, generator))
        return
    at = generator.randrange(len(items))
    if action == "drop":
        del items[at]
    elif action == "clear":
        del items[:]
    elif action == "repeat":
        items.append(items[at])
    elif action == "reverse":
        turned = list(items)[::-1]
        del items[:]
        items.extend(turned)
    elif is_message:
        items[at].CopyFrom(generator.choice(list(items)))
    else:
        items[at] = _scalar(field, model, generator)


def _change_operator(model: onnx.ModelProto, generator: random.Random) -> None:
    if not _nodes(model):
        return
    generator.choice(_nodes(model)).op_type = generator.choice(_OPERATORS)


def _rewire(model: onnx.ModelProto, generator: random.Random) -> None:
    node = generator.choice(_nodes(model))
    ports = node.input if generator.random() < 0.7 or not node.output else node.output
    if ports and generator.random() < 0.8:
        ports[generator.randrange(len(ports))] = generator.choice(_names(model))
    else:
        ports.append(generator.choice(_names(model)))


def _change_weight(model: onnx.ModelProto, generator: random.Random) -> None:
    """Give a weight other values, another shape, another type or another place."""
    stored = [tensor for tensor in model.graph.initializer if _array(tensor) is not None]
    if not stored:
        return
    tensor = generator.choice(stored)
    kind = generator.choice(("array", "array", "array", "text", "external"))
    if kind == "text":
        tensor.CopyFrom(helper.make_tensor(tensor.name, TensorProto.STRING, [1], [b"text"]))
    elif kind == "external":
        tensor.data_location = TensorProto.EXTERNAL
        tensor.ClearField("raw_data")
        entry = tensor.external_data.add()
        entry.key, entry.value = generator.choice(("location", "offset")), generator.choice(("w.bin", "../w", "-1"))
    else:
        array = _changed(np.array(_array(tensor)), generator)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _array(tensor: onnx.TensorProto) -> np.ndarray[Any, Any] | None:
    """Return the values; None if an earlier mutation damaged the tensor."""
    try:
        array = numpy_helper.to_array(tensor)
    except Exception:
        return None
    return array if array.dtype.kind in "fiub" else None


def _changed(array: np.ndarray[Any, Any], generator: random.Random) -> np.ndarray[Any, Any]:
    flat = array.reshape(-1)
    changes: dict[str, Callable[[], np.ndarray[Any, Any]]] = {
        "scalar": lambda: flat[0].reshape(()),
        "vector": lambda: flat[:1],
        "empty": lambda: flat[:0],
        "axis": lambda: array[None],
        "type": lambda: array.astype(generator.choice(("float16", "float64", "int8", "uint8", "int32", "bool"))),
        "all": lambda: np.full_like(array, generator.choice(_FLOATS)),
    }
    if not array.size:
        return array[None]
    if array.dtype.kind == "f" and generator.random() < 0.3:
        flat[generator.randrange(flat.size)] = generator.choice(_FLOATS)
        return array
    kinds = list(changes) if array.dtype.kind == "f" else list(changes)[:-1]
    return changes[generator.choice(kinds)]()


def _change_type(model: onnx.ModelProto, generator: random.Random) -> None:
    graph = generator.choice(_graphs(model))
    described = [*graph.input, *graph.output, *graph.value_info]
    if not described:
        return
    info = generator.choice(described)
    tensor = info.type.tensor_type
    kind = generator.choice(("type", "dim", "rank", "shape", "symbol"))
    if kind == "type":
        tensor.elem_type = generator.choice((0, 1, 2, 6, 7, 8, 9, 10, 11, 14, 16, 17, 21, 99))
    elif kind == "shape":
        tensor.ClearField("shape")
    elif kind == "rank" and tensor.shape.dim:
        del tensor.shape.dim[generator.randrange(len(tensor.shape.dim))]
    elif tensor.shape.dim:
        dim = generator.choice(tensor.shape.dim)
        if kind == "symbol":
            dim.dim_param = generator.choice(("N", "?", "-1", "a b", "unk__1"))
        else:
            dim.dim_value = generator.choice(_INTS)


def _change_versions(model: onnx.ModelProto, generator: random.Random) -> None:
    if generator.random() < 0.3:
        model.ir_version = generator.choice((0, 1, 3, 4, 7, 9, 10, 11, 13, 99))
    else:
        generator.choice(model.opset_import).version = generator.choice((0, 1, 6, 7, 9, 11, 13, 17, 18, 19, 21, 23, 99))


def _add_attribute(model: onnx.ModelProto, generator: random.Random) -> None:
    node = generator.choice(_nodes(model))
    name = generator.choice(("axis", "alpha", "kernel_shape", "group", "to", "value", "body", "perm", "mode", "axes"))
    values: tuple[Any, ...] = (
        1,
        -1,
        0,
        99,
        [1, 1],
        [0],
        2.0,
        [0.5],
        "x",
        ["a"],
        helper.make_tensor("t", 1, [1], [0.5]),
    )
    node.attribute.append(helper.make_attribute(name, generator.choice(values)))


def _recurse(model: onnx.ModelProto, generator: random.Random) -> None:
    """Add functions that call themselves, each other, or many others."""
    depth = generator.choice((1, 2, 40))
    domain = "recursive"
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    for index in range(depth):
        callee = f"F{(index + 1) % depth}" if depth < 40 else f"F{index + 1}"
        body = [
            helper.make_node(callee, ["a"], ["t"], domain=domain),
            helper.make_node(callee, ["t"], ["b"], domain=domain),
        ]
        if depth == 40 and index == depth - 1:
            body = [helper.make_node("Relu", ["a"], ["b"])]
        model.functions.append(helper.make_function(domain, f"F{index}", ["a"], ["b"], body, imports))
    model.opset_import.append(imports[1])
    model.graph.node.append(helper.make_node("F0", [model.graph.input[0].name], ["recursion"], domain=domain))
    if generator.random() < 0.5:
        model.graph.output.append(helper.make_empty_tensor_value_info("recursion"))


_MUTATIONS: tuple[Callable[[onnx.ModelProto, random.Random], None], ...] = (
    *[_change_field] * 8,
    *[_rewire] * 2,
    *[_change_weight] * 3,
    *[_change_type] * 2,
    _change_operator,
    _change_versions,
    _add_attribute,
    _add_attribute,
    _recurse,
)
