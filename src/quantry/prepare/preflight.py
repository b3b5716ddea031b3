"""Checks of a loaded model before any work: each failure says what must hold, what was given, and where.

The order is from the whole to the part, so that the first message is the one that helps: versions, then operators,
then names, then numbers.
"""

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from quantry.errors import ModelError, nearest_spelling
from quantry.prepare.finite_weights import check_finite_weights

OPSETS = range(7, 27)
"""Versions of the standard operator set that onnxruntime runs."""

IR_VERSIONS = range(3, 14)
"""Versions of the file format that onnxruntime loads."""

KNOWN_DOMAINS = frozenset({"", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"})
"""Operator domains that a stock onnxruntime knows; any other needs a model-local function for each operator."""

_INTEGER_OPERATORS = frozenset(
    {
        "BFPQuantizeDequantize",
        "ConvInteger",
        "DynamicQuantizeLSTM",
        "DynamicQuantizeMatMul",
        "FixNeuron",
        "MXQuantizeDequantize",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "MatMulNBits",
        "QAttention",
        "QGemm",
        "QMoE",
    }
)


def check_model(model: ir.Model, label: str) -> tuple[str, ...]:
    """Check that a model can be prepared.

    Args:
        model: The model as loaded.
        label: What messages call it.

    Returns:
        Notes for the user: axes without a fixed length, infinite constants.

    Raises:
        ModelError: If something about the model makes it unusable as it is.
    """
    if not len(model.graph):
        raise ModelError(f"the model must have nodes, got an empty graph {model.graph.name!r}; in {label}")
    _check_versions(model, label)
    _check_operators(model, label)
    _check_names(model, label)
    return (*_dynamic_axes(model), *check_finite_weights(model, label))


def _check_versions(model: ir.Model, label: str) -> None:
    if model.ir_version not in IR_VERSIONS:
        raise ModelError(
            f"the IR version must be {IR_VERSIONS[0]} to {IR_VERSIONS[-1]}, got {model.ir_version}; "
            f"export the model again with ir_version 10; in {label}"
        )
    opset = model.opset_imports.get("")
    if opset is None:
        raise ModelError(
            f"the model must import the standard operator set, got {dict(model.opset_imports)}; opset_import of {label}"
        )
    if opset not in OPSETS:
        raise ModelError(
            f"the opset must be {OPSETS[0]} to {OPSETS[-1]}, which onnxruntime runs, got {opset}; "
            f"export the model again with opset 17 or so; opset_import of {label}"
        )


def _check_operators(model: ir.Model, label: str) -> None:
    for node in _all_nodes(model):
        where = f"node {node.name or node.op_type!r} in {label}"
        if _is_quantized(node):
            raise ModelError(
                f"the model must be a float model, got one that is already quantized ({node.op_type}); "
                f"pass the model it was made from; {where}"
            )
        if node.domain not in model.opset_imports:
            raise ModelError(
                f"the operator set of every operator must be imported, got {node.op_type} of {node.domain!r} and the "
                f"imports {dict(model.opset_imports)}; {where}"
            )
        if node.op_identifier() in model.functions:
            continue
        if node.domain not in KNOWN_DOMAINS:
            raise ModelError(
                f"an operator outside the domains that onnxruntime knows must come with a model-local function, got "
                f"{node.domain}.{node.op_type} without one; {where}"
            )
        if node.domain == "":
            _check_standard_operator(node, model.opset_imports[""], where)


def _all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from ir.traversal.RecursiveGraphIterator(model.graph)
    for function in model.functions.values():
        yield from ir.traversal.RecursiveGraphIterator(function)


def _is_quantized(node: ir.Node) -> bool:
    name = node.op_type
    return name in _INTEGER_OPERATORS or name.startswith("QLinear") or name.casefold().endswith("quantizelinear")


def _check_standard_operator(node: ir.Node, opset: int, where: str) -> None:
    try:
        schema = onnx.defs.get_schema(node.op_type, opset)
    except onnx.defs.SchemaError as error:
        names = {schema.name for schema in onnx.defs.get_all_schemas()}
        reason = "which only later opsets have" if node.op_type in names else "which no opset has"
        hint = "" if node.op_type in names else nearest_spelling(node.op_type, sorted(names))
        raise ModelError(
            f"a standard operator must exist in opset {opset}, got {node.op_type!r}, {reason}{hint}; {where}"
        ) from error
    # A deprecated operator that has a definition in others (GroupNormalization of opset 18) can still be run.
    if schema.deprecated and not (schema.has_function or schema.has_context_dependent_function):
        raise ModelError(
            f"a standard operator must exist in opset {opset}, got {node.op_type!r}, which was removed before; {where}"
        )


def _check_names(model: ir.Model, label: str) -> None:
    """Check that every tensor that is read is defined somewhere."""
    known = sorted({value.name for node in _all_nodes(model) for value in node.outputs if value.name})
    for node in _all_nodes(model):
        for value in node.inputs:
            if value is not None and not _is_defined(value):
                hint = nearest_spelling(value.name or "", known)
                where = f"input of node {node.name or node.op_type!r} in {label}"
                raise ModelError(f"every tensor that is read must be defined, got {value.name!r}{hint}; {where}")
    for graph in model.graphs():
        for value in graph.outputs:
            if not _is_defined(value):
                raise ModelError(
                    f"every output must be computed, got {value.name!r}{nearest_spelling(value.name or '', known)}; "
                    f"output of graph {graph.name!r} in {label}"
                )


def _is_defined(value: ir.Value) -> bool:
    return value.producer() is not None or value.is_graph_input() or value.is_initializer()


def _dynamic_axes(model: ir.Model) -> tuple[str, ...]:
    described = [
        f"{value.name}[{index}]" + (f"={dim.value}" if dim.value else "")
        for value in model.graph.inputs
        if value.name not in model.graph.initializers and value.shape is not None
        for index, dim in enumerate(value.shape)
        if isinstance(dim, ir.SymbolicDim)
    ]
    return (f"axes of the inputs without a fixed length: {', '.join(described)}",) if described else ()
