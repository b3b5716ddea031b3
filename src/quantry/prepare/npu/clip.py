"""Rounds the bounds of Clip to integers."""

from collections.abc import Container

import numpy as np
import onnx_ir as ir

from quantry.prepare.graph.constant_of import constant_of
from quantry.prepare.graph.fresh_name import FreshNames
from quantry.prepare.npu.convertible_nodes import convertible
from quantry.prepare.npu.listed_nodes import listed
from quantry.prepare.weights import new_initializer


def clip(model: ir.Model, untouched: Container[str] = ()) -> tuple[str, ...]:
    """Round constant bounds of every Clip to the nearest integers, where the two stay apart."""
    names = FreshNames(model)
    changed = [
        node.name or ""
        for node in convertible(model, untouched)
        if node.op_type == "Clip" and node.domain == "" and _round_bounds(node, names)
    ]
    return (f"npu: rounded the bounds of {len(changed)} Clip nodes to integers: {listed(changed)}",) if changed else ()


def _round_bounds(node: ir.Node, names: FreshNames) -> bool:
    bounds = {index: constant_of(value) for index, value in enumerate(node.inputs) if index in (1, 2)}
    rounded = {index: np.rint(bound) for index, bound in bounds.items() if bound is not None}
    if len(rounded) == 2 and not (rounded[1] < rounded[2]).all():
        return False
    changed = {index: value for index, value in rounded.items() if (value != bounds[index]).any()}
    for index, value in changed.items():
        constant = new_initializer(names.value(f"{node.name}_bound_{index}"), value)
        assert node.graph is not None
        node.graph.register_initializer(constant)
        node.replace_input_with(index, constant)
    return bool(changed)
