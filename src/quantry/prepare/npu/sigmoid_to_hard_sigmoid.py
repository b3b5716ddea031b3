"""Replaces Sigmoid by the piecewise linear function that the NPU has instead."""

from collections.abc import Container

import onnx_ir as ir

from quantry.prepare.npu.convertible_nodes import convertible
from quantry.prepare.npu.listed_nodes import listed

ALPHA, BETA = 1 / 6, 0.5


def sigmoid_to_hard_sigmoid(model: ir.Model, untouched: Container[str] = ()) -> tuple[str, ...]:
    """Replace every Sigmoid by ``HardSigmoid(x) = max(0, min(1, x / 6 + 1 / 2))``; the two differ by up to 0.0713."""
    changed = []
    for node in convertible(model, untouched):
        if node.op_type == "Sigmoid" and node.domain == "":
            node.op_type = "HardSigmoid"
            node.attributes["alpha"] = ir.AttrFloat32("alpha", ALPHA)
            node.attributes["beta"] = ir.AttrFloat32("beta", BETA)
            changed.append(node.name or "")
    if not changed:
        return ()
    note = (
        f"npu: replaced {len(changed)} Sigmoid nodes by HardSigmoid(1/6, 0.5), which differs from them by up to 0.07 "
        "and can cost much accuracy where nobody trained for it; to keep Sigmoid, set "
        f"prepare.npu.sigmoid_to_hard_sigmoid: false in the recipe: {listed(changed)}"
    )
    return (note,)
