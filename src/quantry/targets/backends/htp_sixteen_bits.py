"""HTP's arithmetic on 16-bit activations; the rules are listed in `quantry.targets.backends.htp_arithmetic`.

The quantizer after an operator rounds to the nearest integer. So a rule that ends in ``floor(t + 1/2 + d)`` is written
as ``t + d`` in real values, and most rules take no more than a multiplication and an addition.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.targets.backends.htp_parts import (
    SIXTEEN_BITS,
    STRIDED_BITS,
    Editor,
    Floats,
    is_along_channels,
    is_constant,
    is_strided_depthwise,
    levels_of,
    output_scale,
    output_zero_point,
    readers_of,
    scales_of,
    short_multiplier,
    stored_bias,
    zero_point_of,
)

Levels = NDArray[Any]
_TINY = np.finfo(np.float32).tiny
_CUT = 256
_ADDED = 0.003  # measured: between 0.0026 and 0.0039
_MIDDLE = 32768
_PRODUCT_STEP = 2.0**-34
_SIGMOID_SCALE = 2.0**-16
_SIGMOID_STEPS = 6144  # steps of its input in a unit
_SIGMOID_LEVELS = 2.0**15
_SIGMOID_ADDED = 0.25  # measured: 0.02 to 0.6 in different parts of the input, whose polynomials are not known


def write_sixteen_bits(graph: ir.Graph, node: ir.Node) -> bool:
    """Let an operator with 16-bit input and output round as HTP does, in place.

    Args:
        graph: The graph of the operator.
        node: The operator.

    Returns:
        Whether a rule is known for it.
    """
    rewrite = _REWRITES.get(node.op_type)
    output = None if rewrite is None else output_scale(node, SIXTEEN_BITS)
    if rewrite is None or output is None:
        return False
    result = rewrite(Editor(graph, node, before=True), node, output)
    if result is None:
        return False
    for reader, index in readers_of(node):
        reader.replace_input_with(index, result)
    if not node.outputs[0].is_graph_output():
        graph.remove(node, safe=True)
    return True


def _convolution(editor: Editor, node: ir.Node, output: float) -> ir.Value | None:
    first, weights = scales_of(node.inputs[0], SIXTEEN_BITS), scales_of(node.inputs[1])
    levels = levels_of(node.inputs[1])
    bias = levels_of(node.inputs[2]) if len(node.inputs) > 2 else np.zeros(1, np.int32)
    if first is None or first.size != 1 or weights is None or levels is None or bias is None:
        return None
    if not is_along_channels(node, weights.size):
        return None
    scale = float(first.reshape(-1)[0])
    steps = (np.float32(scale) * weights.reshape(-1).astype(np.float32)).astype(np.float64)
    rewrite = _strided if is_strided_depthwise(node) else _cut
    return rewrite(editor, node, (scale, output), levels, (bias, steps))


def _strided(
    editor: Editor, node: ir.Node, scales: tuple[float, float], levels: Levels, sums: tuple[Levels, Floats]
) -> ir.Value:
    """Return the result of a depthwise Conv with a stride, which has a short multiplier and a zero point in steps."""
    (scale, output), (bias, steps) = scales, sums
    ratio = np.maximum((steps.astype(np.float32) / np.float32(output)).astype(np.float64), _TINY)
    multiplier, zero = short_multiplier(ratio, STRIDED_BITS), output_zero_point(node)
    spread = (-1, *(1 for _ in levels.shape[1:]))
    kernel = levels * (multiplier * output / scale).reshape(spread)
    shift = ((bias + np.rint(zero / ratio)) * multiplier - zero) * output
    shift = np.broadcast_to(shift, len(levels))
    value = node.inputs[0]
    assert value is not None
    return editor.like(node, value, editor.constant(kernel), editor.constant(shift))


def _cut(
    editor: Editor, node: ir.Node, scales: tuple[float, float], levels: Levels, sums: tuple[Levels, Floats]
) -> ir.Value:
    """Return the result of any other Conv, from two on the bytes of its input, whose sums float32 holds exactly."""
    (scale, output), (bias, steps) = scales, sums
    zero = zero_point_of(node.inputs[0])
    upper, lower = divmod(zero, _CUT)
    value = node.inputs[0]
    assert value is not None
    # Both are relative to the zero point, which is what padding adds. A quarter keeps the cut off whole numbers.
    start = np.array((lower + 0.25) / _CUT)
    high = editor.apply("Floor", editor.apply("Add", editor.apply("Mul", value, np.array(1 / scale / _CUT)), start))
    level = editor.apply("Mul", value, np.array(1 / scale))
    low = editor.apply("Round", editor.join("Sub", level, editor.apply("Mul", high, np.array(float(_CUT)))))
    totals = levels.reshape(len(levels), -1).sum(1, dtype=np.float64)
    shares = upper * totals - np.sign(zero * totals) * np.floor(np.abs(zero * totals) / _CUT + 0.5)
    shares = shares + np.trunc(stored_bias(bias, float(np.max(steps))) / _CUT)
    kernel = levels.astype(np.float64)
    tops = editor.like(node, high, editor.constant(kernel), editor.constant(shares))
    low_sum = editor.like(node, low, editor.constant(kernel / _CUT), editor.constant(lower * totals / _CUT))
    total = editor.join("Add", tops, editor.apply("Floor", low_sum))
    spread = (-1, *(1 for _ in levels.shape[2:])) if steps.size > 1 else ()
    product = editor.apply("Mul", total, (steps * _CUT).reshape(spread))
    return editor.apply("Add", product, np.array(_ADDED * output))


def _sigmoid(editor: Editor, node: ir.Node, output: float) -> ir.Value | None:
    value = node.inputs[0]
    if value is None or scales_of(value, SIXTEEN_BITS) is None or output != _SIGMOID_SCALE or output_zero_point(node):
        return None
    # Slightly more than the steps in a unit, so that a whole number of steps is not cut to one less.
    scaled = editor.apply("Mul", editor.apply("Abs", value), np.array(_SIGMOID_STEPS * (1 + 1e-6)))
    magnitude = editor.apply("Mul", editor.apply("Floor", scaled), np.array(1 / _SIGMOID_STEPS))
    exact = editor.apply("Mul", editor.join("Sigmoid", magnitude), np.array(_SIGMOID_LEVELS))
    level = editor.apply("Floor", editor.apply("Add", exact, np.array(_SIGMOID_ADDED)))
    # Both sides of 0 mirror each other in the middle of two levels; 0 itself counts as positive.
    middle = np.array((_SIGMOID_LEVELS - 1) / 2)
    twice = editor.apply("Mul", editor.apply("Sign", value), np.array(2.0))
    side = editor.apply("Sign", editor.apply("Add", twice, np.array(1.0)))
    mirrored = editor.join("Mul", editor.apply("Sub", level, middle), side)
    return editor.apply("Mul", editor.apply("Add", mirrored, middle), np.array(1 / _SIGMOID_LEVELS))


def _multiplication(editor: Editor, node: ir.Node, output: float) -> ir.Value | None:
    scales = [scales_of(value, SIXTEEN_BITS) for value in node.inputs]
    if any(scale is None or scale.size != 1 for scale in scales) or any(map(is_constant, node.inputs)):
        return None
    steps = [np.float32(scale.reshape(-1)[0]) for scale in scales if scale is not None]
    ratio = float(steps[0] * steps[1] / np.float32(output))
    offset = product_offset(ratio, *(zero_point_of(value) for value in node.inputs)) * output
    values = [value for value in node.inputs if value is not None]
    product = editor.apply("Mul", editor.join("Mul", *values), np.array(_product_multiplier(ratio) / ratio))
    return editor.apply("Add", product, np.array(offset))


def _product_multiplier(ratio: float) -> float:
    return float(np.rint(ratio / _PRODUCT_STEP) * _PRODUCT_STEP)


def product_offset(ratio: float, first: int, second: int) -> float:
    """Return what Mul adds to a product in steps of its result, because its constant part has steps of 1/8.

    Args:
        ratio: Product of the input scales over the output scale.
        first: Zero point of the first input.
        second: Zero point of the second input.
    """
    first, second = first - _MIDDLE, second - _MIDDLE
    constant = (first + second) * ratio + 2 * first * second * _product_multiplier(ratio)
    return float(np.rint(constant * 8) / 8 - constant + 1 / 16)


_REWRITES: dict[str, Callable[[Editor, ir.Node, float], ir.Value | None]] = {
    "Conv": _convolution,
    "Sigmoid": _sigmoid,
    "Mul": _multiplication,
}
