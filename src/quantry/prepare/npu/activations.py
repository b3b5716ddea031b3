"""Rounds the bounds of Clip to integers.

Rounds the slope of LeakyRelu to what the NPU multiplies by.

Replaces Sigmoid by the piecewise linear function that the NPU has instead.

Appends to HardSigmoid what the NPU's fixed-point slope makes of it.
"""

from collections.abc import Container

import numpy as np
import onnx_ir as ir

from quantry.graph.edit import FreshNames, constant_of, float_of, multiply_result
from quantry.graph.weights import new_initializer
from quantry.prepare.npu.nodes import convertible, listed


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
