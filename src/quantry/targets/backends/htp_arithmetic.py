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
                            ``floor((a + bias + zero) * 256 * r + 1/2 + 0.003)``. Not for depthwise with a stride.
==========================  ===========================================================================================

Other operators round their float result, as the simulation does. With 8 bits, a few results in a million differ from
HTP on real models, and 20 of 1,000 without these rules. With 16 bits, 1 to 3 in 1,000 results of a Conv differ, and 800
without: their integers are so fine that it matters only in layers whose sums cancel.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.graph.edit import constant_of
from quantry.graph.operators import LINEAR
from quantry.targets.pairs import is_dequantize, is_quantize

_Array = NDArray[np.float64]
_EIGHT_BITS = (ir.DataType.UINT8, ir.DataType.INT8)
_SIXTEEN_BITS = (ir.DataType.UINT16,)
_BOUNDING = ("Relu", "Clip")
_SUM_BITS = 14
_STRIDED_BITS = 15
_BIAS_BITS = 28
_MULTIPLIER_STEPS = 2.0**15
_CUT = 256
_WIDE_ROUNDING = 0.503  # measured: between 0.5026 and 0.5039


def write_htp_arithmetic(model: ir.Model) -> int:
    """Let the operators of a quantized model round as HTP does, in place.

    Args:
        model: A model with Q/DQ pairs. Operators for which no rule is known stay as they are.

    Returns:
        Number of operators that were changed.
    """
    changed = 0
    for node in list(model.graph):
        if is_quantize(node):
            changed += _input(_Editor(model.graph, node, before=True), node)
            continue
        rewrite = _REWRITES.get(node.op_type)
        output = _output_scale(node)
        if rewrite is not None and output is not None:
            changed += rewrite(_Editor(model.graph, node), node, output)
        wide = _output_scale(node, _SIXTEEN_BITS) if node.op_type == "Conv" else None
        if wide is not None:
            changed += _wide_product(_Editor(model.graph, node, before=True), node, wide)
    return changed


def cut_multiplier(ratio: _Array) -> tuple[_Array, _Array]:
    """Return the step that accumulators are cut to, and the multiplier of the cut accumulators.

    Args:
        ratio: Factor of requantization of each channel; larger than 0.
    """
    step = 2.0 ** np.floor(np.log2(1 / 8 / ratio))
    return step, np.floor(ratio * step * _MULTIPLIER_STEPS + 0.5) / _MULTIPLIER_STEPS


def short_multiplier(ratio: _Array, bits: int) -> _Array:
    """Return the factor with a mantissa of that many bits.

    Args:
        ratio: Factor of each channel; larger than 0.
        bits: Bits of the mantissa.
    """
    unit = 2.0 ** (np.floor(np.log2(ratio)) - (bits - 1))
    return np.floor(ratio / unit + 0.5) * unit


def stored_bias(bias: NDArray[np.int32], step: float) -> _Array:
    """Return the biases that HTP adds to the accumulators of a layer.

    Args:
        bias: The biases of the model, in steps of the accumulators.
        step: Input scale times the largest weight scale.
    """
    largest = np.float32(np.abs(bias.astype(np.int64)).max(initial=0))
    one, scale = np.float32(1), np.float32(step)
    unit = np.float32(np.float32(largest * scale) / np.float32(2.0**_BIAS_BITS))
    if unit == 0:
        return bias.astype(np.float64)
    # Every operation is in float32: its rounding decides which biases lose their last step.
    stored = np.rint((bias.astype(np.float32) * scale * (one / unit)).astype(np.float64))
    restored: _Array = np.trunc(stored.astype(np.float32) * unit / scale).astype(np.float64)
    return restored


class _Editor:
    """Inserts nodes after an operator, or before it."""

    def __init__(self, graph: ir.Graph, node: ir.Node, *, before: bool = False) -> None:
        self._graph = graph
        self._node = node
        self._last = None if before else node
        self._stem = node.outputs[0].name or ""
        self._count = 0

    def apply(self, operator: str, value: ir.Value, constant: _Array | None = None) -> ir.Value:
        """Return the result of an elementwise operator."""
        second = [] if constant is None else [self.constant(constant)]
        return self.join(operator, value, *second)

    def join(self, operator: str, *values: ir.Value, **attributes: int) -> ir.Value:
        """Return the result of an operator on computed values."""
        self._count += 1
        node = ir.node(operator, list(values), attributes=attributes or None, name=f"{self._stem}/htp_{self._count}")
        node.outputs[0].name = f"{self._stem}/htp_{self._count}"
        if self._last is None:
            self._graph.insert_before(self._node, node)
        else:
            self._graph.insert_after(self._last, node)
            self._last = node
        return node.outputs[0]

    def like(self, node: ir.Node, *values: ir.Value) -> ir.Value:
        """Return the result of an operator with the type and attributes of a node, on other values."""
        result = self.join(node.op_type, *values)
        made = result.producer()
        assert made is not None
        made.attributes.update(node.attributes)
        return result

    def constant(self, array: _Array, dtype: type[np.floating[Any]] = np.float32) -> ir.Value:
        """Return an array as a value."""
        self._count += 1
        name = f"{self._stem}/htp_{self._count}"
        value = ir.Value(name=name, const_value=ir.tensor(np.asarray(array, dtype), name=name))
        self._graph.register_initializer(value)
        return value


def _input(editor: _Editor, node: ir.Node) -> bool:
    value, scale = node.inputs[0], _quantizer_scale(node)
    if value is None or value.producer() is not None or value.const_value is not None or scale is None:
        return False
    quotient = editor.apply("Mul", value, np.array(np.float32(1) / np.float32(scale)))
    half = editor.join("Cast", quotient, to=ir.DataType.FLOAT16.value)
    wide = editor.join("Cast", half, to=ir.DataType.FLOAT.value)
    magnitude = editor.apply("Floor", editor.apply("Add", editor.apply("Abs", wide), np.array(0.5)))
    level = editor.join("Mul", magnitude, editor.apply("Sign", wide))
    node.replace_input_with(0, editor.apply("Mul", level, np.array(scale)))
    return True


def _product(editor: _Editor, node: ir.Node, output: float) -> bool:
    first, weights = (_scales(value) for value in node.inputs[:2])
    if first is None or weights is None or first.size != 1:
        return False
    steps = first.reshape(-1)[0] * weights.reshape(-1)
    if not _is_along_channels(node, steps.size):
        return False
    spread = (-1, 1, 1) if node.op_type in ("Conv", "ConvTranspose") and steps.size > 1 else (-1,)
    steps = steps.reshape(spread[: _rank(node)])
    # HTP computes the factors in float32, which decides about those between two multipliers.
    ratio = (steps.astype(np.float32) / np.float32(output)).astype(np.float64)
    ratio = np.maximum(ratio, np.finfo(np.float32).tiny)
    readers = _readers(node)
    is_strided = _is_strided_depthwise(node)
    if not is_strided:
        _store_bias(editor, node, float(np.max(first.reshape(-1)[0] * weights)), steps.reshape(-1))
    accumulator = editor.apply("Round", editor.apply("Mul", node.outputs[0], 1 / steps))
    if is_strided:
        # The product has up to 32 bits, more than float32 holds.
        wide = editor.join("Cast", accumulator, to=ir.DataType.DOUBLE.value)
        product = editor.join("Mul", wide, editor.constant(short_multiplier(ratio, _STRIDED_BITS), np.float64))
        level = editor.join("Floor", editor.join("Add", product, editor.constant(np.array(0.5), np.float64)))
        total = editor.join("Cast", level, to=ir.DataType.FLOAT.value)
    else:
        step, multiplier = cut_multiplier(ratio)
        cut = editor.apply("Floor", editor.apply("Mul", accumulator, 1 / step))
        total = editor.apply("Add", editor.apply("Mul", cut, multiplier), multiplier / 2 + 0.5)
    _finish(editor, total, output, readers)
    return True


def _wide_product(editor: _Editor, node: ir.Node, output: float) -> bool:
    """Replace a Conv with 16-bit input by two on its upper and lower bytes, whose sums float32 holds exactly."""
    first, weights = _scales(node.inputs[0], _SIXTEEN_BITS), _scales(node.inputs[1])
    levels = _levels(node.inputs[1])
    bias = _levels(node.inputs[2]) if len(node.inputs) > 2 else None
    if first is None or first.size != 1 or weights is None or levels is None or _is_strided_depthwise(node):
        return False
    if (len(node.inputs) > 2 and bias is None) or not _is_along_channels(node, weights.size):
        return False
    value = node.inputs[0]
    assert value is not None
    spread = (-1, *(1 for _ in levels.shape[2:]))
    zero, sums = _zero_point(value), levels.reshape(len(levels), -1).sum(1, dtype=np.float64)
    upper, lower = divmod(zero, _CUT)
    # Both are relative to the zero point, which is what padding adds.
    level = editor.apply("Round", editor.apply("Mul", value, np.array(1 / float(first.reshape(-1)[0]))))
    whole = editor.apply("Add", level, np.array(float(zero)))
    high = editor.apply("Floor", editor.apply("Mul", whole, np.array(1 / _CUT)))
    low = editor.apply(
        "Sub", editor.join("Sub", whole, editor.apply("Mul", high, np.array(float(_CUT)))), np.array(lower)
    )
    kernel = editor.constant(levels.astype(np.float64))
    tops = editor.like(node, editor.apply("Sub", high, np.array(upper)), kernel)
    rest = editor.apply("Add", editor.like(node, low, kernel), (lower * sums).reshape(spread))
    cut = editor.join("Add", tops, editor.apply("Floor", editor.apply("Mul", rest, np.array(1 / _CUT))))
    shares = upper * sums - np.sign(zero * sums) * np.floor(np.abs(zero * sums) / _CUT + 0.5)
    if bias is not None:
        shares += np.trunc(stored_bias(bias, float(np.max(first.reshape(-1)[0] * weights))) / _CUT)
    total = editor.join("Cast", editor.apply("Add", cut, shares.reshape(spread)), to=ir.DataType.DOUBLE.value)
    steps = first.reshape(-1)[0].astype(np.float32) * weights.reshape(-1).astype(np.float32)
    ratio = (steps / np.float32(output)).astype(np.float64) * _CUT
    scaled = editor.join("Mul", total, editor.constant(ratio.reshape(spread if ratio.size > 1 else ()), np.float64))
    rounded = editor.join("Floor", editor.join("Add", scaled, editor.constant(np.array(_WIDE_ROUNDING), np.float64)))
    readers = _readers(node)
    result = editor.apply("Mul", editor.join("Cast", rounded, to=ir.DataType.FLOAT.value), np.array(output))
    for reader, index in readers:
        reader.replace_input_with(index, result)
    return True


def _levels(value: ir.Value | None) -> NDArray[Any] | None:
    """Return the constant integers that a value is read from; None for others."""
    restore = None if value is None else value.producer()
    return constant_of(restore.inputs[0]) if restore is not None and is_dequantize(restore) else None


def _store_bias(editor: _Editor, node: ir.Node, step: float, steps: _Array) -> None:
    """Replace the bias of an operator by the one that HTP stores."""
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    restore = None if bias is None else bias.producer()
    levels = None if restore is None or not is_dequantize(restore) else constant_of(restore.inputs[0])
    if levels is not None and levels.dtype == np.int32:
        node.replace_input_with(2, editor.constant(stored_bias(levels, step) * steps))


def _sum(editor: _Editor, node: ir.Node, output: float) -> bool:
    scales = [_scales(value) for value in node.inputs]
    if any(scale is None or scale.size != 1 for scale in scales) or any(map(_is_constant, node.inputs)):
        return False
    steps = np.array([scale.reshape(-1)[0] for scale in scales if scale is not None])
    ratios = (steps.astype(np.float32) / np.float32(output)).astype(np.float64)
    exponent = _SUM_BITS - 1 - np.floor(np.log2(ratios.sum()))
    multipliers = np.floor(ratios * 2.0**exponent + 0.5) / 2.0**exponent
    zeros = np.array([_zero_point(value) for value in node.inputs], np.float64)
    coarse = 2.0 ** (exponent - 8)
    share = (zeros * multipliers).sum()
    # Zero points of the result are whole numbers, which rounding to a coarser step than 1 keeps.
    offset = share - np.rint(share * coarse) / coarse
    readers = _readers(node)
    parts = []
    for value, step, multiplier in zip(node.inputs, steps, multipliers, strict=True):
        assert value is not None
        level = editor.apply("Round", editor.apply("Mul", value, np.array(1 / step)))
        parts.append(editor.apply("Mul", level, np.array(multiplier)))
    total = editor.apply("Add", editor.join("Add", *parts), np.array(offset + 0.5))
    _finish(editor, total, output, readers)
    return True


def _average(editor: _Editor, node: ir.Node, output: float) -> bool:
    readers = _readers(node)
    scaled = editor.apply("Mul", node.outputs[0], np.array(1 / output))
    _finish(editor, editor.apply("Add", scaled, np.array(0.5)), output, readers)
    return True


_Rewrite = Callable[[_Editor, ir.Node, float], bool]
_REWRITES: dict[str, _Rewrite] = {
    **dict.fromkeys((name for name in LINEAR if name != "ConvTranspose"), _product),
    "Add": _sum,
    "AveragePool": _average,
}


def _finish(editor: _Editor, total: ir.Value, output: float, readers: list[tuple[ir.Node, int]]) -> None:
    result = editor.apply("Mul", editor.apply("Floor", total), np.array(output))
    for reader, index in readers:
        reader.replace_input_with(index, result)


def _readers(node: ir.Node) -> list[tuple[ir.Node, int]]:
    return [(use.node, use.idx) for use in node.outputs[0].uses()]


def _output_scale(node: ir.Node, types: tuple[ir.DataType, ...] = _EIGHT_BITS) -> float | None:
    """Return the scale of the quantizer after a node, also after a Relu or Clip; None if it has none of these types."""
    value = node.outputs[0]
    readers = [use.node for use in value.uses()]
    if len(readers) == 1 and readers[0].op_type in _BOUNDING:
        readers = [use.node for use in readers[0].outputs[0].uses()]
    if not readers or not all(map(is_quantize, readers)):
        return None
    scales = {_quantizer_scale(reader, types) for reader in readers}
    return scales.pop() if len(scales) == 1 else None


def _quantizer_scale(node: ir.Node, types: tuple[ir.DataType, ...] = _EIGHT_BITS) -> float | None:
    scale = constant_of(node.inputs[1])
    zero_point = node.inputs[2] if len(node.inputs) > 2 else None
    fits = zero_point.dtype in types if zero_point is not None else types is _EIGHT_BITS
    return None if scale is None or scale.size != 1 or not fits else float(scale.reshape(-1)[0])


def _scales(value: ir.Value | None, types: tuple[ir.DataType, ...] = _EIGHT_BITS) -> _Array | None:
    """Return the scales of a tensor that is read through these types; None for others."""
    restore = None if value is None else value.producer()
    if restore is None or not is_dequantize(restore) or restore.inputs[0] is None:
        return None
    scale = constant_of(restore.inputs[1])
    zero_point = restore.inputs[2] if len(restore.inputs) > 2 else None
    dtype = zero_point.dtype if zero_point is not None else restore.inputs[0].dtype
    return None if scale is None or dtype not in types else scale.astype(np.float64)


def _zero_point(value: ir.Value | None) -> int:
    restore = None if value is None else value.producer()
    stored = restore.inputs[2] if restore is not None and len(restore.inputs) > 2 else None
    found = None if stored is None else constant_of(stored)
    return 0 if found is None else int(found.reshape(-1)[0])


def _is_constant(value: ir.Value | None) -> bool:
    restore = None if value is None else value.producer()
    return restore is not None and restore.inputs[0] is not None and restore.inputs[0].const_value is not None


def _is_along_channels(node: ir.Node, scales: int) -> bool:
    """Whether scales of weights belong to output channels: always, unless a MatMul has them along its input."""
    if scales == 1:
        return True
    restore = node.inputs[1].producer() if node.inputs[1] is not None else None
    axis = 1 if restore is None else restore.attributes.get_int("axis", 1)
    if node.op_type == "Conv":
        return axis == 0
    transposed = node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))
    return axis in ((0, -2) if transposed else (1, -1))


def _is_strided_depthwise(node: ir.Node) -> bool:
    if node.op_type != "Conv" or node.attributes.get_int("group", 1) == 1:
        return False
    weight = node.inputs[1]
    shape = None if weight is None or weight.shape is None else weight.shape
    alone = shape is not None and shape[1] == 1
    return alone and max(node.attributes.get_ints("strides", (1,))) > 1


def _rank(node: ir.Node) -> int:
    shape = node.outputs[0].shape
    return 3 if node.op_type != "Conv" or shape is None else len(shape) - 1
