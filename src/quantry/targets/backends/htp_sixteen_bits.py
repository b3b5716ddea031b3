"""HTP's arithmetic on 16-bit activations; the rules are listed in `quantry.targets.backends.htp_arithmetic`."""

from collections.abc import Callable
from functools import cache

import numpy as np
import onnx_ir as ir

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

_CUT = 256
_ROUNDING = 0.503  # measured: between 0.5026 and 0.5039
_MIDDLE = 32768
_PRODUCT_STEP = 2.0**-34
_SIGMOID_SCALE = 2.0**-16
_SIGMOID_STEPS = 6144  # steps of its input in a unit
_SIGMOID_LEVELS = 2.0**15
_SIGMOID_LAST = 65535  # from here on the result is the largest
# Each part of the input has its own polynomial. Pairs of a part's end, in steps, and what is added before the cut.
_SIGMOID_PARTS = (
    (512, 0.58),
    (1024, 0.56),
    (2070, 0.40),
    (4900, 0.20),
    (8760, 0.14),
    (11200, 0.41),
    (13740, 0.02),
    (16400, 0.08),
    (19180, 0.25),
    (22200, 0.42),
    (25400, 0.14),
    (28850, 0.05),
    (32768, 0.21),
    (37120, 0.02),
    (42440, 0.41),
    (_SIGMOID_LAST + 1, 0.25),
)


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
    return True


def sigmoid_levels(steps: Floats) -> Floats:
    """Return the result of Sigmoid in steps of ``2**-15``.

    Args:
        steps: Inputs that are not negative, in steps of ``1 / 6144``.
    """
    steps = np.minimum(steps, _SIGMOID_LAST)
    ends, added = np.array(_SIGMOID_PARTS).T
    exact = _SIGMOID_LEVELS / (1 + np.exp(-steps / _SIGMOID_STEPS))
    result: Floats = np.floor(exact + added[np.searchsorted(ends, steps, side="right")])
    return result


def _convolution(editor: Editor, node: ir.Node, output: float) -> ir.Value | None:
    """Replace a Conv by two on the upper and lower bytes of its input, whose sums float32 holds exactly."""
    first, weights = scales_of(node.inputs[0], SIXTEEN_BITS), scales_of(node.inputs[1])
    levels = levels_of(node.inputs[1])
    bias = levels_of(node.inputs[2]) if len(node.inputs) > 2 else None
    if first is None or first.size != 1 or weights is None or levels is None:
        return None
    if (len(node.inputs) > 2 and bias is None) or not is_along_channels(node, weights.size):
        return None
    spread = (-1, *(1 for _ in levels.shape[2:]))
    scale = float(first.reshape(-1)[0])
    steps = np.float32(scale) * weights.reshape(-1).astype(np.float32)
    ratio = (steps / np.float32(output)).astype(np.float64)
    ratio = np.maximum(ratio, np.finfo(np.float32).tiny).reshape(spread if ratio.size > 1 else ())
    zero = zero_point_of(node.inputs[0])
    high, low = _bytes(editor, node, scale, zero)
    kernel = editor.constant(levels.astype(np.float64))
    high, low = (editor.like(node, part, kernel) for part in (high, low))
    if is_strided_depthwise(node):
        tops, rest = (editor.join("Cast", part, to=ir.DataType.DOUBLE.value) for part in (high, low))
        total = editor.join("Add", editor.apply("Mul", tops, np.array(_CUT), np.float64), rest)
        offset = output_zero_point(node)
        added = np.rint(offset / ratio) + (0 if bias is None else bias.astype(np.float64).reshape(spread))
        multiplier, half = short_multiplier(ratio, STRIDED_BITS), 0.5 - offset
    else:
        sums = levels.reshape(len(levels), -1).sum(1, dtype=np.float64)
        upper, lower = divmod(zero, _CUT)
        rest = editor.apply("Add", low, (lower * sums).reshape(spread))
        cut = editor.join("Add", high, editor.apply("Floor", editor.apply("Mul", rest, np.array(1 / _CUT))))
        total = editor.join("Cast", cut, to=ir.DataType.DOUBLE.value)
        added = upper * sums - np.sign(zero * sums) * np.floor(np.abs(zero * sums) / _CUT + 0.5)
        if bias is not None:
            added += np.trunc(stored_bias(bias, float(np.max(scale * weights))) / _CUT)
        added = added.reshape(spread)
        multiplier, half = ratio * _CUT, _ROUNDING
    product = editor.apply("Mul", editor.apply("Add", total, added, np.float64), multiplier, np.float64)
    level = editor.apply("Floor", editor.apply("Add", product, np.array(half), np.float64))
    return editor.apply("Mul", editor.join("Cast", level, to=ir.DataType.FLOAT.value), np.array(output))


def _bytes(editor: Editor, node: ir.Node, scale: float, zero: int) -> tuple[ir.Value, ir.Value]:
    """Return the upper and the lower byte of an input, relative to the zero point, which is what padding adds."""
    value = node.inputs[0]
    assert value is not None
    upper, lower = divmod(zero, _CUT)
    level = editor.apply("Round", editor.apply("Mul", value, np.array(1 / scale)))
    whole = editor.apply("Add", level, np.array(float(zero)))
    high = editor.apply("Floor", editor.apply("Mul", whole, np.array(1 / _CUT)))
    low = editor.join("Sub", whole, editor.apply("Mul", high, np.array(float(_CUT))))
    return editor.apply("Sub", high, np.array(upper)), editor.apply("Sub", low, np.array(lower))


def _sigmoid(editor: Editor, node: ir.Node, output: float) -> ir.Value | None:
    value = node.inputs[0]
    if value is None or scales_of(value, SIXTEEN_BITS) is None or output != _SIGMOID_SCALE or output_zero_point(node):
        return None
    # Slightly more than the steps in a unit: a whole number of steps below 0 then counts as such, not as one less.
    steps = editor.apply("Floor", editor.apply("Mul", value, np.array(_SIGMOID_STEPS * (1 + 1e-6))))
    bounded = editor.join(
        "Clip", steps, *(editor.constant(np.array(end)) for end in (-_SIGMOID_LAST - 1, _SIGMOID_LAST))
    )
    index = editor.join("Cast", editor.apply("Add", bounded, np.array(_SIGMOID_LAST + 1)), to=ir.DataType.INT32.value)
    return editor.join("Gather", editor.constant(_sigmoid_table()), index, axis=0)


@cache
def _sigmoid_table() -> Floats:
    """Return the results for all whole numbers of steps, from the smallest."""
    positive = sigmoid_levels(np.arange(_SIGMOID_LAST + 1, dtype=np.float64))
    table: Floats = np.concatenate([_SIGMOID_LEVELS - 1 - positive[::-1], positive]) / _SIGMOID_LEVELS
    return table


def _multiplication(editor: Editor, node: ir.Node, output: float) -> ir.Value | None:
    scales = [scales_of(value, SIXTEEN_BITS) for value in node.inputs]
    if any(scale is None or scale.size != 1 for scale in scales) or any(map(is_constant, node.inputs)):
        return None
    steps = [float(scale.reshape(-1)[0]) for scale in scales if scale is not None]
    ratio = float(np.float32(steps[0]) * np.float32(steps[1]) / np.float32(output))
    added = product_rounding(ratio, *(zero_point_of(value) for value in node.inputs))
    wide = []
    for value, step in zip(node.inputs, steps, strict=True):
        assert value is not None
        level = editor.apply("Round", editor.apply("Mul", value, np.array(1 / step)))
        wide.append(editor.join("Cast", level, to=ir.DataType.DOUBLE.value))
    multiplier = np.array(np.rint(ratio / _PRODUCT_STEP) * _PRODUCT_STEP)
    product = editor.apply("Mul", editor.join("Mul", *wide), multiplier, np.float64)
    level = editor.apply("Floor", editor.apply("Add", product, np.array(added), np.float64))
    return editor.apply("Mul", editor.join("Cast", level, to=ir.DataType.FLOAT.value), np.array(output))


def product_rounding(ratio: float, first: int, second: int) -> float:
    """Return what Mul adds to a product before the cut: its constant part is stored in steps of 1/8.

    Args:
        ratio: Product of the input scales over the output scale.
        first: Zero point of the first input.
        second: Zero point of the second input.
    """
    first, second = first - _MIDDLE, second - _MIDDLE
    multiplier = np.rint(ratio / _PRODUCT_STEP) * _PRODUCT_STEP
    constant = (first + second) * ratio + 2 * first * second * multiplier
    return float(0.5625 + np.rint(constant * 8) / 8 - constant)


_REWRITES: dict[str, Callable[[Editor, ir.Node, float], ir.Value | None]] = {
    "Conv": _convolution,
    "Sigmoid": _sigmoid,
    "Mul": _multiplication,
}
