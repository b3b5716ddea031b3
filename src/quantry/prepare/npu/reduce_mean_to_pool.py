"""Writes means over height and width as GlobalAveragePool."""

from collections.abc import Container

import onnx_ir as ir

from quantry.prepare.graph.attribute_of import int_of
from quantry.prepare.npu.convertible_nodes import convertible
from quantry.prepare.npu.listed_nodes import listed
from quantry.prepare.npu.spatial_mean import is_spatial_mean


def reduce_mean_to_pool(model: ir.Model, untouched: Container[str] = ()) -> tuple[str, ...]:
    """Replace every ReduceMean over height and width that keeps its dimensions by GlobalAveragePool, its equal."""
    changed = []
    for node in convertible(model, untouched):
        if is_spatial_mean(node) and int_of(node, "keepdims", 1):
            node.op_type = "GlobalAveragePool"
            node.attributes.clear()
            node.resize_inputs(1)
            changed.append(node.name or "")
    return (f"npu: wrote {len(changed)} ReduceMean nodes as GlobalAveragePool: {listed(changed)}",) if changed else ()
