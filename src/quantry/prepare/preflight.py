"""Check a loaded model before any work: each error says what must hold, what was found, and where.

The order is from the whole model to its parts, so that the first error is the most helpful: versions, operators, names,
and finally weights, which must not be NaN, and infinite only where that has a meaning.
"""

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir

from quantry.data.random_data import random_sample
from quantry.errors import ModelError, UserError, nearest_spelling
from quantry.facts.operators import Family, Masking, operators_where
from quantry.graph.float_model import input_signatures
from quantry.graph.weights import not_finite
from quantry.notes import Note, NoteKind
from quantry.runtime.sessions import run_session, simulation_session

_LIMITS_AND_MASKS = operators_where(
    lambda row: row.masking in (Masking.CARRIES, Masking.LIMITS) or row.family is Family.CONTROL_FLOW
)
"""Operators for which an infinite constant is a limit or an attention mask instead of a damaged weight."""


def check_finite_weights(model: ir.Model, label: str) -> tuple[Note, ...]:
    """Check every float constant of the model; weights on disk are read one at a time and released.

    Returns:
        A note for each constant with infinite values where that is usual, such as an attention mask, or with NaN or
        infinite values that no result depends on, such as the row of an unused token.

    Raises:
        ModelError: A constant contains NaN, or a weight contains infinity, and results are not finite either.
    """
    notes = []
    works: bool | None = None
    for value, tensor in _float_constants(model):
        nans, infinities = not_finite(tensor)
        if not nans and not infinities:
            continue
        if not nans and all(node.op_type in _LIMITS_AND_MASKS for node, _ in value.uses()):
            message = "constant {name} has {count} infinite values; it is used as a limit or a mask"
            notes.append(Note.of(message, name=value.name or "", count=infinities))
            continue
        counts = f"{nans} NaN and {infinities} infinite of {tensor.size} values"
        works = _has_finite_results(model) if works is None else works
        if not works:
            raise ModelError(f"every weight must be finite, got {counts}; tensor {value.name!r} in {label}")
        message = "constant {name} has {counts}, although results are finite; what reads it stays float"
        notes.append(Note.of(message, name=value.name or "", counts=counts))
    return tuple(notes)


def _has_finite_results(model: ir.Model) -> bool:
    """Whether one run of the model on random inputs gives finite outputs."""
    try:
        outputs = run_session(simulation_session(model), random_sample(input_signatures(model)))
    except UserError:
        return False
    floats = [output for output in outputs.values() if output.dtype.kind == "f"]
    return bool(floats) and all(bool(np.isfinite(output).all()) for output in floats)


def _float_constants(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None and value.const_value.dtype.is_floating_point():
                yield value, value.const_value
        for node in graph:
            attribute = node.attributes.get("value") if node.op_type == "Constant" else None
            if attribute is not None and not attribute.is_ref() and attribute.as_tensor().dtype.is_floating_point():
                yield node.outputs[0], attribute.as_tensor()


OPSETS = range(7, 27)
"""Versions of the standard operator set that onnxruntime supports."""

IR_VERSIONS = range(3, 14)
"""Versions of the file format that onnxruntime loads."""

KNOWN_DOMAINS = frozenset({"", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"})
"""Operator domains that stock onnxruntime supports; other operators need a model-local function."""

_RUNTIME_OPERATORS = frozenset(
    {
        *("LayerNormalization", "SimplifiedLayerNormalization", "Affine", "Crop", "DynamicSlice", "GivenTensorFill"),
        *("ImageScaler", "MeanVarianceNormalization", "ParametricSoftplus", "Scale", "ScaledTanh", "ThresholdedRelu"),
    }
)
"""Operators that onnxruntime defines in the standard domain for every opset, although ONNX does not."""

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


def check_model(model: ir.Model, label: str) -> tuple[Note, ...]:
    """Check that a model can be prepared.

    Args:
        model: The loaded model.
        label: Name of the model in messages.

    Returns:
        Notes for the user: dynamic axes, infinite constants.

    Raises:
        ModelError: The model cannot be used.
    """
    if not len(model.graph):
        raise ModelError(f"the model must have nodes, got an empty graph {model.graph.name!r}; in {label}")
    if not model.graph.outputs:
        raise ModelError(f"the model must have outputs, got none; in graph {model.graph.name!r} of {label}")
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
        location = f"node {node.name or node.op_type!r} in {label}"
        if _is_quantized(node):
            raise ModelError(
                f"the model must be a float model, got one that is already quantized ({node.op_type}); "
                f"pass the original float model; {location}"
            )
        if node.domain not in model.opset_imports:
            raise ModelError(
                f"the operator set of every operator must be imported, got {node.op_type} of {node.domain!r} and the "
                f"imports {dict(model.opset_imports)}; {location}"
            )
        if node.op_identifier() in model.functions:
            continue
        if node.domain not in KNOWN_DOMAINS:
            raise ModelError(
                f"an operator outside the domains that onnxruntime supports must have a model-local function, got "
                f"{node.domain}.{node.op_type} without one; {location}"
            )
        if node.domain == "":
            _check_standard_operator(node, model.opset_imports[""], location)
        _check_conditions(node, location)


def _all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from ir.traversal.RecursiveGraphIterator(model.graph)
    for function in model.functions.values():
        yield from ir.traversal.RecursiveGraphIterator(function)


def _is_quantized(node: ir.Node) -> bool:
    name = node.op_type
    return name in _INTEGER_OPERATORS or name.startswith("QLinear") or name.casefold().endswith("quantizelinear")


def _check_standard_operator(node: ir.Node, opset: int, location: str) -> None:
    try:
        schema = onnx.defs.get_schema(node.op_type, opset)
    except onnx.defs.SchemaError as error:
        if node.op_type in _RUNTIME_OPERATORS:
            return
        names = {schema.name for schema in onnx.defs.get_all_schemas()}
        reason = "which only later opsets have" if node.op_type in names else "which no opset has"
        hint = "" if node.op_type in names else nearest_spelling(node.op_type, sorted(names))
        raise ModelError(
            f"a standard operator must exist in opset {opset}, got {node.op_type!r}, {reason}{hint}; {location}"
        ) from error
    # A deprecated operator with a definition in terms of others (GroupNormalization of opset 18) can still be run.
    if schema.deprecated and not (schema.has_function or schema.has_context_dependent_function):
        raise ModelError(
            f"a standard operator must exist in opset {opset}, got {node.op_type!r}, which was removed before; "
            f"{location}"
        )


def _check_conditions(node: ir.Node, location: str) -> None:
    """Check that what If and Loop decide by is one value: onnxruntime reads the first one even where there is none."""
    if node.domain != "" or node.op_type not in ("If", "Loop"):
        return
    for value in filter(None, node.inputs[: 1 if node.op_type == "If" else 2]):
        tensor = value.const_value
        if tensor is not None and tensor.size != 1:
            raise ModelError(
                f"what {node.op_type} decides by must be one value, got {value.name!r} with {tensor.size}; {location}"
            )


def _check_names(model: ir.Model, label: str) -> None:
    """Check that every tensor that is read is defined."""
    tensor_names = sorted({value.name for node in _all_nodes(model) for value in node.outputs if value.name})
    for node in _all_nodes(model):
        for value in node.inputs:
            if value is not None and not _is_defined(value):
                hint = nearest_spelling(value.name or "", tensor_names)
                location = f"input of node {node.name or node.op_type!r} in {label}"
                raise ModelError(f"every tensor that is read must be defined, got {value.name!r}{hint}; {location}")
    for graph in model.graphs():
        for value in graph.outputs:
            if not _is_defined(value):
                raise ModelError(
                    f"every output must be computed, got {value.name!r}"
                    f"{nearest_spelling(value.name or '', tensor_names)}; "
                    f"output of graph {graph.name!r} in {label}"
                )


def _is_defined(value: ir.Value) -> bool:
    return value.producer() is not None or value.is_graph_input() or value.is_initializer()


def _dynamic_axes(model: ir.Model) -> tuple[Note, ...]:
    described = [
        f"{value.name}[{index}]" + (f"={dim.value}" if dim.value else "")
        for value in model.graph.inputs
        if value.name not in model.graph.initializers and value.shape is not None
        for index, dim in enumerate(value.shape)
        if isinstance(dim, ir.SymbolicDim)
    ]
    message = "axes of the inputs without a fixed length: {axes}"
    return (Note.of(message, NoteKind.GRAPH, axes=", ".join(described)),) if described else ()
