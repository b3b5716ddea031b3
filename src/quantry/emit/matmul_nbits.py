"""MatMulNBits: float activations times packed weights of 4 or 8 bits with one scale per group of rows.

::

    x -> MatMulNBits (weight [N, groups, bytes], scales [N, groups], zero points) -> Add (bias of a Gemm) -> y

The weight [K, N] is stored column by column, group after group; the last group is padded. Two 4-bit integers share a
byte, the first in its lower half. Integers are unsigned: signed ones are shifted by half their range. If all zero
points are then in the middle, the operator's default, none are written.

A table of embeddings with 4 bits is read by GatherBlockQuantized, which dequantizes only the rows that it looks up.
"""

import numpy as np
import onnx_ir as ir

from quantry.emit.dynamic import write_other_weights
from quantry.emit.graph_editor import ONNX_TYPE, GraphEditor, as_tensor, describe
from quantry.emit.local_functions import CONTRIB_DOMAIN
from quantry.emit.product_node import ProductNode, product_nodes
from quantry.graph.quant_plan import QuantPlan
from quantry.graph.weights import unshared
from quantry.numerics import kernels
from quantry.numerics.rounding import quantize_array, round_and_clip
from quantry.numerics.tensor_params import QuantParams, TensorParams
from quantry.recipe import Format, MatMulNBits
from quantry.runtime.threads import in_threads, row_parts

_BYTE, _NARROW_BITS = 8, 4


def emit_matmul_nbits(model: ir.Model, plan: QuantPlan, params: QuantParams, options: Format) -> None:
    """Write matrix products with planned weights as MatMulNBits, in place.

    A planned weight of another operator, such as Conv, is stored as integers with a DequantizeLinear.

    Args:
        model: A copy of the float model that may be edited.
        plan: The weights to quantize.
        params: Their scales and zero points.
        options: The format, with the accuracy level.
    """
    assert isinstance(options, MatMulNBits)
    editor = GraphEditor(model)
    products = [
        product
        for product in product_nodes(model, plan)
        if product.is_matrix and params.tensors[product.weight.name or ""].group is not None
    ]
    for product in products:
        _write(editor, product, params.tensors[product.weight.name or ""], options)
    tables = [node for node in model.graph if _is_table(node, plan)]
    for node in tables:
        _write_table(editor, node, params)
    if products or tables:
        model.opset_imports.setdefault(CONTRIB_DOMAIN, 1)
    written = {product.name for product in products} | {node.name or "" for node in tables}
    write_other_weights(editor, plan, params, written)


def has_other_weights(model: ir.Model, plan: QuantPlan) -> bool:
    """Whether a plan has weights of operators without an operator here, so that DequantizeLinear is needed."""
    matrices = {product.name for product in product_nodes(model, plan) if product.is_matrix}
    matrices |= {node.name or "" for node in model.graph if _is_table(node, plan)}
    return any(name not in matrices for weight in plan.weights.values() for name in weight.users)


def _is_table(node: ir.Node, plan: QuantPlan) -> bool:
    """Return whether a node looks up rows of a planned table of 4 bits, which GatherBlockQuantized does."""
    table = node.inputs[0] if node.op_type == "Gather" and node.domain == "" else None
    planned = None if table is None else plan.weights.get(table.name or "")
    return planned is not None and node.name in planned.users and planned.spec.dtype.bits == _NARROW_BITS


def _write_table(editor: GraphEditor, node: ir.Node, params: QuantParams) -> None:
    """Replace a Gather of embeddings by GatherBlockQuantized, which dequantizes only the rows that it looks up."""
    table, indices = node.inputs
    assert table is not None
    assert table.const_value is not None
    tensor_params, source = params.tensors[table.name or ""], table.const_value
    stored = editor.lazy(
        f"{table.name}_quantized",
        table,
        ONNX_TYPE[tensor_params.dtype],
        lambda name: as_tensor(quantize_array(unshared(source).numpy(), tensor_params), tensor_params.dtype, name),
    )
    scales = editor.constant(np.asarray(tensor_params.scale, np.float32), f"{table.name}_scales")
    zero_points = as_tensor(tensor_params.zero_point, tensor_params.dtype, editor.fresh(f"{table.name}_zero_points"))
    attributes = {"gather_axis": 0, "quantize_axis": 1, "block_size": tensor_params.group or 0}
    inputs = [stored, indices, scales, editor.initializer(zero_points)]
    new = editor.node((CONTRIB_DOMAIN, "GatherBlockQuantized"), inputs, f"{node.name}_GatherBlockQuantized", attributes)
    describe(new.outputs[0], ir.DataType.FLOAT, node.outputs[0].shape)
    graph = node.graph
    assert graph is not None
    ir.convenience.replace_nodes_and_values(graph, node, [node], [new], [node.outputs[0]], [new.outputs[0]])


def _write(editor: GraphEditor, product: ProductNode, params: TensorParams, options: MatMulNBits) -> None:
    assert params.group is not None
    data_nodes = product.data_nodes(editor)
    data = data_nodes[0].outputs[0] if data_nodes else product.data
    weight, bits, size = product.weight, params.dtype.bits, params.group
    assert weight.const_value is not None
    rows, columns = product.matrix(np.empty(weight.const_value.shape.numpy(), np.bool_)).shape
    source = weight.const_value
    groups = -(-rows // size)
    packed = editor.lazy(
        f"{weight.name}_packed",
        (columns, groups, size * bits // _BYTE),
        ir.DataType.UINT8,
        lambda name: ir.Tensor(_packed(product, unshared(source).numpy(), params), name=name),
    )
    scales = np.ascontiguousarray(product.matrix(params.scale).T) * np.float32(product.alpha)
    inputs = [data, packed, editor.constant(scales.astype(np.float32), f"{weight.name}_scales")]
    offsets = np.ascontiguousarray(product.matrix(params.zero_point).T) + unsigned_shift(params)
    if np.any(offsets != 1 << (bits - 1)):
        inputs.append(editor.constant(pack(offsets, bits), f"{weight.name}_zero_points"))
    attributes = {"K": rows, "N": columns, "bits": bits, "block_size": size, "accuracy_level": options.accuracy_level}
    node = editor.node((CONTRIB_DOMAIN, "MatMulNBits"), inputs, f"{product.name}_MatMulNBits", attributes)
    describe(node.outputs[0], ir.DataType.FLOAT, product.node.outputs[0].shape)
    product.replace_by([*data_nodes, node, *product.bias_node(editor, node.outputs[0])])


def unsigned_shift(params: TensorParams) -> int:
    """Return the offset that makes the integers of a type unsigned."""
    return -params.dtype.lowest


def _packed(product: ProductNode, weight: np.ndarray, params: TensorParams) -> np.ndarray:
    matrix = product.matrix(np.asarray(weight, np.float32))
    return quantize_and_pack(matrix, product.matrix(params.scale).T, product.matrix(params.zero_point).T, params)


def quantize_and_pack(
    matrix: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, params: TensorParams
) -> np.ndarray:
    """Return a matrix [K, N] as bytes [N, groups, bytes of a group].

    The integers are those of `quantize_array`.

    Args:
        matrix: Finite float32 values.
        scale: Scales [N, groups].
        zero_point: Zero points [N, groups].
        params: The type and the size of a group.
    """
    assert params.group is not None
    rows, columns = matrix.shape
    groups, width = scale.shape[1], params.group * params.dtype.bits // _BYTE
    # The end of a group that is shorter than the others is zero.
    packed = (np.zeros if rows % params.group else np.empty)((columns, groups, width), np.uint8)
    compiled = kernels.loaded()

    def write(row_range: range) -> None:
        some = slice(row_range.start, row_range.stop)
        values, scales, offsets = matrix[:, some], scale[some], zero_point[some].astype(np.float32)
        if compiled is None:
            _pack_groups(values, scales, offsets, params, packed[some])
            return
        compiled.pack_groups(
            kernels.GroupLines.of(values.T, params.group or 1),
            scales,
            offsets,
            packed[some],
            lowest=params.lowest,
            highest=params.highest,
            shift=unsigned_shift(params),
            bits=params.dtype.bits,
        )

    in_threads(write, row_parts(columns))
    return packed


def _pack_groups(
    matrix: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, params: TensorParams, packed: np.ndarray
) -> None:
    """Do what the compiled kernel does, with the same bytes."""
    size, bits = params.group or 1, params.dtype.bits
    for group in range(scale.shape[1]):
        values, offset = matrix[group * size : (group + 1) * size], zero_point[:, group]
        with np.errstate(over="ignore"):
            levels = values / scale[:, group]
        round_and_clip(levels, params.lowest - offset, params.highest - offset, levels)
        integers = (levels + (offset + np.float32(unsigned_shift(params)))).astype(np.uint8)
        integers = np.pad(integers, [(0, size - len(integers)), (0, 0)])
        packed[:, group] = _pack_first_axis(integers, bits).T


def _pack_first_axis(levels: np.ndarray, bits: int) -> np.ndarray:
    if bits == _BYTE:
        return levels
    high = levels[1::2] << np.uint8(bits)
    high |= levels[::2]
    return high


def pack(levels: np.ndarray, bits: int) -> np.ndarray:
    """Return unsigned integers packed along the last axis, the first in the lowest bits.

    Args:
        levels: Integers that fit the bits.
        bits: Width of each, 4 or 8.
    """
    count = _BYTE // bits
    lacking = -levels.shape[-1] % count
    columns = levels.astype(np.uint8)
    if lacking:
        columns = np.pad(columns, [(0, 0)] * (levels.ndim - 1) + [(0, lacking)])
    packed = columns[..., ::count].copy()
    for position in range(1, count):
        packed |= columns[..., position::count] << np.uint8(position * bits)
    return packed
