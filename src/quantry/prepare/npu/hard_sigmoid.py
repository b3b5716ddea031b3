"""Appends to HardSigmoid what the NPU's fixed-point slope makes of it."""

from collections.abc import Container

import onnx_ir as ir

from quantry.prepare.graph.attribute_of import float_of
from quantry.prepare.graph.fresh_name import FreshNames
from quantry.prepare.npu.convertible_nodes import convertible
from quantry.prepare.npu.listed_nodes import listed
from quantry.prepare.npu.multiply_result import multiply_result
from quantry.prepare.npu.sigmoid_to_hard_sigmoid import ALPHA, BETA

FACTOR = (2731 / 16384) / ALPHA
_TOLERANCE = 1e-4  # exporters write 1/6 as 0.1666 to 0.16666667


def hard_sigmoid(model: ir.Model, untouched: Container[str] = ()) -> tuple[str, ...]:
    """Multiply the result of every HardSigmoid(1/6, 0.5) by (2731/16384) / (1/6) = 1.000122.

    HardSigmoid with another slope has no counterpart on the NPU and stays as it is.
    """
    names = FreshNames(model)
    matching = [
        node
        for node in convertible(model, untouched)
        if node.op_type == "HardSigmoid" and node.domain == "" and _is_sixth(node)
    ]
    for node in matching:
        multiply_result(node, FACTOR, names)
    if not matching:
        return ()
    which = listed([node.name or "" for node in matching])
    return (f"npu: multiplied the results of {len(matching)} HardSigmoid nodes by {FACTOR:.7g}: {which}",)


def _is_sixth(node: ir.Node) -> bool:
    near_alpha = abs(float_of(node, "alpha", 0.2) - ALPHA) < _TOLERANCE
    return near_alpha and abs(float_of(node, "beta", 0.5) - BETA) < _TOLERANCE
