"""Dynamic quantization: activations are quantized while the model runs, each tensor by its current extremes.

::

    x -> DynamicQuantizeLinear -> ConvInteger or MatMulInteger -> Cast -> Mul (x_scale * w_scale) -> Add (bias) -> y

as onnxruntime's quantize_dynamic writes it, so that the runtime fuses the same chains. DynamicQuantizeLinear returns
uint8. The weight of a ConvInteger is always written as uint8 (int8 with its zero point moved to 128), because
onnxruntime before 1.22 has no int8 kernel for it; the results are the same. An LSTM becomes DynamicQuantizeLSTM of
com.microsoft, which has no counterpart for GRU and RNN: their weights are stored as integers and dequantized.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantry.emit.fused_dynamic import write_fused
from quantry.emit.graph_editor import ONNX_TYPE, GraphEditor, as_tensor, describe
from quantry.emit.local_functions import STANDARD, FunctionCollector
from quantry.emit.pairs import PairWriter
from quantry.emit.product_node import ProductNode, product_nodes
from quantry.execute.quantized_view import QuantizedView
from quantry.graph.edit import int_of
from quantry.graph.quant_plan import QuantPlan
from quantry.numerics.rounding import quantize_array
from quantry.numerics.tensor_params import QuantParams, TensorParams
from quantry.recipe import DataType, Format

_FLOAT = ir.DataType.FLOAT.value
_MIDDLE = 128


def emit_dynamic(model: ir.Model, plan: QuantPlan, params: QuantParams, options: Format) -> None:  # noqa: ARG001
    """Write products with planned weights as integer operators, in place.

    A planned weight of another operator, such as ConvTranspose, is stored as integers with a DequantizeLinear.

    Args:
        model: A copy of the float model that may be edited.
        plan: The weights to quantize.
        params: Their scales and zero points.
        options: The format; it has no options.
    """
    editor = GraphEditor(model)
    writer = _Writer(editor, params)
    products = [
        product for product in product_nodes(model, plan) if product.is_matrix or product.node.op_type == "Conv"
    ]
    for product in products:
        writer.write(product)
    fused = write_fused(editor, plan, params, writer.data)
    layers = [node for node in model.graph if _is_dynamic_lstm(node, plan)]
    for node in layers:
        _write_lstm(editor, node, params)
    written = fused | {product.name for product in products} | {node.name or "" for node in layers}
    write_other_weights(editor, plan, params, written)


def write_other_weights(editor: GraphEditor, plan: QuantPlan, params: QuantParams, written: set[str]) -> None:
    """Store weights of nodes without an integer operator as integers with a DequantizeLinear.

    Args:
        editor: The graph's editor.
        plan: The weights to quantize.
        params: Their scales and zero points.
        written: Names of the nodes whose weight is written already.
    """
    view = QuantizedView(plan, params)
    pairs = PairWriter(editor, view, STANDARD)
    for weight in view.weights:
        users = (weight.readers or frozenset()) - written
        if users:
            pairs.write_constant(weight.name, users)
    pairs.finish(FunctionCollector(editor.model))


def _is_dynamic_lstm(node: ir.Node, plan: QuantPlan) -> bool:
    """Return whether onnxruntime's DynamicQuantizeLSTM can replace a node: both weights planned in 8 bits, layout 0."""
    if node.op_type != "LSTM" or node.domain != "" or int_of(node, "layout", 0):
        return False
    planned = [None if value is None else plan.weights.get(value.name or "") for value in node.inputs[1:3]]
    return all(
        entry is not None and node.name in entry.users and entry.spec.dtype in (DataType.INT8, DataType.UINT8)
        for entry in planned
    )


def _write_lstm(editor: GraphEditor, node: ir.Node, params: QuantParams) -> None:
    """Replace an LSTM by DynamicQuantizeLSTM, whose weights are [directions, inputs, gates * hidden]."""
    stored: list[ir.Value] = []
    grids: list[ir.Value] = []
    for value in node.inputs[1:3]:
        assert value is not None
        tensors = _recurrent_weight(editor, value, params.tensors[value.name or ""])
        stored.append(tensors[0])
        grids += tensors[1:]
    optional = [*node.inputs[3:8], *[None] * (8 - len(node.inputs))]
    inputs = [node.inputs[0], *stored, *optional, *grids]
    attributes = [value for name, value in node.attributes.items() if name != "layout"]
    replacement = ir.Node("com.microsoft", "DynamicQuantizeLSTM", inputs, attributes, num_outputs=len(node.outputs))
    replacement.name = editor.fresh(f"{node.name}_quant")
    for old, new in zip(node.outputs, replacement.outputs, strict=True):
        new.name, new.type, new.shape = old.name, old.type, old.shape
    graph = node.graph
    assert graph is not None
    editor.model.opset_imports.setdefault("com.microsoft", 1)
    ir.convenience.replace_nodes_and_values(graph, node, [node], [replacement], node.outputs, replacement.outputs)


def _recurrent_weight(editor: GraphEditor, value: ir.Value, params: TensorParams) -> tuple[ir.Value, ...]:
    """Return integers, scale and zero point of a weight [directions, gates * hidden, inputs]."""
    source = value.const_value
    assert source is not None
    directions, rows, width = source.shape.numpy()

    def integers(name: str) -> ir.TensorProtocol:
        levels = quantize_array(source.numpy(), params).transpose(0, 2, 1)
        return as_tensor(np.ascontiguousarray(levels), params.dtype, name)

    stored = editor.lazy(f"{value.name}_quantized", (directions, width, rows), ONNX_TYPE[params.dtype], integers)
    # One scale for each direction, or one for each direction and row; directions share the scales of rows.
    shape = (directions,) if params.axis is None else (directions, rows)
    scale, zero = (np.broadcast_to(array, shape) for array in (params.scale, params.zero_point))
    offset = as_tensor(zero, params.dtype, editor.fresh(f"{value.name}_zero_point"))
    return stored, editor.constant(np.ascontiguousarray(scale), f"{value.name}_scale"), editor.initializer(offset)


@dataclass(frozen=True)
class _Weight:
    integers: ir.Value
    scale: np.ndarray
    zero_point: ir.Value


class _Writer:
    def __init__(self, editor: GraphEditor, params: QuantParams) -> None:
        self._editor = editor
        self._params = params
        self._quantized: dict[ir.Value, tuple[ir.Value, ir.Value, ir.Value]] = {}

    def write(self, product: ProductNode) -> None:
        editor, name = self._editor, product.name
        data_nodes = product.data_nodes(editor)
        data = data_nodes[0].outputs[0] if data_nodes else product.data
        if data_nodes:
            assert product.node.graph is not None
            product.node.graph.insert_before(product.node, data_nodes)
        integers, scale, zero_point = self.data(data, product.node)
        is_conv = product.node.op_type == "Conv"
        weight = self._weight(product)
        attributes = {key: value.value for key, value in product.node.attributes.items()} if is_conv else {}
        multiply = editor.node(
            ("", "ConvInteger" if is_conv else "MatMulInteger"),
            [integers, weight.integers, zero_point, weight.zero_point],
            f"{name}_quant",
            attributes,
        )
        cast = editor.node(("", "Cast"), multiply.outputs, f"{name}_Cast", {"to": _FLOAT})
        step = editor.constant(weight.scale, f"{product.weight.name}_scale")
        scales = editor.node(("", "Mul"), [scale, step], f"{name}_scales_Mul")
        result = editor.node(("", "Mul"), [cast.outputs[0], scales.outputs[0]], f"{name}_scale_Mul")
        shape = product.node.outputs[0].shape
        describe(multiply.outputs[0], ir.DataType.INT32, shape)
        for node in (cast, result):
            describe(node.outputs[0], ir.DataType.FLOAT, shape)
        product.replace_by([multiply, cast, scales, result, *product.bias_node(editor, result.outputs[0])])

    def data(self, data: ir.Value, reader: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Return integers, scale and zero point of a tensor, written once for all nodes that read it."""
        if data not in self._quantized:
            stem = data.name or ""
            node = ir.node(
                "DynamicQuantizeLinear",
                [data],
                num_outputs=3,
                name=self._editor.fresh(f"{stem}_DynamicQuantizeLinear"),
            )
            for output, suffix in zip(node.outputs, ("quantized", "scale", "zero_point"), strict=True):
                output.name = self._editor.fresh(f"{stem}_{suffix}")
            graph = reader.graph
            assert graph is not None
            graph.insert_before(reader, [node])
            describe(node.outputs[0], ir.DataType.UINT8, data.shape)
            describe(node.outputs[1], ir.DataType.FLOAT, ir.Shape([]))
            describe(node.outputs[2], ir.DataType.UINT8, ir.Shape([]))
            self._quantized[data] = (node.outputs[0], node.outputs[1], node.outputs[2])
        return self._quantized[data]

    def _weight(self, product: ProductNode) -> _Weight:
        params = self._params.tensors[product.weight.name or ""]
        is_conv = product.node.op_type == "Conv"
        shift = _MIDDLE if is_conv and params.dtype == DataType.INT8 else 0
        dtype = DataType.UINT8 if shift else params.dtype
        source = product.weight.const_value
        assert source is not None

        def integers(name: str) -> ir.TensorProtocol:
            levels = quantize_array(source.numpy(), params).astype(np.int64) + shift
            return as_tensor(levels if is_conv else product.matrix(levels), dtype, name)

        shape = source.shape.numpy()
        stored = self._editor.lazy(
            f"{product.weight.name}_quantized",
            shape if is_conv else (shape[::-1] if product.transposed else shape),
            ONNX_TYPE[dtype],
            integers,
        )
        offsets = params.zero_point + shift
        # All channels of a symmetric weight have the same zero point, and ConvInteger reads only one.
        offset = offsets.reshape(-1)[0] if is_conv else offsets
        zero_point = as_tensor(np.asarray(offset), dtype, self._editor.fresh(f"{product.weight.name}_zero_point"))
        return _Weight(stored, _scale(product, params, shape), self._editor.initializer(zero_point))


def _scale(product: ProductNode, params: TensorParams, shape: Sequence[int]) -> np.ndarray:
    scale = np.asarray(params.scale * np.float32(product.alpha), np.float32)
    return scale.reshape(-1, *[1] * (len(shape) - 2)) if params.axis is not None and not product.is_matrix else scale
