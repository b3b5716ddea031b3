"""What onnx's version converter gets wrong, put right before and after it runs.

Each was found by comparing outputs in onnxruntime before and after a conversion:

* Upsample, and Resize of opset 10, sample at ``x / scale``. From opset 11 on Resize has the attribute
  ``coordinate_transformation_mode`` whose default is another one, and the converter leaves it out.
* Hardmax up to opset 12 works on the tensor flattened to two axes, from 13 on along one axis. The converter rewrites
  Softmax and LogSoftmax for that, but not Hardmax.
* GroupNormalization of opset 18 has one scale per group, that of 21 one per channel. The converter does not expand.
"""

import numpy as np
import onnx_ir as ir

from quantry.errors import ModelError
from quantry.prepare.graph.attribute_of import int_of, string_of
from quantry.prepare.graph.constant_of import constant_of
from quantry.prepare.graph.fresh_name import FreshNames
from quantry.prepare.weights import new_initializer


def repair_before(model: ir.Model, opset: int) -> None:
    """Rewrite nodes in place so that the converter's rules hold for them."""
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
    """Return outputs of nodes that sample as Resize did before opset 11, each with the rounding that nearest needs.

    Nodes are known by their output, because the converter makes a new node of an Upsample.
    """
    if not model.opset_imports[""] < 11 <= opset:
        return {}
    nodes = ir.traversal.RecursiveGraphIterator(model.graph)
    return {node.outputs[0].name or "": _rounding(node) for node in nodes if node.op_type in ("Resize", "Upsample")}


def repair_after(model: ir.Model, resizes: dict[str, str]) -> None:
    """Give nodes that were a Resize of old the attributes that keep their sampling."""
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        rounding = resizes.get(node.outputs[0].name or "") if node.op_type == "Resize" else None
        if rounding is None:
            continue
        node.attributes.add(ir.AttrString("coordinate_transformation_mode", "asymmetric"))
        if string_of(node, "mode", "nearest") == "nearest":
            node.attributes.add(ir.AttrString("nearest_mode", rounding))


def _rounding(node: ir.Node) -> str:
    """Return how nearest rounds a position: onnxruntime goes up when it shrinks and down when it enlarges."""
    if "scales" in node.attributes:
        return "floor"  # Upsample only enlarges
    scales = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    return "ceil" if scales is not None and scales.size and scales.min() < 1 and scales.max() <= 1 else "floor"


def _flatten_hardmax(node: ir.Node, names: FreshNames) -> None:
    """Rewrite ``Hardmax(x)`` as ``Reshape(Hardmax(Flatten(x)), Shape(x))``, which means the same in every opset."""
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
    """Repeat one scale and one bias per group for each channel of the group."""
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
