r"""Rewrite FixNeuron nodes and integer operators as equivalent Q/DQ pairs around float operators.

::

    x -> FixNeuron -> y                         x -> QuantizeLinear -> DequantizeLinear -> y
    x_int, w_int -> QLinearConv -> y_int        x_int -> DQ \
                                                             Conv -> QuantizeLinear -> y_int
                                                w_int -> DQ /

so that one set of rules reads all formats. The result is for checking only; it need not compute the same numbers.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantry.convert.translate import split_fix_neurons
from quantry.facts.operators import Family, of_family
from quantry.graph.qdq import is_dequantize, is_quantize, tensor_of

_BIAS_BITS = 8

# For each operator: the float operator, the indices of its operands (integers, scale, zero point), and the index of the
# scale of its result, which the zero point follows.
_OPERATORS: dict[str, tuple[str, tuple[int, ...], int]] = {
    "QLinearConv": ("Conv", (0, 3), 6),
    "QLinearMatMul": ("MatMul", (0, 3), 6),
    "QGemm": ("Gemm", (0, 3), 7),
    "QLinearAdd": ("Add", (0, 3), 6),
    "QLinearMul": ("Mul", (0, 3), 6),
    "QLinearSigmoid": ("Sigmoid", (0,), 3),
    "QLinearLeakyRelu": ("LeakyRelu", (0,), 3),
    "QLinearSoftmax": ("Softmax", (0,), 3),
    "QLinearAveragePool": ("AveragePool", (0,), 3),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", (0,), 3),
}
_KERNELS_OWN = ("channels_last", "opset")
_BIAS_INPUT = {"QLinearConv": 8, "QGemm": 6}


@dataclass(frozen=True)
class _Grid:
    scale: ir.Value
    zero_point: ir.Value


def write_as_pairs(model: ir.Model) -> None:
    """Rewrite a model in place.

    Args:
        model: A quantized model of any format; its nodes have names.
    """
    split_fix_neurons(model)
    rewriter = _Rewriter(model.graph)
    for node in list(model.graph):
        if node.op_type in _OPERATORS or node.op_type == "QLinearConcat":
            rewriter.restore_operator(node)
        elif is_quantize(node):
            rewriter.remember(node)
        elif not is_dequantize(node):
            rewriter.wrap(node)


class _Rewriter:
    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._grids: dict[ir.Value, _Grid] = {}
        self._count = 0

    def remember(self, node: ir.Node) -> None:
        """Record scale and zero point of a QuantizeLinear's output."""
        tensor = tensor_of(node)
        if tensor is not None and tensor.scale is not None and tensor.zero_point is not None:
            self._grids[tensor.integers] = _Grid(tensor.scale, tensor.zero_point)

    def restore_operator(self, node: ir.Node) -> None:
        """Replace an integer operator by the float operator between pairs."""
        if node.op_type == "QLinearConcat":
            operator, starts, result = "Concat", tuple(range(2, len(node.inputs), 3)), 0
        else:
            operator, starts, result = _OPERATORS[node.op_type]
        operands = [self._operand(node, start) for start in starts]
        bias = self._bias(node)
        attributes = {key: value.value for key, value in node.attributes.items() if key not in _KERNELS_OWN}
        inputs = [*operands, *([] if bias is None else [bias])]
        name = (node.name or "").removesuffix("_quant")
        computed = ir.node(operator, inputs, attributes=attributes or None, name=name)
        self._graph.insert_before(node, computed)
        self._close(node, computed.outputs[0], self._grid(node, result))

    def wrap(self, node: ir.Node) -> None:
        """Insert pairs around an operator that moves or bounds integers, and before one that only reads them."""
        data = node.inputs[0] if node.inputs else None
        grid = None if data is None else self._grids.get(data)
        if grid is None or data is None:
            return
        for index, value in enumerate(node.inputs):
            if value is not None and value in self._grids:
                node.replace_input_with(index, self._restored(value, self._grids[value], node.name or "", node))
        if node.op_type in of_family(Family.INDEX):
            return
        if node.op_type == "Clip":
            self._restore_bounds(node, grid)
        for output in node.outputs:
            self._requantize(node, output, grid)

    def _operand(self, node: ir.Node, start: int) -> ir.Value:
        integers = node.inputs[start]
        assert integers is not None
        return self._restored(integers, self._grid(node, start + 1), integers.name or "", node)

    def _bias(self, node: ir.Node) -> ir.Value | None:
        """Return the float bias; one that fits into eight bits at a coarser power of two is read as such."""
        index = _BIAS_INPUT.get(node.op_type)
        stored = node.inputs[index] if index is not None and index < len(node.inputs) else None
        scales = [node.inputs[index] for index in (1, 4)]
        if stored is None or stored.const_value is None or any(s is None or s.const_value is None for s in scales):
            return None
        values = stored.const_value.numpy().astype(np.int64)
        step = np.prod([np.float64(s.const_value.numpy()).max() for s in scales if s is not None and s.const_value])
        shift = _common_shift(values)
        narrow = values >> shift
        fits = narrow.min(initial=0) >= -(1 << (_BIAS_BITS - 1)) and narrow.max(initial=0) < 1 << (_BIAS_BITS - 1)
        integers, exponent = (narrow.astype(np.int8), shift) if fits else (values.astype(np.int32), 0)
        grid = _Grid(self._constant(np.float32(step * 2.0**exponent)), self._constant(np.zeros((), integers.dtype)))
        return self._restored(self._constant(integers, stored.name), grid, stored.name or "", node)

    def _grid(self, node: ir.Node, index: int) -> _Grid:
        scale, zero_point = node.inputs[index], node.inputs[index + 1]
        assert scale is not None
        assert zero_point is not None
        return _Grid(scale, zero_point)

    def _close(self, node: ir.Node, floats: ir.Value, grid: _Grid) -> None:
        inputs = [floats, grid.scale, grid.zero_point]
        quantize = self._node("QuantizeLinear", inputs, f"{node.name}_QuantizeLinear", node)
        self._grids[quantize.outputs[0]] = grid
        new = quantize.outputs[0]
        ir.convenience.replace_nodes_and_values(self._graph, node, [node], [], [node.outputs[0]], [new])

    def _requantize(self, node: ir.Node, output: ir.Value, grid: _Grid) -> None:
        readers = [(use.node, use.idx) for use in output.uses()]
        quantize = ir.node(
            "QuantizeLinear", [output, grid.scale, grid.zero_point], name=f"{node.name}_QuantizeLinear_{self._next()}"
        )
        self._graph.insert_after(node, quantize)
        for reader, index in readers:
            reader.replace_input_with(index, quantize.outputs[0])
        output.type = ir.TensorType(ir.DataType.FLOAT)
        self._grids[quantize.outputs[0]] = grid

    def _restore_bounds(self, node: ir.Node, grid: _Grid) -> None:
        scale, zero = grid.scale.const_value, grid.zero_point.const_value
        for index in range(1, len(node.inputs)):
            bound = node.inputs[index]
            if bound is None or bound.const_value is None or scale is None or zero is None:
                continue
            level = bound.const_value.numpy().astype(np.int64) - zero.numpy().astype(np.int64)
            node.replace_input_with(index, self._constant((level * scale.numpy()).astype(np.float32)))

    def _restored(self, integers: ir.Value, grid: _Grid, stem: str, before: ir.Node) -> ir.Value:
        inputs = [integers, grid.scale, grid.zero_point]
        return self._node("DequantizeLinear", inputs, f"{stem}_DequantizeLinear_{self._next()}", before).outputs[0]

    def _node(self, operator: str, inputs: list[ir.Value], name: str, before: ir.Node) -> ir.Node:
        node = ir.node(operator, inputs, name=name)
        self._graph.insert_before(before, node)
        return node

    def _constant(self, values: np.ndarray | np.generic, stem: str | None = None) -> ir.Value:
        name = f"{stem or 'constant'}_{self._next()}"
        tensor = ir.tensor(np.asarray(values), name=name)
        shape = ir.Shape(tensor.shape.numpy())
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
        self._graph.register_initializer(value)
        return value

    def _next(self) -> int:
        self._count += 1
        return self._count


def _common_shift(values: np.ndarray) -> int:
    """Return the number of low bits that are zero in all values; 0 if all values are zero."""
    shared = int(np.bitwise_or.reduce(np.abs(values).reshape(-1), initial=0))
    return (shared & -shared).bit_length() - 1 if shared else 0
