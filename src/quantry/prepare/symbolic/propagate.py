"""ONNX's shape inference for a single node."""

import onnx
import onnx_ir as ir

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)

_SMALL_BYTES = 4096  # shapes, axes and the like, whose values decide the shape of a result


def inferred_shapes(node: ir.Node, opset: int) -> list[ir.Shape | None]:
    """Return the shapes of a standard node's outputs as they follow from its inputs; None where nothing follows."""
    nothing: list[ir.Shape | None] = [None] * len(node.outputs)
    if node.domain != "" or any(attribute.type in _GRAPHS for attribute in node.attributes.values()):
        return nothing
    inputs = [value for value in node.inputs if value is not None]
    if any(value.type is None or value.shape is None for value in inputs):
        return nothing
    try:
        types = onnx.shape_inference.infer_node_outputs(
            onnx.defs.get_schema(node.op_type, opset),
            ir.serde.serialize_node(node),
            {value.name: ir.serde.serialize_value(value).type for value in inputs},
            {
                value.name: ir.serde.serialize_tensor(tensor)
                for value in inputs
                if (tensor := _small_constant(value)) is not None
            },
            opset_imports=[onnx.helper.make_opsetid("", opset)],
        )
    except (onnx.shape_inference.InferenceError, onnx.defs.SchemaError, RuntimeError, ValueError):
        return nothing
    found = [types.get(output.name) for output in node.outputs]
    return [None if proto is None else ir.serde.deserialize_type_proto_for_shape(proto) for proto in found]


def _small_constant(value: ir.Value) -> ir.TensorProtocol | None:
    tensor = value.const_value if value.is_initializer() else None
    return tensor if tensor is not None and tensor.nbytes <= _SMALL_BYTES else None
