"""Undoes the conversions for an NPU, so that a float teacher computes what the user's model computes.

A teacher needs the equalized weights: otherwise its inner tensors could not be compared with those of the quantized
module. So the conversions that change the function are undone in the equalized model.

One of them is Clip(0, 6) -> Relu, which lets equalization scale channels across it::

    user's model:     y = min(relu(x), 6)
    quantized model:  relu(f x) = f relu(x)
    teacher:          f y = min(relu(f x), 6 f)

The factor f of each channel is measured by running the models before and after equalization on one sample, because
several equalization steps may have contributed to it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from quantry.data.calibration_data import CalibrationData
from quantry.graph.float_model import FloatModel
from quantry.graph.load import model_source
from quantry.memo import Memo
from quantry.notes import Note
from quantry.pipeline import run_convert, run_prepare
from quantry.recipe import Recipe
from quantry.runtime.sessions import run_session, simulation_session

_FACTOR = "_npu_factor"
"""Part of the names that the conversions give to the constants they multiply by."""

_HIGH = 6.0
_TOLERANCE = 1e-3
"""Largest relative error with which channels must be multiples of each other. Float rounding causes about 1e-6."""

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class OriginalNode:
    """What a node was before the conversions.

    Attributes:
        op_type: Its operator.
        attributes: Its attributes, all of them numbers.
        limit: The upper bound of a Clip that became a Relu, of a shape that broadcasts to the node's output.
    """

    op_type: str
    attributes: tuple[tuple[str, float], ...] = ()
    limit: Array | None = field(default=None, compare=False)


def converted_nodes(original: ir.Model, converted: ir.Model) -> dict[str, OriginalNode]:
    """Return the original form of each node that the conversions changed to another function, by node name.

    Args:
        original: The model before the conversions.
        converted: The model that is quantized.
    """
    original_nodes = {node.name or "": node for node in original.graph}
    changed_nodes: dict[str, OriginalNode] = {}
    for node in converted.graph:
        name = node.name or ""
        old = original_nodes.get(name)
        if old is None or (old.op_type, node.op_type) not in (("Sigmoid", "HardSigmoid"), ("LeakyRelu", "LeakyRelu")):
            continue
        slope = old.attributes.get_float("alpha", 0.01)
        if old.op_type == "Sigmoid":
            changed_nodes[name] = OriginalNode("Sigmoid")
        elif slope != node.attributes.get_float("alpha", 0.01):
            changed_nodes[name] = OriginalNode("LeakyRelu", (("alpha", slope),))
    return changed_nodes


def converted_constants(original: ir.Model, converted: ir.Model) -> dict[str, Array]:
    """Return values of initializers with which the converted model computes the original function.

    These are the factors after pools and HardSigmoid, which become 1, and the bounds of Clip.

    Args:
        original: The model before the conversions.
        converted: The model that is quantized.
    """
    original_nodes = {node.name or "": node for node in original.graph}
    constants: dict[str, Array] = {}
    for node in converted.graph:
        old = original_nodes.get(node.name or "")
        constants_only = {at: value for at, value in enumerate(node.inputs) if value is not None and value.const_value}
        new = {at: value for at, value in constants_only.items() if value.name not in original.graph.initializers}
        for index, value in new.items():
            assert value.const_value is not None
            shape = value.const_value.shape.numpy()
            if node.op_type == "Mul" and _FACTOR in (value.name or "") and value.const_value.size == 1:
                constants[value.name or ""] = np.ones(shape, np.float32)
            elif node.op_type == "Clip" and old is not None and old.op_type == "Clip":
                bound = old.inputs[index]
                if bound is not None and bound.const_value is not None:
                    constants[value.name or ""] = np.asarray(bound.const_value.numpy(), np.float32).reshape(shape)
    return constants


def clipped_nodes(
    source: ir.Model, final: FloatModel, recipe: Recipe, memo: Memo, data: Callable[[], CalibrationData]
) -> tuple[dict[str, OriginalNode], tuple[Note, ...]]:
    """Return the nodes that were Clip(0, 6), with their upper bounds in the equalized model, and notes.

    Args:
        source: The model as the user passed it.
        final: The model that is quantized.
        recipe: The user's recipe.
        memo: Finds the results of stages that have already run.
        data: Opens the calibration data; called only if there is such a node.
    """
    cross_layer = recipe.equalize.cross_layer
    if not recipe.prepare.clip6_to_relu and not (cross_layer is not None and cross_layer.clip6_to_relu):
        return {}, ()
    clipped = _prepared(source, recipe, memo, clip6_to_relu=False).value
    relus = {node.name or "": node for node in final.model.graph if node.op_type == "Relu"}
    names = [node.name or "" for node in clipped.model.graph if node.op_type == "Clip" and node.name in relus]
    if not names:
        return {}, ()
    plain = run_convert(_prepared(source, recipe, memo, clip6_to_relu=True), recipe, memo).value
    feeds = next(iter(data()))
    pairs = zip(_inputs_of(plain, names, feeds), _inputs_of(final, names, feeds), strict=True)
    limits = {name: _limit(*pair) for name, pair in zip(names, pairs, strict=True)}
    original_clips = {name: OriginalNode("Clip", limit=limit) for name, limit in limits.items() if limit is not None}
    lost = len(names) - len(original_clips)
    message = "{count} Clip(0, 6) stay Relu in the float teacher: equalization did more to their channels than multiply"
    return original_clips, (Note.of(message, count=lost),) if lost else ()


def with_original_nodes(model: FloatModel, nodes: Mapping[str, OriginalNode]) -> FloatModel:
    """Return a copy of a model in which nodes have their original form again."""
    if not nodes:
        return model
    copy = model.model.clone()
    for node in tuple(copy.graph):
        original = nodes.get(node.name or "")
        if original is not None and original.limit is not None:
            _add_limit(copy.graph, node, original.limit)
        elif original is not None:
            node.op_type = original.op_type
            node.attributes.clear()
            for name, value in original.attributes:
                node.attributes[name] = ir.AttrFloat32(name, value)
    return FloatModel(copy, model.notes)


def _add_limit(graph: ir.Graph, node: ir.Node, limit: Array) -> None:
    """Replace Relu(x) by Min(Relu(x), limit); the result keeps its name."""
    relu = ir.node("Relu", [node.inputs[0]], name=f"{node.name}_relu")
    relu.outputs[0].name = f"{node.outputs[0].name}_relu"
    tensor = ir.tensor(limit, name=f"{node.outputs[0].name}_limit")
    bound = ir.Value(
        name=tensor.name, const_value=tensor, shape=ir.Shape(limit.shape), type=ir.TensorType(tensor.dtype)
    )
    graph.register_initializer(bound)
    graph.insert_before(node, [relu])
    node.op_type = "Min"
    node.resize_inputs(2)
    node.replace_input_with(0, relu.outputs[0])
    node.replace_input_with(1, bound)


def _prepared(source: ir.Model, recipe: Recipe, memo: Memo, *, clip6_to_relu: bool) -> Any:
    return run_prepare(
        model_source(source), replace(recipe, prepare=replace(recipe.prepare, clip6_to_relu=clip6_to_relu)), memo
    )


def _inputs_of(model: FloatModel, names: list[str], feeds: Mapping[str, Any]) -> list[Array]:
    """Return the first input of each of some nodes when a model runs on a sample."""
    copy = model.model.clone()
    nodes = {node.name or "": node for node in copy.graph}
    values = [nodes[name].inputs[0] for name in names]
    copy.graph.outputs.clear()
    copy.graph.outputs.extend({id(value): value for value in values if value is not None}.values())
    for value in copy.graph.outputs:
        value.type = value.type or ir.TensorType(ir.DataType.FLOAT)
    results = run_session(simulation_session(copy), feeds)
    return [results[value.name or ""] for value in values if value is not None]


def _limit(unscaled: Array, scaled: Array) -> Array | None:
    """Return the bound 6 f along the channels, or None if the channels were not just multiplied by factors f."""
    if unscaled.shape != scaled.shape:
        return None
    # Channels are the second axis of images and the last axis of token sequences.
    for axis in dict.fromkeys((min(1, unscaled.ndim - 1), unscaled.ndim - 1)):
        reduced = tuple(index for index in range(unscaled.ndim) if index != axis)
        energy = np.sum(unscaled * unscaled, axis=reduced, keepdims=True)
        product = np.sum(unscaled * scaled, axis=reduced, keepdims=True)
        factor = np.divide(product, energy, out=np.ones_like(product), where=energy > 0)
        if np.abs(scaled - factor * unscaled).max() <= _TOLERANCE * np.abs(scaled).max():
            return np.asarray(_HIGH * factor, np.float32)
    return None
