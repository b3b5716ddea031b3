"""Rounds the slope of LeakyRelu to what the NPU multiplies by."""

from collections.abc import Container

import onnx_ir as ir

from quantry.prepare.graph.attribute_of import float_of
from quantry.prepare.npu.convertible_nodes import convertible
from quantry.prepare.npu.listed_nodes import listed

_STEPS = 256


def leaky_relu(model: ir.Model, untouched: Container[str] = ()) -> tuple[str, ...]:
    """Round the slope of every LeakyRelu to a multiple of 1/256, such as 0.1 to 26/256."""
    changed = []
    for node in convertible(model, untouched):
        if node.op_type != "LeakyRelu" or node.domain != "":
            continue
        alpha = float_of(node, "alpha", 0.01)
        rounded = round(alpha * _STEPS) / _STEPS
        if rounded != alpha:
            node.attributes["alpha"] = ir.AttrFloat32("alpha", rounded)
            changed.append(f"{node.name} ({alpha:.6g} to {rounded:.6g})")
    if not changed:
        return ()
    return (f"npu: rounded the slope of {len(changed)} LeakyRelu nodes to multiples of 1/256: {listed(changed)}",)
