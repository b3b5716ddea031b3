"""Proof that no accumulator overflows: bounds of every sum of products from weights and zero points, and its ties.

An output of a Conv, Gemm or MatMul is a sum of products of integers plus a bias::

    acc = sum_k (x_k - zero_x) * (w_k - zero_w) + bias

With known weights, the largest sum has the largest input wherever the weight is positive and the smallest one wherever
it is negative. This bound is exact: some input reaches it. If both operands are computed, their types bound the sum.

Requantization multiplies the sum by ``scale_x * scale_w / scale_y`` and rounds. A sum is a tie if the product lies
exactly between two integers; targets round ties differently, so that results differ by one there.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.facts.operators import LINEAR, OPERATORS
from quantry.graph.edit import constant_of, int_of
from quantry.graph.qdq import QuantizedTensor, is_quantize, read_through
from quantry.targets.rules.rule import CheckedModel, TargetRule, Violation

_SUMMED_IN_INT32 = 8
INT32 = (-(2**31), 2**31 - 1)


@dataclass(frozen=True)
class Accumulator:
    """The bounds of one node's sums.

    Attributes:
        node: Name of the node.
        operator: Its operator type.
        low: Smallest sum that can occur.
        high: Largest sum that can occur.
        operand_bits: Bits of its wider operand.
        ties: Fraction of the sums between the bounds that are ties, in the channel with most; 0 if the result is float.
    """

    node: str
    operator: str
    low: int
    high: int
    operand_bits: int
    ties: float = 0.0

    @property
    def bits(self) -> int:
        """Bits of a signed integer that holds every sum."""
        return max(int(self.high).bit_length(), int(-self.low - 1).bit_length() if self.low < 0 else 0) + 1

    @property
    def fits(self) -> bool:
        """Whether 32 bits hold every sum."""
        return INT32[0] <= self.low and self.high <= INT32[1]


def prove_accumulators(model: CheckedModel) -> tuple[Accumulator, ...]:
    """Return the bounds of all sums of a quantized model.

    Args:
        model: The model.

    Returns:
        One entry for each Conv, ConvTranspose, Gemm and MatMul that reads integers, in graph order.
    """
    return tuple(
        accumulator for node in model.operators if node.op_type in LINEAR for accumulator in _proven(model, node)
    )


def _proven(model: CheckedModel, node: ir.Node) -> Iterator[Accumulator]:
    data, weight = (model.tensors.of(value) for value in node.inputs[:2])
    if data is None or weight is None or data.scales is None or weight.scales is None:
        return
    if data.limits is None or weight.limits is None:
        return
    low, high = (level - data.offset for level in data.limits)
    restored = read_through(node.inputs[1])
    levels = None if restored is None else restored.levels
    if levels is None:
        lows, highs = _computed_bounds(node, (low, high), tuple(level - weight.offset for level in weight.limits))
    else:
        rows = _rows(node, levels.astype(np.int64), weight)
        positive, negative = np.maximum(rows, 0).sum(axis=1), np.minimum(rows, 0).sum(axis=1)
        lows, highs = positive * low + negative * high, positive * high + negative * low
    scales = np.asarray(data.scales, np.float64).reshape(-1)[0] * np.asarray(weight.scales, np.float64).reshape(-1)
    bias = _bias(node, scales, len(lows))
    lows, highs = lows + bias, highs + bias
    ties = _ties(lows, highs, scales, _result(model, node))
    bits = max((high - low).bit_length() for low, high in (data.limits, weight.limits))
    yield Accumulator(node.name or "", node.op_type, int(lows.min()), int(highs.max()), bits, ties)


def _rows(node: ir.Node, integers: NDArray[np.int64], weight: QuantizedTensor) -> NDArray[np.int64]:
    """Return the weights minus their zero points, one row per output channel."""
    facts = OPERATORS[node.op_type].weight
    assert facts is not None
    axis = facts.output_axis
    if node.op_type == "Gemm":
        axis = 0 if int_of(node, "transB", 0) else 1
    elif node.op_type == "MatMul":
        axis = integers.ndim - 1
    zero = weight.zero_points.reshape(-1)
    shape = [1] * integers.ndim
    if zero.size > 1 and zero.size == integers.shape[axis]:
        shape[axis] = zero.size
        integers = integers - zero.reshape(shape)
    else:
        integers = integers - zero[0]
    if node.op_type == "MatMul" and integers.ndim > 2:
        # Every matrix of a stack has its own sums.
        return np.moveaxis(integers, -2, -1).reshape(-1, integers.shape[-2])
    return np.moveaxis(integers, axis, 0).reshape(integers.shape[axis], -1)


def _computed_bounds(
    node: ir.Node, first: tuple[int, ...], second: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the bounds of a product of two computed tensors."""
    value = node.inputs[0]
    length = value.shape[-1] if value is not None and value.shape is not None and len(value.shape) else 1
    count = length if isinstance(length, int) else 1
    products = [one * other for one in first for other in second]
    return np.array([count * min(products)]), np.array([count * max(products)])


def _bias(node: ir.Node, scales: NDArray[np.float64], channels: int) -> NDArray[np.int64]:
    value = node.inputs[2] if len(node.inputs) > 2 else None
    restored = read_through(value)
    floats = constant_of(value) if restored is None else restored.numbers
    if floats is None:
        return np.zeros(channels, np.int64)
    floats = floats.astype(np.float64).reshape(-1)
    rounded = np.rint(np.broadcast_to(floats, (channels,)) / np.broadcast_to(scales, (channels,)))
    return rounded.astype(np.int64)


def _result(model: CheckedModel, node: ir.Node) -> QuantizedTensor | None:
    """Return the quantized result, also after a fused function."""
    output = node.outputs[0]
    for _ in range(2):
        tensor = model.tensors.of(output)
        if tensor is not None:
            return tensor
        readers = [use.node for use in output.uses()]
        if len(readers) != 1 or is_quantize(readers[0]) or not readers[0].outputs:
            return None
        output = readers[0].outputs[0]
    return None


def _ties(
    lows: NDArray[np.int64], highs: NDArray[np.int64], scales: NDArray[np.float64], result: QuantizedTensor | None
) -> float:
    if result is None or result.step is None:
        return 0.0
    factors = np.broadcast_to(np.float32(scales / result.step), lows.shape)
    return max(_tie_share(int(low), int(high), float(f)) for low, high, f in zip(lows, highs, factors, strict=True))


def _tie_share(low: int, high: int, factor: float) -> float:
    """Return the fraction of integers between two bounds whose product with a factor ends in exactly one half.

    With ``factor = odd * 2**exponent``, the product of v is a half if v has exactly ``-exponent - 1`` trailing zeros.
    """
    if factor <= 0 or not math.isfinite(factor):
        return 0.0
    mantissa, exponent = math.frexp(factor)
    significand = int(mantissa * 2**53)
    zeros = (significand & -significand).bit_length() - 1
    trailing = -(exponent - 53 + zeros) - 1
    if trailing < 0:
        return 0.0
    step = 1 << trailing
    multiples = high // step - -(-low // step) + 1
    finer = high // (2 * step) - -(-low // (2 * step)) + 1
    return max(multiples - finer, 0) / (high - low + 1)


@dataclass(frozen=True, kw_only=True)
class NoOverflow(TargetRule):
    """No sum of 8-bit products of a Conv, Gemm or MatMul can leave the range of int32, whatever the input.

    Wider operands are computed in float or summed in more bits.
    """

    name = "int32 accumulator"

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "no sum of 8-bit products of a Conv, ConvTranspose, Gemm or MatMul leaves the range of int32"

    def violations(self, model: CheckedModel) -> Iterator[Violation]:
        """Yield the nodes whose sums can overflow."""
        for sums in prove_accumulators(model):
            if not sums.fits and sums.operand_bits <= _SUMMED_IN_INT32:
                values = f"its sums reach {sums.low:,} to {sums.high:,}, which need {sums.bits} bits, allowed 32"
                yield self.broken(sums.node, values, "use fewer bits for its input or its weight, or split the layer")
