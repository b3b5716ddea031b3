"""Replace average pools by depthwise convolutions."""

import numpy as np
import onnx_ir as ir

from quantry.graph.edit import FreshNames, int_of, string_of
from quantry.graph.weights import new_initializer
from quantry.notes import Note, NoteKind


def average_pool_to_conv(model: ir.Model) -> tuple[Note, ...]:
    """Replace every AveragePool over height and width by a depthwise Conv with equal weights, which computes the same.

    A 3x3 pool of 48 channels becomes a Conv with 48 groups whose weights are all 1/9. A pool stays that does not count
    its padding or that ends in a part of a window: such windows have other weights.
    """
    names = FreshNames(model)
    replaced = 0
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        if node.op_type == "AveragePool" and node.domain == "" and _is_convolution(node):
            _replace(node, names)
            replaced += 1
    message = "replaced {count} AveragePool nodes by depthwise Conv"
    return (Note.of(message, NoteKind.GRAPH, count=replaced),) if replaced else ()


def _is_convolution(node: ir.Node) -> bool:
    data = node.inputs[0]
    if data is None or data.shape is None or len(data.shape) != 4 or not isinstance(data.shape[1], int):
        return False
    plain = not int_of(node, "ceil_mode", 0) and string_of(node, "auto_pad", "NOTSET") in ("NOTSET", "VALID")
    dilated = any(step != 1 for step in _ints(node, "dilations", 2, 1))
    counted = bool(int_of(node, "count_include_pad", 0)) or not any(_ints(node, "pads", 4, 0))
    return plain and not dilated and counted and data.dtype == ir.DataType.FLOAT


def _replace(node: ir.Node, names: FreshNames) -> None:
    data, graph, pads = node.inputs[0], node.graph, _ints(node, "pads", 4, 0)
    assert data is not None
    assert data.shape is not None
    assert graph is not None
    channels = data.shape[1]
    assert isinstance(channels, int)
    kernel, strides = _ints(node, "kernel_shape", 2, 1), _ints(node, "strides", 2, 1)
    weight = new_initializer(
        names.value(f"{node.name}_weight"),
        np.full((channels, 1, *kernel), 1 / (kernel[0] * kernel[1]), np.float32),
    )
    graph.register_initializer(weight)
    node.op_type = "Conv"
    node.resize_inputs(2)
    node.replace_input_with(1, weight)
    node.attributes.clear()
    lists = {"kernel_shape": kernel, "strides": strides, "pads": pads, "dilations": [1, 1]}
    node.attributes.update({name: ir.AttrInt64s(name, value) for name, value in lists.items()})
    node.attributes["group"] = ir.AttrInt64("group", channels)


def _ints(node: ir.Node, name: str, count: int, default: int) -> list[int]:
    attribute = node.attributes.get(name)
    return [default] * count if attribute is None or attribute.is_ref() else list(attribute.as_ints())
