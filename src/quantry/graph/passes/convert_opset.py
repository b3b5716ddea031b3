"""Raise the standard operator set of a model, with fixes for what onnx's version converter gets wrong.

Each was found by comparing outputs in onnxruntime before and after a conversion:

* Upsample, and Resize of opset 10, sample at ``x / scale``. From opset 11 on, Resize has the attribute
  ``coordinate_transformation_mode`` with another default, and the converter does not set it.
* Hardmax up to opset 12 works on the tensor flattened to two axes, from 13 on along one axis. The converter rewrites
  Softmax and LogSoftmax accordingly, but not Hardmax.
* GroupNormalization of opset 18 has one scale per group, that of 21 one per channel. The converter does not expand it.
"""

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from quantry.errors import ModelError
from quantry.facts.operators import Family, facts
from quantry.graph.edit import FreshNames, constant_of, int_of, string_of
from quantry.graph.passes.tidy import name_nodes
from quantry.graph.weights import new_initializer, restore_weights, structure_proto


def repair_before(model: ir.Model, opset: int) -> None:
    """Rewrite nodes in place that the converter would convert wrongly."""
    current = model.opset_imports[""]
    names = FreshNames(model)
    for node in tuple(ir.traversal.RecursiveGraphIterator(model.graph)):
        if node.domain != "":
            continue
        if node.op_type == "Hardmax" and current < 13 <= opset:
            _flatten_hardmax(node, names)
        elif node.op_type == "GroupNormalization" and current < 21 <= opset:
            _expand_group_norm(node, names)


def old_resizes(model: ir.Model, opset: int) -> dict[str, str]:
    """Return the outputs of nodes that sample as Resize did before opset 11, with the rounding that "nearest" needs.

    Nodes are identified by their output, because the converter creates a new node for an Upsample.
    """
    if not model.opset_imports[""] < 11 <= opset:
        return {}
    nodes = ir.traversal.RecursiveGraphIterator(model.graph)
    return {node.outputs[0].name or "": _rounding(node) for node in nodes if facts(node).family is Family.RESIZE}


def repair_after(model: ir.Model, resizes: dict[str, str]) -> None:
    """Set the attributes that preserve the sampling of old Resize nodes."""
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        rounding = resizes.get(node.outputs[0].name or "") if node.op_type == "Resize" else None
        if rounding is None:
            continue
        node.attributes.add(ir.AttrString("coordinate_transformation_mode", "asymmetric"))
        if string_of(node, "mode", "nearest") == "nearest":
            node.attributes.add(ir.AttrString("nearest_mode", rounding))


def _rounding(node: ir.Node) -> str:
    """Return how "nearest" rounds a position: onnxruntime rounds up when it shrinks and down when it enlarges."""
    if "scales" in node.attributes:
        return "floor"  # Upsample only enlarges
    scales = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    return "ceil" if scales is not None and scales.size and scales.min() < 1 and scales.max() <= 1 else "floor"


def _flatten_hardmax(node: ir.Node, names: FreshNames) -> None:
    """Rewrite ``Hardmax(x)`` as ``Reshape(Hardmax(Flatten(x)), Shape(x))``, which is the same in every opset."""
    source = node.inputs[0]
    output = node.outputs[0]
    graph = node.graph
    assert source is not None
    assert graph is not None
    flat = ir.node("Flatten", [source], {"axis": int_of(node, "axis", 1)}, name=names.node(f"{node.name}_flatten"))
    shape = ir.node("Shape", [source], name=names.node(f"{node.name}_shape"))
    inner = ir.node("Hardmax", [flat.outputs[0]], {"axis": 1}, name=node.name)
    back = ir.node("Reshape", [inner.outputs[0], shape.outputs[0]], name=names.node(f"{node.name}_reshape"))
    for new, suffix in ((flat, "flat"), (shape, "shape"), (inner, "hard")):
        new.outputs[0].name = names.value(f"{output.name}_{suffix}")
    back.outputs[0].name = output.name
    back.outputs[0].shape, back.outputs[0].type = output.shape, output.type
    graph.insert_before(node, [flat, shape, inner, back])
    output.replace_all_uses_with(back.outputs[0], replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _expand_group_norm(node: ir.Node, names: FreshNames) -> None:
    """Repeat the scale and bias of each group for all channels of the group."""
    source = node.inputs[0]
    groups = int_of(node, "num_groups", 1)
    channels = source.shape[1] if source is not None and source.shape is not None else None
    graph = node.graph
    assert graph is not None
    for index in (1, 2):
        array = constant_of(node.inputs[index])
        if array is None or not isinstance(channels, int):
            raise ModelError(
                "GroupNormalization of opset 18 must have constant scale and bias and a known number of channels to be "
                f"raised to opset 21, got {channels!r} channels; node {node.name!r}"
            )
        old = node.inputs[index]
        assert old is not None
        value = new_initializer(names.value(f"{old.name}_{node.name}"), np.repeat(array, channels // groups))
        graph.register_initializer(value)
        node.replace_input_with(index, value)


NEWEST_OPSET = 26
"""The newest operator set that onnxruntime supports."""

_NEWEST_COMMON_IR = 10  # the newest that onnxruntime 1.20 loads; later ones add nothing that float models use


def convert_opset(model: ir.Model, opset: int) -> ir.Model:
    """Return the model at an operator set, with unchanged names of nodes and tensors.

    onnx's converter works on a copy whose large weights are placeholders, so the size of the model does not matter.
    What it drops is restored: model-local functions, names, metadata. A function whose operators changed between the
    two sets is inlined first, because its body must use the operator set of the model.

    Args:
        model: The model; it is not changed.
        opset: Version of the standard operator set; a model that has it already is copied.

    Raises:
        ModelError: The converter cannot convert an operator, or the opset is not supported.
    """
    current = model.opset_imports[""]
    work = model.clone()
    if opset == current:
        return work
    if not current < opset <= NEWEST_OPSET:
        raise ModelError(
            f"an opset can only be raised, and to at most {NEWEST_OPSET}, got {current} to {opset}; "
            f"model {model.graph.name!r}"
        )
    name_nodes(work)
    InlinePass(lambda function: not _is_unchanged(function, current, opset))(work)
    repair_before(work, opset)
    resizes = old_resizes(work, opset)
    converted = _converted(work, opset)
    repair_after(converted, resizes)
    _put_back(converted, work, opset)
    _name_new(converted, work)
    return converted


def ir_version_for(opset: int, current: int) -> int:
    """Return the IR version to write: high enough for the opset, and supported by every supported onnxruntime.

    Args:
        opset: Version of the standard operator set.
        current: IR version of the model.
    """
    return min(max(current, 10 if opset >= 21 else 8), _NEWEST_COMMON_IR)


def _converted(model: ir.Model, opset: int) -> ir.Model:
    """Run onnx's converter without the large weights."""
    current = model.opset_imports[""]
    proto, weights = structure_proto(model)
    # Below IR 4 the converter requires every initializer to be an input as well.
    proto.ir_version = max(proto.ir_version, 4)
    try:
        result = ir.serde.deserialize_model(onnx.version_converter.convert_version(proto, opset))
    except Exception as error:  # RuntimeError, ConvertError, or anything else if an adapter is missing
        raise ModelError(
            f"every operator must convert from opset {current} to {opset}, got: {error}; model {model.graph.name!r}"
        ) from error
    restore_weights(result, weights)
    return result


def _is_unchanged(function: ir.Function, current: int, opset: int) -> bool:
    """Return whether a function's body has the same meaning in both operator sets."""
    return all(
        _interface(node.op_type, current) == _interface(node.op_type, opset)
        for node in ir.traversal.RecursiveGraphIterator(function)
        if node.domain == ""
    )


def _interface(op_type: str, opset: int) -> tuple[object, ...]:
    """Return inputs and outputs of an operator's version; a new version with the same ones only accepts more types."""
    schema = onnx.defs.get_schema(op_type, opset)
    ports = [(port.name, str(port.option)) for port in (*schema.inputs, *schema.outputs)]
    defaults = {name: str(attribute.default_value) for name, attribute in schema.attributes.items()}
    return ports, sorted(defaults.items()), schema.deprecated


def _put_back(converted: ir.Model, original: ir.Model, opset: int) -> None:
    """Restore what the converter drops: functions and descriptions."""
    converted.ir_version = ir_version_for(opset, original.ir_version)
    for identifier, function in original.functions.items():
        copy = function.clone()
        if "" in copy.opset_imports:
            copy.opset_imports[""] = opset
        converted.functions[identifier] = copy
    converted.metadata_props.update(original.metadata_props)
    converted.graph.metadata_props.update(original.graph.metadata_props)
    converted.doc_string, converted.graph.doc_string = original.doc_string, original.graph.doc_string
    _put_back_annotations(converted, original)
    described = {node.name: node for node in ir.traversal.RecursiveGraphIterator(original.graph)}
    for node in ir.traversal.RecursiveGraphIterator(converted.graph):
        if node.name in described:
            node.metadata_props.update(described[node.name].metadata_props)
            node.doc_string = described[node.name].doc_string


def _put_back_annotations(converted: ir.Model, original: ir.Model) -> None:
    """Restore the annotations of tensors; the converter adds shapes with invented names for unknown axes."""
    annotated = {value.name: value for value in _computed_values(original)}
    for value in _computed_values(converted):
        annotation = annotated.get(value.name)
        value.shape, value.type = (None, None) if annotation is None else (annotation.shape, annotation.type)


def _computed_values(model: ir.Model) -> Iterator[ir.Value]:
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        yield from node.outputs


def _name_new(converted: ir.Model, original: ir.Model) -> None:
    """Name what the converter added after the original nodes and tensors, instead of by a counter."""
    makers = {
        value.name: node.name
        for node in ir.traversal.RecursiveGraphIterator(original.graph)
        for value in node.outputs
        if value.name and node.name
    }
    names = FreshNames(converted)
    for node in ir.traversal.RecursiveGraphIterator(converted.graph):
        maker_names = [makers[value.name] for value in node.outputs if value.name in makers]
        if not node.name and maker_names:
            node.name = names.node(maker_names[0])
    for node in ir.traversal.RecursiveGraphIterator(converted.graph):
        for value in node.outputs:
            users = list(value.uses())
            if value.name and value.name not in makers and users:
                value.name = names.value(f"{users[0].node.name or users[0].node.op_type}_input_{users[0].idx}")
        if not node.name and node.outputs and node.outputs[0].name:
            node.name = names.node(node.outputs[0].name)
