"""Appends to average pools what the NPU's fixed-point reciprocal makes of them."""

from collections.abc import Container

import onnx_ir as ir

from quantry.prepare.graph.fresh_name import FreshNames
from quantry.prepare.npu.convertible_nodes import convertible
from quantry.prepare.npu.listed_nodes import listed
from quantry.prepare.npu.multiply_result import multiply_result
from quantry.prepare.npu.pool_factor import pool_factor, spatial_size


def average_pool(model: ir.Model, untouched: Container[str] = ()) -> tuple[str, ...]:
    """Multiply the result of AveragePool and GlobalAveragePool by `pool_factor` of its kernel, where that is not 1."""
    names = FreshNames(model)
    changed = []
    for node in convertible(model, untouched):
        kernel = _kernel(node) if node.domain == "" else None
        factor = 1.0 if kernel is None else pool_factor(*kernel)
        if factor != 1.0:
            multiply_result(node, factor, names)
            changed.append(f"{node.name} ({factor:.7g})")
    return (f"npu: multiplied the results of {len(changed)} average pools: {listed(changed)}",) if changed else ()


def _kernel(node: ir.Node) -> tuple[int, int] | None:
    if node.op_type == "GlobalAveragePool":
        return spatial_size(node.inputs[0])
    if node.op_type != "AveragePool":
        return None
    sides = node.attributes["kernel_shape"].as_ints()
    return (sides[0], sides[1]) if len(sides) == 2 else None
