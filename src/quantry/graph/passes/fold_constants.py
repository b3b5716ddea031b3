"""Replace nodes by their results if these are known before the model runs."""

from collections.abc import Iterable

import numpy as np
import onnx
import onnx_ir as ir

from quantry.graph.edit import constant_of
from quantry.graph.operators import operators_where
from quantry.graph.shapes.known_values import KnownValues, numbers_of
from quantry.graph.weights import initializer_of, renamed, tensor_from_array

GROWTH_LIMIT_BYTES = 1_000_000
"""A fold may enlarge the file by at most this much; a Tile of a small weight must not become a large one."""

_SIZE_TYPES = (ir.DataType.INT64, ir.DataType.INT32)

_FOLDABLE = frozenset(operators_where(lambda row: row.foldable))


def fold_constants(model: ir.Model) -> tuple[str, ...]:
    """Turn Constant nodes, and nodes with only constant inputs, into initializers; use static shapes.

    A node stays if its result is a graph output, if the file would grow by more than a megabyte, or if its operator is
    random, control flow, or not in the list of those with a trusted reference implementation.
    """
    lifted = folded = 0
    known = KnownValues()
    for graph in model.graphs():
        for node in graph:
            known.follow(node)
            if node.domain != "" or any(value.is_graph_output() for value in node.outputs):
                continue
            if node.op_type == "Constant":
                lifted += _lift(graph, node)
            elif node.op_type in _FOLDABLE:
                folded += _fold_sizes(graph, node, known) or _fold(model, graph, node)
    counts = ((lifted, "Constant nodes into initializers"), (folded, "nodes with constant inputs"))
    return tuple(f"folded {count} {what}" for count, what in counts if count)


def _lift(graph: ir.Graph, node: ir.Node) -> bool:
    tensor = _constant_tensor(node)
    if tensor is None:
        return False
    _replace_outputs(graph, node, (tensor,))
    return True


def _constant_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    """Return the tensor of a Constant node, from any attribute; None for strings, sparse tensors and references."""
    # onnxruntime ignores attributes that the operator does not have.
    attribute = next((one for one in node.attributes.values() if one.name.startswith("value")), None)
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


def _fold_sizes(graph: ir.Graph, node: ir.Node, known: KnownValues) -> bool:
    """Fold a node that selects or computes lengths of axes, if these are known even though others are not.

    The channels of a tensor ``(batch, 3, 32, 32)`` are constant even if its Shape is not.
    """
    output = node.outputs[0]
    numbers = numbers_of(known.of(output))
    if numbers is None or output.dtype not in _SIZE_TYPES or output.shape is None:
        return False
    shape = [] if len(output.shape) == 0 else [len(numbers)]
    _replace_outputs(graph, node, (ir.tensor(np.array(numbers, output.dtype.numpy()).reshape(shape)),))
    return True


def _fold(model: ir.Model, graph: ir.Graph, node: ir.Node) -> bool:
    inputs = [constant_of(value) for value in node.inputs]
    if any(value is not None and array is None for value, array in zip(node.inputs, inputs, strict=True)):
        return False
    if not _grows_little(node):
        return False
    results = _evaluate(model, node, inputs)
    if results is None:
        return False
    _replace_outputs(graph, node, results)
    return True


def _grows_little(node: ir.Node) -> bool:
    """Return whether the results, according to shape inference, add at most the limit to the size of the inputs."""
    freed = sum(
        value.const_value.nbytes
        for value in node.inputs
        if value is not None and value.const_value is not None and len(value.uses()) == 1
    )
    sizes = [_known_bytes(value) for value in node.outputs if value.name]
    return all(size is not None for size in sizes) and sum(size or 0 for size in sizes) - freed <= GROWTH_LIMIT_BYTES


def _known_bytes(value: ir.Value) -> int | None:
    if value.shape is None or value.dtype is None or value.dtype == ir.DataType.STRING or not value.shape.is_static():
        return None
    return int(np.prod(value.shape.numpy(), dtype=object) * value.dtype.itemsize)


def _evaluate(model: ir.Model, node: ir.Node, inputs: list[np.ndarray | None]) -> list[ir.TensorProtocol] | None:
    """Run one node with onnx's reference implementation; None if that fails."""
    # Imported here because it is large, and most models have nothing to fold.
    from onnx.reference import ReferenceEvaluator

    proto = ir.serde.serialize_node(node)
    feeds = {name: array for name, array in zip(proto.input, inputs, strict=True) if array is not None}
    wanted = [name for name in proto.output if name]
    unknown = onnx.TypeProto()
    graph = onnx.helper.make_graph(
        [proto],
        "one_node",
        [onnx.helper.make_value_info(name, unknown) for name in feeds],
        [onnx.helper.make_value_info(name, unknown) for name in wanted],
    )
    imports = [onnx.helper.make_opsetid("", model.opset_imports[""])]
    try:
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=imports)).run(None, feeds)
    except Exception:  # the reference implementation raises arbitrary exceptions; the node stays
        return None
    return [tensor_from_array(np.asarray(result), name) for name, result in zip(wanted, results, strict=True)]


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
