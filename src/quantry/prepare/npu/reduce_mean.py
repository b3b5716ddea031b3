"""Appends to means over height and width what the NPU's fixed-point reciprocal makes of them."""

from collections.abc import Container

import onnx_ir as ir

from quantry.prepare.graph.fresh_name import FreshNames
from quantry.prepare.npu.convertible_nodes import convertible
from quantry.prepare.npu.listed_nodes import listed
from quantry.prepare.npu.multiply_result import multiply_result
from quantry.prepare.npu.pool_factor import pool_factor, spatial_size
from quantry.prepare.npu.spatial_mean import is_spatial_mean


def reduce_mean(model: ir.Model, untouched: Container[str] = ()) -> tuple[str, ...]:
    """Multiply the result of every ReduceMean over height and width by `pool_factor`, where that is not 1."""
    names = FreshNames(model)
    changed = []
    for node in convertible(model, untouched):
        size = spatial_size(node.inputs[0]) if is_spatial_mean(node) else None
        factor = 1.0 if size is None else pool_factor(*size)
        if factor != 1.0:
            multiply_result(node, factor, names)
            changed.append(f"{node.name} ({factor:.7g})")
    return (f"npu: multiplied the results of {len(changed)} ReduceMean nodes: {listed(changed)}",) if changed else ()
