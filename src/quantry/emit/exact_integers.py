"""The integer form of a quantized model: onnxruntime's integer kernels wherever they provably give the same bits.

A session that keeps every Q/DQ pair computes power-of-two int8 models in float, at two to three times the cost of the
float model. The integer kernels are faster and, under the conditions below, return exactly the same numbers. A node
that does not meet them keeps its pairs.

=====================  ================================================================================================
Conv, Gemm, MatMul     All scales are powers of two, and no sum of products can reach 2**24 steps. Then float32 holds
                       every partial sum exactly, in any order, so both kernels see the same accumulator and round it
                       once, half to even.
their bias             A whole number of accumulator steps becomes int32. A finer bias never makes the result a tie:
                       it only decides that what would be a tie without it is rounded up. The multiplier of its
                       channel gets one unit in the last place more, which does just that, and the zero point moves
                       into the bias, so that every result that is not cut off is positive.
Add, Mul               All scales are powers of two, close enough for 24 bits. The kernels add the zero point before
                       rounding, so it must be even for ties to go the same way.
averages               The same, over a power-of-two number of values without padding.
Sigmoid, LeakyRelu,    Look-up tables that onnxruntime computes with the float operator: exact for every scale.
Concat
HardSigmoid            An affine function, which is a Concat of one input with another scale and zero point, then Clip.
data movement, Clip    The same operator on integers: exact for every scale.
=====================  ================================================================================================

Signed activations become unsigned, with 128 added to integers and zero points: onnxruntime's kernels for signed
activations are several times slower.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import InlinePass, LiftConstantsToInitializersPass

from quantry.emit.fix_neuron import FIX_NEURON
from quantry.emit.graph_editor import GraphEditor
from quantry.emit.integer import (
    BYTES,
    KERNELS,
    Kernel,
    Product,
    QuantizedOperator,
    array,
    clip_node,
    has_bias,
    operands,
    product_node,
    scales_of,
)
from quantry.emit.local_functions import CONTRIB, STANDARD, VITIS
from quantry.emit.qoperator import use_integer_kernels
from quantry.facts.operators import MATRIX_PRODUCTS, operators_where
from quantry.graph.qdq import QuantizedTensor, is_dequantize, is_pair_operator, is_quantize, tensor_of
from quantry.numerics.rounding import round_and_clip

_EXACT_INTEGERS = 2**24  # float32 holds every integer up to here
_MANTISSA_BITS = 24
_CODE_BITS = 8
# With one unit in the last place more, a number of b bits grows by less than half a step if b is at most 22.
_NUDGED_BITS = 22
_NUDGE = np.float32(1 + 2.0**-23)

_VENDORS = {FIX_NEURON[0], *(dialect.domain for dialect in VITIS.values())}
_MOVES = operators_where(lambda row: row.integer_kernel)


def use_exact_integers(model: ir.Model) -> int:
    """Replace operators by integer kernels wherever they give the same bits, in place.

    Args:
        model: A quantized model with pairs of any dialect that onnxruntime runs. It is changed even if no operator is
            replaced, but always computes the same.

    Returns:
        Number of products (Conv, Gemm, MatMul) that were replaced. Without one, nothing gets faster.
    """
    if not any(is_quantize(node) or node.op_type == FIX_NEURON[1] for node in model.graph):
        return 0
    InlinePass(lambda function: function.domain in _VENDORS)(model)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    _use_standard_pairs(model)
    written = (tensor_of(node) for node in model.graph if is_quantize(node))
    if not any(tensor is not None and _exponent(tensor) is not None for tensor in written):
        return 0
    _quantize_constants(model)
    _use_unsigned_activations(model)
    product_count = _products(model)
    use_integer_kernels(model, EXACT_KERNELS)
    return product_count - _products(model)


def may_use_exact_integers(proto: onnx.ModelProto) -> bool:
    """Return whether `use_exact_integers` may replace a product, without the time of reading the graph.

    A product needs a weight whose scales are all powers of two. What is not plain to see counts as one.

    Args:
        proto: The model; its external data need not be loaded.
    """
    if proto.functions or any(node.domain in _VENDORS for node in proto.graph.node):
        return True
    constants: dict[str, onnx.TensorProto | None] = {tensor.name: tensor for tensor in proto.graph.initializer}
    constants |= {name: None for node in proto.graph.node if node.op_type == "Constant" for name in node.output}
    return any(
        node.input[0] in constants and _may_be_powers(constants.get(node.input[1]))
        for node in proto.graph.node
        if is_pair_operator(node.op_type) and len(node.input) > 1
    )


def _may_be_powers(scale: onnx.TensorProto | None) -> bool:
    if scale is None or scale.data_location == onnx.TensorProto.EXTERNAL:
        return True
    values = onnx.numpy_helper.to_array(scale).astype(np.float32)
    return bool((np.frexp(values)[0] == 0.5).all())


def _products(model: ir.Model) -> int:
    return sum(node.op_type in MATRIX_PRODUCTS or node.op_type == "Conv" for node in model.graph)


def _use_standard_pairs(model: ir.Model) -> None:
    """Rename 8-bit pairs of com.microsoft, which are the same operators as the standard ones."""
    for node in model.graph:
        tensor = tensor_of(node) if node.domain == CONTRIB.domain else None
        if tensor is not None and tensor.zero_point is not None and tensor.dtype in BYTES:
            node.domain = STANDARD.domain


def _quantize_constants(model: ir.Model) -> None:
    """Replace QuantizeLinear of a constant by its result: FixNeuron stores weights as floats."""
    editor = GraphEditor(model)
    for node in list(model.graph):
        tensor = tensor_of(node) if is_quantize(node) and not node.domain else None
        floats = None if tensor is None else node.inputs[0]
        if tensor is None or floats is None or floats.const_value is None or node.outputs[0].is_graph_output():
            continue
        if not tensor.is_fixed or tensor.step is None or tensor.limits is None or tensor.dtype is None:
            continue
        low, high = (end - tensor.offset for end in tensor.limits)
        steps = round_and_clip(array(floats) / scales_of(tensor), low, high)
        codes = editor.constant((steps + tensor.offset).astype(tensor.dtype.numpy()), f"{floats.name}_quantized")
        node.outputs[0].replace_all_uses_with(codes)
        model.graph.remove(node, safe=True)


def _use_unsigned_activations(model: ir.Model) -> None:
    """Add 128 to integers and zero points of int8 tensors that are computed, or constants of Add, Mul and the like."""
    editor = GraphEditor(model)
    shifted: dict[ir.Value, ir.Value] = {}
    for node in list(model.graph):
        if not is_quantize(node) or node.domain or node.outputs[0].is_graph_output():
            continue
        readers = [use.node for use in node.outputs[0].uses()]
        if all(is_dequantize(reader) for reader in readers) and all(map(_is_signed, (node, *readers))):
            for member in (node, *readers):
                member.replace_input_with(2, _shifted(member.inputs[2], editor, shifted))
            node.outputs[0].type = ir.TensorType(ir.DataType.UINT8)
    for node in list(model.graph):
        if is_dequantize(node) and _is_operand(node) and _is_signed(node):
            for index in (0, 2):
                node.replace_input_with(index, _shifted(node.inputs[index], editor, shifted))


def _is_signed(node: ir.Node) -> bool:
    """Whether a node of a pair has a constant zero point of type int8."""
    tensor = tensor_of(node)
    return tensor is not None and tensor.is_fixed and tensor.dtype == ir.DataType.INT8


def _is_operand(node: ir.Node) -> bool:
    """Whether a DequantizeLinear restores a constant that is not the weight or bias of a product."""
    integers, restored = node.inputs[0], node.outputs[0]
    if integers is None or integers.const_value is None or restored.is_graph_output():
        return False
    return all(use.node.op_type in ("Add", "Mul", "Concat") for use in restored.uses())


def _shifted(value: ir.Value | None, editor: GraphEditor, shifted_values: dict[ir.Value, ir.Value]) -> ir.Value:
    assert value is not None
    if value not in shifted_values:
        codes = (array(value).astype(np.int16) + 128).astype(np.uint8)
        shifted_values[value] = editor.constant(codes, f"{value.name}_unsigned")
    return shifted_values[value]


def _exponent(tensor: QuantizedTensor) -> NDArray[np.int64] | None:
    """Return the logarithms of power-of-two scales, else None."""
    if tensor.scales is None:
        return None
    mantissas, exponents = np.frexp(tensor.scales.astype(np.float64))
    # The limits keep products of scales far from float32's denormal numbers and from its overflow.
    if not np.all(mantissas == 0.5) or np.abs(exponents).max(initial=0) > 60:
        return None
    return np.asarray(exponents - 1, np.int64).reshape(-1)


def _steps(side: QuantizedTensor) -> tuple[int, int]:
    """Return the smallest and the largest number of steps from zero that a tensor can have, including zero itself.

    A Clip before it, also one before data movement, narrows the range of the type.
    """
    assert side.limits is not None
    low, high = side.limits
    value: ir.Value | None = side.integers
    while value is not None and (producer := value.producer()) is not None and producer.op_type in _MOVES:
        value = producer.inputs[0]
    bounding = None if value is None else value.producer()
    if bounding is not None and bounding.op_type == "Clip":
        bounds = [*bounding.inputs[1:], None, None][:2]
        levels = [int(array(b)) if b is not None and b.const_value is not None else None for b in bounds]
        low, high = (end if bound is None else bound for end, bound in zip((low, high), levels, strict=True))
    zero = side.offset
    return min(low - zero, 0), max(high - zero, 0)


def _product(unit: QuantizedOperator) -> ir.Node | None:
    sides = operands(unit)
    if sides is None:
        return None
    data, weight = sides
    exponents = [_exponent(tensor) for tensor in (data, weight, unit.output)]
    bound = _largest_sum(unit.node, data, weight)
    if bound is None or any(exponent is None for exponent in exponents):
        return None
    by_data, by_weight, by_output = (exponent for exponent in exponents if exponent is not None)
    step = by_data + by_weight
    bias = _bias_in_steps(unit, step) if has_bias(unit) else np.zeros(1)
    if bias is None or np.max(bound + np.abs(bias)) >= _EXACT_INTEGERS:
        return None
    shift = np.broadcast_to(by_output - step, np.broadcast_shapes(bias.shape, step.shape))
    product = _whole_bias(unit, Product(data, weight, None, unit.output.parameters), bias, shift)
    return None if product is None else product_node(unit, product)


def _largest_sum(node: ir.Node, data: QuantizedTensor, weight: QuantizedTensor) -> NDArray[np.float64] | None:
    """Return how large a partial sum of each output channel can get, in any order; None if that is unknown."""
    low, high = _steps(data)
    if weight.integers.const_value is None:
        length = None if weight.integers.shape is None else weight.integers.shape[-2]
        if not isinstance(length, int) or node.op_type != "MatMul":
            return None
        return np.array([float(length) * max(-low, high) * max(map(abs, _steps(weight)))])
    matrix = array(weight.integers).astype(np.float64) - weight.offset
    if node.op_type == "Conv" or (node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1):
        rows = matrix.reshape(matrix.shape[0], -1)
    elif matrix.ndim == 2:
        rows = matrix.T
    else:
        return None
    rising, falling = np.maximum(rows, 0).sum(axis=1), np.maximum(-rows, 0).sum(axis=1)
    largest: NDArray[np.float64] = np.maximum(rising * high - falling * low, falling * high - rising * low)
    return largest


def _bias_in_steps(unit: QuantizedOperator, step: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """Return the bias in steps of the accumulator, which may be fractions; None if it is not of that kind."""
    bias = unit.inputs[2]
    if bias is None or bias.integers.const_value is None or array(bias.integers).ndim != 1:
        return None
    codes = array(bias.integers).astype(np.float64) - bias.zero_points
    exponent = _exponent(bias)
    if exponent is None:
        # A derived bias of type int32 has the accumulator's scale whatever the other scales are.
        return None
    return np.asarray(np.ldexp(codes, (exponent - step).astype(np.int32)), np.float64)


def _whole_bias(
    unit: QuantizedOperator, product: Product, bias: NDArray[np.float64], shift: NDArray[np.int64]
) -> Product | None:
    """Return the product with a bias of whole accumulator steps that leads to the same results.

    Args:
        unit: The operator.
        product: The product without bias.
        bias: The bias in accumulator steps.
        shift: The logarithm of how many accumulator steps one output step has, for each channel.
    """
    fraction = bias != np.floor(bias)
    # With equal steps only the rounding of the bias itself matters, unless it is half a step.
    simple = fraction & (shift == 0) & (bias - np.floor(bias) != 0.5)
    bias = np.where(simple, np.rint(bias), bias)
    fraction = fraction & ~simple
    if not fraction.any():
        return replace(product, bias=_constant_bias(unit, bias) if has_bias(unit) else None)
    zero = unit.output.offset
    if zero % 2 or unit.output.dtype != ir.DataType.UINT8 or not _is_distinct(bias, shift, fraction):
        return None
    bias = np.floor(bias) + np.ldexp(float(zero), shift.astype(np.int32))
    if np.any(bias != np.floor(bias)):
        return None
    scale = np.broadcast_to(scales_of(product.weight).reshape(-1), bias.shape)
    nudged = np.where(fraction, scale * _NUDGE, scale).astype(np.float32)
    name = unit.node.name or ""
    # QGemm needs as many zero points as scales.
    zeros = np.broadcast_to(array(product.weight.parameters[1]).reshape(-1), bias.shape).copy()
    weight = QuantizedTensor(
        product.weight.integers,
        unit.editor.constant(nudged, f"{name}_nudged_scale"),
        unit.editor.constant(zeros, f"{name}_repeated_zero_point"),
        axis=0,
    )
    output = (product.output[0], unit.editor.constant(np.zeros((), np.uint8), f"{name}_moved_zero_point"))
    return replace(product, weight=weight, bias=_constant_bias(unit, bias), output=output)


def _is_distinct(bias: NDArray[np.float64], shift: NDArray[np.int64], fraction: NDArray[np.bool_]) -> bool:
    """Whether float32 tells sums with and without the fractions apart, wherever the result is not cut off."""
    # A result that is not cut off has at most 2**(8 + shift) accumulator steps. Ties are whole numbers of steps only if
    # an output step has two or more.
    below = np.array([_bits_below_one(float(value)) for value in bias])
    used = shift[fraction] + _CODE_BITS
    return bool(np.all(shift[fraction] >= 1) and np.all(used <= _NUDGED_BITS)) and bool(
        np.all(used + below[fraction] <= _MANTISSA_BITS)
    )


def _bits_below_one(value: float) -> int:
    return max(0, value.as_integer_ratio()[1].bit_length() - 1)


def _constant_bias(unit: QuantizedOperator, bias: NDArray[np.float64]) -> ir.Value:
    source = unit.inputs[2]
    stem = unit.node.name if source is None else source.integers.name
    return unit.editor.constant(bias.astype(np.int32), f"{stem}_int32")


def _exponents_of(unit: QuantizedOperator) -> list[int] | None:
    """Return the exponents of all inputs and of the output; None if a scale is not a power of two or a tie differs."""
    sides = unit.sides(len(unit.node.inputs))
    if sides is None or unit.output.offset % 2:
        return None
    exponents = [_exponent(side) for side in (*sides, unit.output)]
    return None if any(exponent is None for exponent in exponents) else [int(e[0]) for e in exponents if e is not None]


def _add(unit: QuantizedOperator) -> ir.Node | None:
    exponents = _exponents_of(unit)
    # Two terms of 8 bits with their zero points need 11 bits above the finest step.
    if exponents is None or max(exponents) - min(exponents) + _CODE_BITS + 3 > _MANTISSA_BITS:
        return None
    return KERNELS["Add"](unit)


def _multiply(unit: QuantizedOperator) -> ir.Node | None:
    exponents = _exponents_of(unit)
    if exponents is None:
        return None
    first, second, output = exponents
    # The product has 16 bits; the zero point is added to it before it is rounded.
    ratio = output - first - second
    return KERNELS["Mul"](unit) if ratio + _CODE_BITS + 1 <= _MANTISSA_BITS and ratio > -100 else None


def _average(unit: QuantizedOperator) -> ir.Node | None:
    exponents = _exponents_of(unit)
    count = _averaged_values(unit)
    if exponents is None or count is None or count & (count - 1) or count * 2**_CODE_BITS >= _EXACT_INTEGERS:
        return None
    spread = max(exponents[1] - exponents[0], 0) + int(math.log2(count))
    return KERNELS[unit.node.op_type](unit) if spread + _CODE_BITS + 1 <= _MANTISSA_BITS else None


def _averaged_values(unit: QuantizedOperator) -> int | None:
    """Return how many values each average has; None if that is unknown or differs at the edges."""
    node = unit.node
    if node.op_type == "AveragePool":
        if any(node.attributes.get_ints("pads", ())) or node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
            return None
        return math.prod(node.attributes.get_ints("kernel_shape", ()))
    source = unit.inputs[0]
    shape = None if source is None else source.integers.shape
    sizes = [] if shape is None else list(shape)[2:]
    return (
        math.prod(size for size in sizes if isinstance(size, int))
        if sizes and all(isinstance(size, int) for size in sizes)
        else None
    )


def _hard_sigmoid(unit: QuantizedOperator) -> ir.Node | None:
    """Return a Concat of one tensor whose scale contains alpha and whose zero point contains beta, then Clip."""
    sides, exponents = unit.sides(1), _exponents_of(unit)
    if sides is None or exponents is None:
        return None
    alpha, beta = (unit.node.attributes.get_float(name, value) for name, value in (("alpha", 0.2), ("beta", 0.5)))
    slope = np.float32(alpha * float(scales_of(sides[0]).item()))  # exact: the scale is a power of two
    zero, unit_step = unit.output.offset, math.ldexp(1.0, -exponents[1])
    moved, limits = zero + beta * unit_step, (zero, min(zero + int(unit_step), 255))
    if moved != int(moved) or not 0 <= moved <= 255:
        return None
    # All 256 inputs are compared, so nothing needs to be known about alpha.
    steps = np.arange(256, dtype=np.float32) - np.float32(sides[0].offset)
    line = np.clip(np.rint(steps * slope * np.float32(unit_step)) + moved, *limits)
    if not all(
        np.array_equal(line, expected) for expected in _hard_sigmoid_codes(steps, slope, beta, (unit_step, zero))
    ):
        return None
    name = unit.node.name or ""
    zero_point = unit.editor.constant(np.array(moved, np.uint8), f"{name}_moved_zero_point")
    scale = unit.editor.constant(np.asarray(slope), f"{name}_sloped_scale")
    inputs = (unit.output.scale, zero_point, sides[0].integers, scale, sides[0].zero_point)
    node = unit.make(("com.microsoft", "QLinearConcat"), inputs, {"axis": 0})
    assert unit.node.graph is not None
    unit.node.graph.insert_before(unit.node, node)
    return clip_node(unit, node.outputs[0], limits)


def _hard_sigmoid_codes(
    steps: NDArray[np.float32], slope: np.float32, beta: float, output: tuple[float, int]
) -> Iterator[NDArray[np.float64]]:
    """Yield the output of HardSigmoid for all inputs, without and with a fused multiply-add: processors differ."""
    rounded = steps * slope + np.float32(beta)
    fused = (steps.astype(np.float64) * np.float64(slope) + beta).astype(np.float32)
    for values in (rounded, fused):
        codes = np.rint(np.clip(values, 0, 1).astype(np.float64) * output[0]) + output[1]
        yield np.clip(codes, 0, 255)


EXACT_KERNELS: dict[str, Kernel] = {
    **dict.fromkeys(("Conv", *MATRIX_PRODUCTS), _product),
    "Add": _add,
    "Mul": _multiply,
    "HardSigmoid": _hard_sigmoid,
    **dict.fromkeys(("AveragePool", "GlobalAveragePool"), _average),
    **{name: kernel for name, kernel in KERNELS.items() if name in (*_MOVES, "Pad", "Relu", "Clip")},
    **{name: KERNELS[name] for name in ("Sigmoid", "LeakyRelu", "Concat")},
}
"""For each float operator, the kernel with the same bits, or None where that is not proven."""
