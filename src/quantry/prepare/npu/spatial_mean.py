"""Recognizing ReduceMean over height and width."""

import onnx_ir as ir

from quantry.prepare.graph.constant_of import constant_of


def is_spatial_mean(node: ir.Node) -> bool:
    """Whether a node is ReduceMean of a tensor [N, C, H, W] over exactly H and W.

    The axes are an attribute up to opset 17 and an input from opset 18 on.
    """
    if node.op_type != "ReduceMean" or node.domain != "":
        return False
    data = node.inputs[0]
    if data is None or data.shape is None or len(data.shape) != 4:
        return False
    attribute = node.attributes.get("axes")
    if attribute is not None:
        axes = list(attribute.as_ints())
    else:
        constant = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
        axes = [] if constant is None else [int(axis) for axis in constant.reshape(-1)]
    return sorted(axis % 4 for axis in axes) == [2, 3]
