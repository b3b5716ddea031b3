"""What conversions for an NPU replaced, so that a teacher computes what the user's model computes.

The converted model was equalized since, which a model from before the conversions was not: tensors inside the two could
not be compared. So the conversions that change the function are taken back in the equalized model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from quantry.graph.float_model import FloatModel

_FACTOR = "_npu_factor"


@dataclass(frozen=True)
class Original:
    """What a node was before conversions.

    Attributes:
        op_type: Its operator.
        attributes: Its attributes, all of them numbers.
        limit: Of a Clip that has become a Relu, what is cut off behind that, ready to be broadcast.
    """

    op_type: str
    attributes: tuple[tuple[str, float], ...] = ()
    limit: npt.NDArray[np.float32] | None = field(default=None, compare=False)


def converted_nodes(before: ir.Model, after: ir.Model) -> dict[str, Original]:
    """Return the nodes that conversions changed into another function, as they were, by their names.

    Args:
        before: The model before conversions.
        after: The model that is quantized.
    """
    known = {node.name or "": node for node in before.graph}
    found: dict[str, Original] = {}
    for node in after.graph:
        name = node.name or ""
        old = known.get(name)
        if old is None or (old.op_type, node.op_type) not in (("Sigmoid", "HardSigmoid"), ("LeakyRelu", "LeakyRelu")):
            continue
        slope = old.attributes.get_float("alpha", 0.01)
        if old.op_type == "Sigmoid":
            found[name] = Original("Sigmoid")
        elif slope != node.attributes.get_float("alpha", 0.01):
            found[name] = Original("LeakyRelu", (("alpha", slope),))
    return found


def converted_constants(before: ir.Model, after: ir.Model) -> dict[str, npt.NDArray[np.float32]]:
    """Return values of initializers with which the converted model computes what the model before it did.

    These are the factors behind pools and HardSigmoid, which are 1 then, and the bounds of Clip.

    Args:
        before: The model before conversions.
        after: The model that is quantized.
    """
    known = {node.name or "": node for node in before.graph}
    found: dict[str, npt.NDArray[np.float32]] = {}
    for node in after.graph:
        old = known.get(node.name or "")
        new = {index: value for index, value in enumerate(node.inputs) if value is not None and _is_new(value, before)}
        for index, value in new.items():
            assert value.const_value is not None
            shape = value.const_value.shape.numpy()
            if node.op_type == "Mul" and _FACTOR in (value.name or "") and value.const_value.size == 1:
                found[value.name or ""] = np.ones(shape, np.float32)
            elif node.op_type == "Clip" and old is not None and old.op_type == "Clip":
                bound = old.inputs[index]
                if bound is not None and bound.const_value is not None:
                    found[value.name or ""] = np.asarray(bound.const_value.numpy(), np.float32).reshape(shape)
    return found


def with_originals(model: FloatModel, originals: Mapping[str, Original]) -> FloatModel:
    """Return a model in which nodes are again what they were; the given one is left as it was."""
    if not originals:
        return model
    copy = model.model.clone()
    for node in tuple(copy.graph):
        original = originals.get(node.name or "")
        if original is not None and original.limit is not None:
            _cut_off(copy.graph, node, original.limit)
        elif original is not None:
            node.op_type = original.op_type
            node.attributes.clear()
            for name, value in original.attributes:
                node.attributes[name] = ir.AttrFloat32(name, value)
    return FloatModel(copy, model.notes)


def _cut_off(graph: ir.Graph, node: ir.Node, limit: npt.NDArray[np.float32]) -> None:
    """Write Min(Relu(x), limit) in place of Relu(x); the result keeps its name."""
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


def _is_new(value: ir.Value, before: ir.Model) -> bool:
    return value.const_value is not None and value.name not in before.graph.initializers
