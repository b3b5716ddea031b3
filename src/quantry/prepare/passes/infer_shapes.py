"""Infers type and shape of every tensor."""

import onnx
import onnx_ir as ir

from quantry.prepare.weights import structure_proto


def infer_shapes(model: ir.Model) -> tuple[str, ...]:
    """Infer types and shapes with ONNX, following values of shapes through the graph.

    Annotations that the file brings are hints: where inference knows better they are replaced, where it knows nothing
    they stay.
    """
    proto, _ = structure_proto(model)
    _forget_annotations(proto.graph)
    inferred = ir.serde.deserialize_model(
        onnx.shape_inference.infer_shapes(proto, check_type=False, strict_mode=False, data_prop=True)
    )
    for graph, known in zip(model.graphs(), inferred.graphs(), strict=True):
        found = {value.name: value for node in known for value in node.outputs}
        for value in (value for node in graph for value in node.outputs if value.name in found):
            value.shape = merged_shape(found[value.name].shape, value.shape)
            value.type = found[value.name].type or value.type
    return ()


def _forget_annotations(graph: onnx.GraphProto) -> None:
    del graph.value_info[:]
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                del attribute.g.value_info[:]


def merged_shape(inferred: ir.Shape | None, annotated: ir.Shape | None) -> ir.Shape | None:
    """Return what is known of a shape: inferred lengths first, the file's annotation where inference has none."""
    if inferred is None:
        return annotated
    if annotated is None or len(annotated) != len(inferred):
        return inferred
    return ir.Shape([_merged_dim(one, other) for one, other in zip(inferred, annotated, strict=True)])


def _merged_dim(inferred: int | ir.SymbolicDim, annotated: int | ir.SymbolicDim) -> int | ir.SymbolicDim:
    if isinstance(inferred, int):
        return inferred
    if isinstance(annotated, int):
        return annotated
    return inferred if inferred.value is not None and not inferred.value.startswith("unk__") else annotated
