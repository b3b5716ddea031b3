"""Writes BatchNormalization that could not be folded as a depthwise 1x1 convolution.

::

    y = (x - mean) * g + beta,  g = gamma / sqrt(var + epsilon)
      = Conv(x, W = g [C, 1, 1, 1], B = beta - mean * g, group = C)
"""

from collections.abc import Container

import numpy as np
import onnx_ir as ir

from quantry.graph.edit import FreshNames, constant_of, float_of, int_of
from quantry.graph.weights import new_initializer
from quantry.prepare.npu.nodes import convertible, listed


def batch_norm_to_conv(model: ir.Model, untouched: Container[str] = ()) -> tuple[str, ...]:
    """Replace every BatchNormalization of a tensor [N, C, H, W] with constant statistics by a depthwise Conv."""
    names = FreshNames(model)
    changed = []
    for node in convertible(model, untouched):
        if node.op_type == "BatchNormalization" and node.domain == "" and _is_inference(node):
            constants = [constant_of(value) for value in node.inputs[1:5]]
            arrays = [array for array in constants if array is not None]
            if len(arrays) == 4:
                _replace(node, arrays, names)
                changed.append(node.name or "")
    if not changed:
        return ()
    return (f"npu: wrote {len(changed)} BatchNormalization nodes as depthwise Conv: {listed(changed)}",)


def _is_inference(node: ir.Node) -> bool:
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    return shape is not None and len(shape) == 4 and len(node.outputs) == 1 and not int_of(node, "training_mode", 0)


def _replace(node: ir.Node, arrays: list[np.ndarray], names: FreshNames) -> None:
    gamma, beta, mean, variance = (array.astype(np.float64) for array in arrays)
    factor = gamma / np.sqrt(variance + float_of(node, "epsilon", 1e-5))
    dtype = arrays[0].dtype
    weight = new_initializer(names.value(f"{node.name}_weight"), factor.reshape(-1, 1, 1, 1).astype(dtype))
    bias = new_initializer(names.value(f"{node.name}_bias"), (beta - mean * factor).astype(dtype))
    graph = node.graph
    assert graph is not None
    node.op_type = "Conv"
    node.attributes.clear()
    node.attributes["group"] = ir.AttrInt64("group", len(factor))
    node.attributes["kernel_shape"] = ir.AttrInt64s("kernel_shape", [1, 1])
    node.resize_inputs(3)
    for index, constant in enumerate((weight, bias), start=1):
        graph.register_initializer(constant)
        node.replace_input_with(index, constant)
