"""Replace nodes by their results if these are known before the model runs."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnx
import onnx_ir as ir

from quantry.facts.operators import Family, of_family, operators_where
from quantry.graph.edit import constant_of
from quantry.graph.shapes.known_values import KnownValues, numbers_of
from quantry.graph.weights import initializer_of, renamed, tensor_from_array
from quantry.notes import Note, NoteKind

GROWTH_LIMIT_BYTES = 1_000_000
"""A fold may enlarge the file by at most this much; a Tile of a small weight must not become a large one."""

_SIZE_TYPES = (ir.DataType.INT64, ir.DataType.INT32)

_FOLDABLE = frozenset(operators_where(lambda row: row.foldable))

_NOT_CONSTANT = frozenset(of_family(Family.RANDOM, Family.CONTROL_FLOW))

Runner = Callable[[bytes, Mapping[str, np.ndarray]], list[np.ndarray] | None]
"""Runs a serialized model on named arrays; returns its outputs, or None if it cannot run it."""


def fold_constants(model: ir.Model, run: Runner | None = None) -> tuple[Note, ...]:
    """Turn Constant nodes, and nodes with only constant inputs, into initializers; use static shapes.

    A node stays if its result is a graph output, if the file would grow by more than a megabyte, or if its operator is
    random or control flow. Operators without a trusted reference implementation are computed by ``run``: weights
    that are computed from constants (weight standardization, weight and spectral normalization) become constants.

    Args:
        model: The model; it is changed.
        run: Computes the other operators; without it they stay.
    """
    lifted = folded = 0
    sizes = KnownValues()
    for graph in model.graphs():
        for node in graph:
            sizes.follow(node)
            if node.domain != "" or any(value.is_graph_output() for value in node.outputs):
                continue
            if node.op_type == "Constant":
                lifted += _lift(graph, node)
            elif node.op_type in _FOLDABLE:
                folded += _fold_sizes(graph, node, sizes) or _fold(model, graph, node, None)
            elif run is not None and node.op_type not in _NOT_CONSTANT:
                folded += _fold(model, graph, node, run)
    notes = (
        Note.of("folded {count} Constant nodes into initializers", NoteKind.GRAPH, count=lifted),
        Note.of("folded {count} nodes with constant inputs", NoteKind.GRAPH, count=folded),
    )
    return tuple(note for note in notes if note.value("count"))


def _lift(graph: ir.Graph, node: ir.Node) -> bool:
    tensor = _constant_tensor(node)
    if tensor is None:
        return False
    _replace_outputs(graph, node, (tensor,))
    return True


def _constant_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    """Return the tensor of a Constant node, from any attribute; None for strings, sparse tensors and references."""
    # onnxruntime ignores attributes that the operator does not have.
    attribute = next((candidate for candidate in node.attributes.values() if candidate.name.startswith("value")), None)
    if attribute is None or attribute.is_ref():
        return None
    match attribute.name:
        case "value":
            tensor = attribute.as_tensor()
            return None if tensor.dtype == ir.DataType.STRING else tensor
        case "value_int" | "value_ints":
            return ir.tensor(np.array(attribute.value, np.int64))
        case "value_float" | "value_floats":
            return ir.tensor(np.array(attribute.value, np.float32))
        case _:
            return None


def _fold_sizes(graph: ir.Graph, node: ir.Node, sizes: KnownValues) -> bool:
    """Fold a node that selects or computes lengths of axes, if these are known even though others are not.

    The channels of a tensor ``(batch, 3, 32, 32)`` are constant even if its Shape is not.
    """
    output = node.outputs[0]
    numbers = numbers_of(sizes.of(output))
    if numbers is None or output.dtype not in _SIZE_TYPES or output.shape is None:
        return False
    shape = [] if len(output.shape) == 0 else [len(numbers)]
    _replace_outputs(graph, node, (ir.tensor(np.array(numbers, output.dtype.numpy()).reshape(shape)),))
    return True


def _fold(model: ir.Model, graph: ir.Graph, node: ir.Node, run: Runner | None) -> bool:
    inputs = [constant_of(value) for value in node.inputs]
    if run is not None and not any(array is not None for array in inputs):
        return False
    if any(value is not None and array is None for value, array in zip(node.inputs, inputs, strict=True)):
        return False
    if not _grows_little(node):
        return False
    results = _evaluate(model, node, inputs, run)
    if results is None:
        return False
    _replace_outputs(graph, node, results)
    return True


def _grows_little(node: ir.Node) -> bool:
    """Return whether the results, according to shape inference, add at most the limit to the size of the inputs."""
    freed = sum(
        value.const_value.nbytes
        for value in node.inputs
        if value is not None and value.const_value is not None and _will_vanish(value)
    )
    sizes = [_known_bytes(value) for value in node.outputs if value.name]
    return all(size is not None for size in sizes) and sum(size or 0 for size in sizes) - freed <= GROWTH_LIMIT_BYTES


def _will_vanish(value: ir.Value) -> bool:
    """Return whether nothing reads a constant except nodes that can be folded as well."""
    readers = {use.node for use in value.uses()}
    return len(readers) == 1 or all(
        node.op_type not in _NOT_CONSTANT
        and all(operand is None or operand.is_initializer() for operand in node.inputs)
        for node in readers
    )


def _known_bytes(value: ir.Value) -> int | None:
    if value.shape is None or value.dtype is None or value.dtype == ir.DataType.STRING or not value.shape.is_static():
        return None
    return int(np.prod(value.shape.numpy(), dtype=object) * value.dtype.itemsize)


def _evaluate(
    model: ir.Model, node: ir.Node, inputs: list[np.ndarray | None], run: Runner | None
) -> list[ir.TensorProtocol] | None:
    """Run one node with onnx's reference implementation, or with the given function; None if that fails."""
    proto = ir.serde.serialize_node(node)
    feeds = {name: array for name, array in zip(proto.input, inputs, strict=True) if array is not None}
    names = [name for name in proto.output if name]
    unknown = onnx.TypeProto()
    described = [
        unknown if run is None else onnx.helper.make_tensor_type_proto(_element_type(array), array.shape)
        for array in feeds.values()
    ]
    graph = onnx.helper.make_graph(
        [proto],
        "one_node",
        [onnx.helper.make_value_info(name, kind) for name, kind in zip(feeds, described, strict=True)],
        [onnx.helper.make_value_info(name, unknown) for name in names],
    )
    imports = [onnx.helper.make_opsetid("", model.opset_imports[""])]
    alone = onnx.helper.make_model(graph, opset_imports=imports, ir_version=8)
    results = _reference(alone, feeds) if run is None else run(alone.SerializeToString(), feeds)
    if results is None:
        return None
    return [tensor_from_array(np.asarray(result), name) for name, result in zip(names, results, strict=True)]


def _element_type(array: np.ndarray) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))


def _reference(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
    # Imported here because it is large, and most models have nothing to fold.
    from onnx.reference import ReferenceEvaluator

    try:
        with np.errstate(all="ignore"):
            return list(ReferenceEvaluator(model).run(None, dict(feeds)))
    except Exception:  # the reference implementation raises arbitrary exceptions; the node stays
        return None


def _replace_outputs(graph: ir.Graph, node: ir.Node, results: Iterable[ir.TensorProtocol]) -> None:
    """Replace a node's outputs by initializers with the same names."""
    outputs = [value for value in node.outputs if value.name]
    for output, tensor in zip(outputs, results, strict=True):
        name = output.name
        assert name is not None
        value = initializer_of(renamed(tensor, name))
        output.replace_all_uses_with(value)
        output.name = None
        graph.register_initializer(value)
    graph.remove(node, safe=True)
