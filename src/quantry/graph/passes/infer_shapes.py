"""Infer type and shape of every tensor."""

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from quantry.graph.shapes.solve_shapes import solve_shapes
from quantry.graph.weights import structure_proto
from quantry.notes import Note

_TYPE_OF_INPUT = {
    "Attention": 0,
    "BiasGelu": 0,
    "BiasSplitGelu": 0,
    "EmbedLayerNormalization": 2,
    "FastGelu": 0,
    "FusedMatMul": 0,
    "Gelu": 0,
    "GroupQueryAttention": 0,
    "MatMulNBits": 0,
    "MultiHeadAttention": 0,
    "QuickGelu": 0,
    "RotaryEmbedding": 0,
    "SkipLayerNormalization": 0,
    "SkipSimplifiedLayerNormalization": 0,
}
"""Operators of com.microsoft, unknown to ONNX's inference, whose first output has the type of an input."""

_ROUNDS = 4  # a second round carries shapes into subgraphs and functions, a third past annotated custom operators


def infer_shapes(model: ir.Model) -> tuple[Note, ...]:
    """Infer types and shapes: operators by ONNX's rules, values of shapes by our own.

    ONNX can follow the values of shapes too (``data_prop``), but it confuses tensors of two axes with tensors of one,
    and ignores casts to bool; a wrong shape would be folded into the model.

    Annotations in the file are hints: they are replaced where inference knows better, and kept where it knows nothing.
    Unknown axes have no name.
    """
    hints: frozenset[str] = frozenset()
    for _ in range(_ROUNDS):
        opaque = _infer(model, hints)
        solved = solve_shapes(model)
        if opaque == hints and not solved:
            break
        hints = opaque | solved
    return ()


def _infer(model: ir.Model, hints: frozenset[str]) -> frozenset[str]:
    """Run ONNX's inference once.

    Args:
        model: The model; types and shapes of its values are updated.
        hints: Names of tensors whose shape is taken from the model's annotation.

    Returns:
        Names of tensors whose only description is their annotation.
    """
    proto, _ = structure_proto(model)
    symbols = set(_symbols(model, hints))
    _forget_annotations(proto.graph, hints)
    try:
        inferred = ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(proto))
    except onnx.shape_inference.InferenceError:
        # Even in non-strict mode, inference fails for some valid graphs; the annotations must do.
        return hints
    only_annotated: set[str] = set()
    for graph, inferred_graph in zip(model.graphs(), inferred.graphs(), strict=True):
        for node, inferred_node in zip(graph, inferred_graph, strict=True):
            if _is_opaque(model, inferred_node):
                only_annotated.update(value.name for value in node.outputs if value.name and value.shape is not None)
            if node.domain == "com.microsoft" and node.op_type in _TYPE_OF_INPUT:
                only_annotated |= _typed_by_input(node)
            # Outputs that are omitted at the end get lost on the way.
            for value, result in zip(node.outputs, inferred_node.outputs, strict=False):
                value.shape = _merged_shape(result.shape, value.shape, symbols)
                value.type = result.type or value.type
    return hints | only_annotated


def _typed_by_input(node: ir.Node) -> set[str]:
    """Give the first output of a node the type of an input and return the name if it has a type."""
    source, output = node.inputs[_TYPE_OF_INPUT[node.op_type]], node.outputs[0]
    if output.type is None and source is not None and source.type is not None:
        output.type = source.type
    return {output.name} if output.type is not None and output.name else set()


def _is_opaque(model: ir.Model, node: ir.Node) -> bool:
    """Return whether inference does not know an operator, so that only annotations describe its outputs."""
    unknown = any(output.name and output.shape is None for output in node.outputs)
    foreign = node.domain != "" and node.op_identifier() not in model.functions
    return unknown and (foreign or all(value is None or value.shape is not None for value in node.inputs))


def _symbols(model: ir.Model, hints: frozenset[str]) -> Iterator[str]:
    """Yield the names of axes that have a meaning; ONNX invents others for unknown axes."""
    for graph in model.graphs():
        hinted = (value for node in graph for value in node.outputs if value.name in hints)
        for value in (*graph.inputs, *hinted):
            yield from (dim.value for dim in value.shape or () if isinstance(dim, ir.SymbolicDim) and dim.value)


def _forget_annotations(graph: onnx.GraphProto, hints: frozenset[str]) -> None:
    remaining = [info for info in graph.value_info if info.name in hints]
    del graph.value_info[:]
    graph.value_info.extend(remaining)
    for output in graph.output:
        if output.name not in hints and output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    for node in graph.node:
        for attribute in node.attribute:
            for subgraph in (attribute.g, *attribute.graphs):
                _forget_annotations(subgraph, hints)


def _merged_shape(inferred: ir.Shape | None, annotated: ir.Shape | None, symbols: set[str]) -> ir.Shape | None:
    """Return what is known of a shape: inferred lengths first, else the file's annotation."""
    if inferred is None:
        return annotated
    if annotated is None or len(annotated) != len(inferred):
        annotated = ir.Shape([None] * len(inferred))
    return ir.Shape(
        [_merged_dim(computed, declared, symbols) for computed, declared in zip(inferred, annotated, strict=True)]
    )


def _merged_dim(
    inferred: int | ir.SymbolicDim, annotated: int | ir.SymbolicDim, symbols: set[str]
) -> int | ir.SymbolicDim:
    return inferred if isinstance(inferred, int) or inferred.value in symbols else annotated
