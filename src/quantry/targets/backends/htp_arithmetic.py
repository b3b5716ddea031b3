r"""The integer arithmetic of Qualcomm's HTP, written out in float operators so that a simulation computes the same.

The rules below were measured: every accumulator value of one operator was compared with the HTP emulator of
onnxruntime-qnn 2.7. ``r`` is the factor of requantization, such as input scale * weight scale / output scale, and all
values are relative to zero points.

==========================  ===========================================================================================
quantizer of a float input  The quotient is rounded to float16, then to the nearest integer, ties away from 0.
Conv, Gemm, MatMul          The accumulator is cut, not rounded, to ``a = floor(acc / 2**s)`` where ``r * 2**s`` lies
                            in (1/16, 1/8], one ``s`` for each channel. The multiplier has 12 bits,
                            ``m = round(r * 2**s * 2**15) / 2**15``, and the result is ``floor((a + 1/2) * m + 1/2)``.
their bias                  The biases of a layer are stored with 28 bits relative to the largest and converted back in
                            float32, where a fraction is cut: `stored_bias`. About one in five comes out one step
                            closer to 0.
depthwise Conv with stride  ``floor(acc * m + 1/2)`` with a multiplier of 15 bits, and exact biases.
Add                         ``floor(x * m1 + y * m2 + c + 1/2)`` with multipliers in steps of ``2**-k``, where their sum
                            has 14 bits; ``c`` is what rounding the zero points' share to ``2**(8 - k)`` leaves.
AveragePool                 ``floor(mean * r + 1/2)``.
Conv with 16-bit input      The sum of the products, with zero points, is cut to ``a = floor(sum / 256)``. Bias and zero
                            point are divided by 256 as well, the bias cut and the other rounded, and the result is
                            ``floor((a + bias + zero) * 256 * r + 1/2 + 0.003)``.
depthwise with stride       ``floor((acc + z) * m + 1/2) - zero`` with a multiplier of 15 bits, exact biases, and
                            the zero point of the result in steps of the sum, ``z = round(zero / r)``.
Mul, 16 bits                ``floor(x * y * m + c + 9/16)``. The multiplier has steps of ``2**-34``, and ``c`` is what
                            rounding to 1/8 changes in ``(zx + zy) * r + 2 * zx * zy * m``, with zero points relative
                            to 32768. Where both factors are inputs of the model, 9/16 is 1/2.
Sigmoid, 16 bits            The magnitude of the input is cut to steps of ``1 / 6144``. The result has 15 bits,
                            ``p = floor(2**15 * sigmoid + 1/4)``, and is ``2**15 - 1 - p`` for inputs below 0. One in
                            ten is a step off, because HTP's polynomials are not known.
==========================  ===========================================================================================

Other operators round their float result, as the simulation does. With 8 bits, a few results in a million differ from
HTP on real models, and 20 of 1,000 without these rules. With 16 bits, 1 to 3 in 1,000 results of a Conv or Mul differ,
and up to 800 without. One step of 16 bits is little. If a layer has channels of very different size, the next
layer multiplies it: a YOLOX-nano is 50 dB from HTP with these rules, and 28 to 34 dB with those of Conv alone.
"""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from quantry.facts.operators import LINEAR
from quantry.graph.qdq import is_quantize, read_through
from quantry.targets.backends.htp_parts import (
    STRIDED_BITS,
    Editor,
    Floats,
    cut_multiplier,
    is_along_channels,
    is_constant,
    is_strided_depthwise,
    output_scale,
    quantizer_scale,
    readers_of,
    scales_of,
    short_multiplier,
    stored_bias,
    zero_point_of,
)
from quantry.targets.backends.htp_sixteen_bits import write_sixteen_bits

_SUM_BITS = 14


def write_htp_arithmetic(model: ir.Model) -> int:
    """Let the operators of a quantized model round as HTP does, in place.

    Args:
        model: A model with Q/DQ pairs. Operators for which no rule is known stay as they are.

    Returns:
        Number of operators that were changed.
    """
    count = 0
    for node in list(model.graph):
        if is_quantize(node):
            count += _input(Editor(model.graph, node, before=True), node)
            continue
        rewrite = _REWRITES.get(node.op_type)
        output = output_scale(node)
        if rewrite is not None and output is not None:
            count += rewrite(Editor(model.graph, node), node, output)
        count += write_sixteen_bits(model.graph, node)
    return count


def _input(editor: Editor, node: ir.Node) -> bool:
    value, scale = node.inputs[0], quantizer_scale(node)
    if value is None or value.producer() is not None or value.const_value is not None or scale is None:
        return False
    quotient = editor.apply("Mul", value, np.array(np.float32(1) / np.float32(scale)))
    half = editor.join("Cast", quotient, to=ir.DataType.FLOAT16.value)
    wide = editor.join("Cast", half, to=ir.DataType.FLOAT.value)
    magnitude = editor.apply("Floor", editor.apply("Add", editor.apply("Abs", wide), np.array(0.5)))
    level = editor.join("Mul", magnitude, editor.apply("Sign", wide))
    node.replace_input_with(0, editor.apply("Mul", level, np.array(scale)))
    return True


def _product(editor: Editor, node: ir.Node, output: float) -> bool:
    first, weights = (scales_of(value) for value in node.inputs[:2])
    if first is None or weights is None or first.size != 1:
        return False
    steps = first.reshape(-1)[0] * weights.reshape(-1)
    if not is_along_channels(node, steps.size):
        return False
    spread = (-1, 1, 1) if node.op_type in ("Conv", "ConvTranspose") and steps.size > 1 else (-1,)
    shape = node.outputs[0].shape
    steps = steps.reshape(spread if node.op_type != "Conv" or shape is None else spread[: len(shape) - 1])
    # HTP computes the factors in float32, which decides about those between two multipliers.
    ratio = (steps.astype(np.float32) / np.float32(output)).astype(np.float64)
    ratio = np.maximum(ratio, np.finfo(np.float32).tiny)
    readers = readers_of(node)
    is_strided = is_strided_depthwise(node)
    if not is_strided:
        _store_bias(editor, node, float(np.max(first.reshape(-1)[0] * weights)), steps.reshape(-1))
    accumulator = editor.apply("Round", editor.apply("Mul", node.outputs[0], 1 / steps))
    if is_strided:
        # The product has up to 32 bits, more than float32 holds.
        wide = editor.join("Cast", accumulator, to=ir.DataType.DOUBLE.value)
        product = editor.join("Mul", wide, editor.constant(short_multiplier(ratio, STRIDED_BITS), np.float64))
        level = editor.join("Floor", editor.join("Add", product, editor.constant(np.array(0.5), np.float64)))
        total = editor.join("Cast", level, to=ir.DataType.FLOAT.value)
    else:
        step, multiplier = cut_multiplier(ratio)
        cut = editor.apply("Floor", editor.apply("Mul", accumulator, 1 / step))
        total = editor.apply("Add", editor.apply("Mul", cut, multiplier), multiplier / 2 + 0.5)
    _finish(editor, total, output, readers)
    return True


def _store_bias(editor: Editor, node: ir.Node, step: float, steps: Floats) -> None:
    """Replace the bias of an operator by the one that HTP stores."""
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    tensor = read_through(bias)
    if tensor is not None and tensor.levels is not None and tensor.dtype == ir.DataType.INT32:
        node.replace_input_with(2, editor.constant(stored_bias(tensor.levels, step) * steps))


def _sum(editor: Editor, node: ir.Node, output: float) -> bool:
    scales = [scales_of(value) for value in node.inputs]
    if any(scale is None or scale.size != 1 for scale in scales) or any(map(is_constant, node.inputs)):
        return False
    steps = np.array([scale.reshape(-1)[0] for scale in scales if scale is not None])
    ratios = (steps.astype(np.float32) / np.float32(output)).astype(np.float64)
    exponent = _SUM_BITS - 1 - np.floor(np.log2(ratios.sum()))
    multipliers = np.floor(ratios * 2.0**exponent + 0.5) / 2.0**exponent
    zeros = np.array([zero_point_of(value) for value in node.inputs], np.float64)
    coarse = 2.0 ** (exponent - 8)
    share = (zeros * multipliers).sum()
    # Zero points of the result are whole numbers, which rounding to a coarser step than 1 keeps.
    offset = share - np.rint(share * coarse) / coarse
    readers = readers_of(node)
    terms = []
    for value, step, multiplier in zip(node.inputs, steps, multipliers, strict=True):
        assert value is not None
        level = editor.apply("Round", editor.apply("Mul", value, np.array(1 / step)))
        terms.append(editor.apply("Mul", level, np.array(multiplier)))
    total = editor.apply("Add", editor.join("Add", *terms), np.array(offset + 0.5))
    _finish(editor, total, output, readers)
    return True


def _average(editor: Editor, node: ir.Node, output: float) -> bool:
    readers = readers_of(node)
    scaled = editor.apply("Mul", node.outputs[0], np.array(1 / output))
    _finish(editor, editor.apply("Add", scaled, np.array(0.5)), output, readers)
    return True


_Rewrite = Callable[[Editor, ir.Node, float], bool]
_REWRITES: dict[str, _Rewrite] = {
    **dict.fromkeys((name for name in LINEAR if name != "ConvTranspose"), _product),
    "Add": _sum,
    "AveragePool": _average,
}


def _finish(editor: Editor, total: ir.Value, output: float, readers: list[tuple[ir.Node, int]]) -> None:
    result = editor.apply("Mul", editor.apply("Floor", total), np.array(output))
    for reader, index in readers:
        reader.replace_input_with(index, result)
