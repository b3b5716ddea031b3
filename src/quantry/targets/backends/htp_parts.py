"""What the rules of HTP's arithmetic share: multipliers, stored biases, an editor of graphs, and readers of pairs."""

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.graph.qdq import quantizers_of, read_through, tensor_of

Floats = NDArray[np.float64]
EIGHT_BITS = (ir.DataType.UINT8, ir.DataType.INT8)
SIXTEEN_BITS = (ir.DataType.UINT16,)
STRIDED_BITS = 15  # bits of the multiplier of a depthwise Conv with a stride
_BOUNDING = ("Relu", "Clip")
_BIAS_BITS = 28
_MULTIPLIER_STEPS = 2.0**15


def cut_multiplier(ratio: Floats) -> tuple[Floats, Floats]:
    """Return the step that accumulators are cut to, and the multiplier of the cut accumulators.

    Args:
        ratio: Factor of requantization of each channel; larger than 0.
    """
    step = 2.0 ** np.floor(np.log2(1 / 8 / ratio))
    return step, np.floor(ratio * step * _MULTIPLIER_STEPS + 0.5) / _MULTIPLIER_STEPS


def short_multiplier(ratio: Floats, bits: int) -> Floats:
    """Return the factor with a mantissa of that many bits.

    Args:
        ratio: Factor of each channel; larger than 0.
        bits: Bits of the mantissa.
    """
    unit = 2.0 ** (np.floor(np.log2(ratio)) - (bits - 1))
    return np.floor(ratio / unit + 0.5) * unit


def stored_bias(bias: NDArray[np.int32], step: float) -> Floats:
    """Return the biases that HTP adds to the accumulators of a layer.

    Args:
        bias: The biases of the model, in steps of the accumulators.
        step: Input scale times the largest weight scale.
    """
    largest = np.float32(np.abs(bias.astype(np.int64)).max(initial=0))
    unity, scale = np.float32(1), np.float32(step)
    unit = np.float32(np.float32(largest * scale) / np.float32(2.0**_BIAS_BITS))
    if unit == 0:
        return bias.astype(np.float64)
    # Every operation is in float32: its rounding decides which biases lose their last step.
    stored = np.rint((bias.astype(np.float32) * scale * (unity / unit)).astype(np.float64))
    restored: Floats = np.trunc(stored.astype(np.float32) * unit / scale).astype(np.float64)
    return restored


class Editor:
    """Inserts nodes after an operator, or before it."""

    def __init__(self, graph: ir.Graph, node: ir.Node, *, before: bool = False) -> None:
        self._graph = graph
        self._node = node
        self._last = None if before else node
        self._stem = node.outputs[0].name or ""
        self._count = 0

    def apply(self, operator: str, value: ir.Value, constant: Floats | None = None) -> ir.Value:
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
        producer = result.producer()
        assert producer is not None
        producer.attributes.update(node.attributes)
        return result

    def constant(self, array: Floats, dtype: type[np.floating[Any]] = np.float32) -> ir.Value:
        """Return an array as a value."""
        self._count += 1
        name = f"{self._stem}/htp_{self._count}"
        value = ir.Value(name=name, const_value=ir.tensor(np.asarray(array, dtype), name=name))
        self._graph.register_initializer(value)
        return value


def levels_of(value: ir.Value | None) -> NDArray[Any] | None:
    """Return the constant integers that a value is read from; None for others."""
    tensor = read_through(value)
    return None if tensor is None else tensor.levels


def readers_of(node: ir.Node) -> list[tuple[ir.Node, int]]:
    """Return the nodes that read the first output of a node, with the index of the input."""
    return [(use.node, use.idx) for use in node.outputs[0].uses()]


def output_scale(node: ir.Node, types: tuple[ir.DataType, ...] = EIGHT_BITS) -> float | None:
    """Return the scale of the quantizer after a node, also after a Relu or Clip; None if it has none of these types."""
    scales = {quantizer_scale(quantizer, types) for quantizer in _quantizers(node)}
    return scales.pop() if len(scales) == 1 else None


def output_zero_point(node: ir.Node) -> int:
    """Return the zero point of the quantizer after a node that has an `output_scale`."""
    written = tensor_of(_quantizers(node)[0])
    assert written is not None
    return written.offset


def _quantizers(node: ir.Node) -> list[ir.Node]:
    """Return the quantizers after a node, or after the Relu or Clip that alone reads it."""
    readers = [use.node for use in node.outputs[0].uses()]
    is_bounded = len(readers) == 1 and readers[0].op_type in _BOUNDING
    return quantizers_of(readers[0].outputs[0] if is_bounded else node.outputs[0])


def quantizer_scale(node: ir.Node, types: tuple[ir.DataType, ...] = EIGHT_BITS) -> float | None:
    """Return the scale of a quantizer; None if it has several, or none of these types."""
    written = tensor_of(node)
    return written.step if written is not None and written.dtype in types else None


def scales_of(value: ir.Value | None, types: tuple[ir.DataType, ...] = EIGHT_BITS) -> Floats | None:
    """Return the scales of a tensor that is read through these types; None for others."""
    tensor = read_through(value)
    scales = tensor.scales if tensor is not None and tensor.dtype in types else None
    return None if scales is None else scales.astype(np.float64)


def zero_point_of(value: ir.Value | None) -> int:
    """Return the zero point of a tensor that is read through a pair."""
    tensor = read_through(value)
    return 0 if tensor is None else tensor.offset


def is_constant(value: ir.Value | None) -> bool:
    """Return whether a value is read from constant integers."""
    return levels_of(value) is not None


def is_along_channels(node: ir.Node, scales: int) -> bool:
    """Whether scales of weights belong to output channels: always, unless a MatMul has them along its input."""
    if scales == 1:
        return True
    tensor = read_through(node.inputs[1])
    axis = 1 if tensor is None else tensor.axis
    if node.op_type == "Conv":
        return axis == 0
    transposed = node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))
    return axis in ((0, -2) if transposed else (1, -1))


def is_strided_depthwise(node: ir.Node) -> bool:
    """Return whether a node is a Conv with one input channel per group and a stride."""
    if node.op_type != "Conv" or node.attributes.get_int("group", 1) == 1:
        return False
    weight = node.inputs[1]
    shape = None if weight is None or weight.shape is None else weight.shape
    alone = shape is not None and shape[1] == 1
    return alone and max(node.attributes.get_ints("strides", (1,))) > 1
