"""MatMulNBits: float activations times packed weights of 4 or 8 bits with one scale per group of rows.

::

    x -> MatMulNBits (weight [N, groups, bytes], scales [N, groups], zero points) -> Add (bias of a Gemm) -> y

The weight [K, N] is stored column by column, group after group; the last group is padded. Two 4-bit integers share a
byte, the first in its lower half. Integers are unsigned: signed ones are shifted by half their range. If all zero
points are then in the middle, the operator's default, none are written.
"""

import numpy as np
import onnx_ir as ir

from quantry.emit.dynamic import write_other_weights
from quantry.emit.graph_editor import GraphEditor, describe
from quantry.emit.local_functions import CONTRIB_DOMAIN
from quantry.emit.product_node import ProductNode, product_nodes
from quantry.graph.quant_plan import QuantPlan
from quantry.numerics.rounding import quantize_array
from quantry.numerics.tensor_params import QuantParams, TensorParams
from quantry.recipe import Format, MatMulNBits

_BYTE = 8


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
    if products:
        model.opset_imports.setdefault(CONTRIB_DOMAIN, 1)
    write_other_weights(editor, plan, params, {product.name for product in products})


def has_other_weights(model: ir.Model, plan: QuantPlan) -> bool:
    """Whether a plan has weights of operators that are not matrix products, so that DequantizeLinear is needed."""
    matrices = {product.name for product in product_nodes(model, plan) if product.is_matrix}
    return any(name not in matrices for weight in plan.weights.values() for name in weight.users)


def _write(editor: GraphEditor, product: ProductNode, params: TensorParams, options: MatMulNBits) -> None:
    assert params.group is not None
    before = product.data_nodes(editor)
    data = before[0].outputs[0] if before else product.data
    weight, bits, size = product.weight, params.dtype.bits, params.group
    assert weight.const_value is not None
    rows, columns = product.matrix(np.empty(weight.const_value.shape.numpy(), np.bool_)).shape
    source = weight.const_value
    groups = -(-rows // size)
    packed = editor.lazy(
        f"{weight.name}_packed",
        (columns, groups, size * bits // _BYTE),
        ir.DataType.UINT8,
        lambda name: ir.Tensor(pack_columns(product.matrix(quantize_array(source.numpy(), params)), params), name=name),
    )
    scales = np.ascontiguousarray(product.matrix(params.scale).T) * np.float32(product.alpha)
    inputs = [data, packed, editor.constant(scales.astype(np.float32), f"{weight.name}_scales")]
    offsets = np.ascontiguousarray(product.matrix(params.zero_point).T) + unsigned_shift(params)
    if np.any(offsets != 1 << (bits - 1)):
        inputs.append(editor.constant(pack(offsets, bits), f"{weight.name}_zero_points"))
    attributes = {"K": rows, "N": columns, "bits": bits, "block_size": size, "accuracy_level": options.accuracy_level}
    node = editor.node((CONTRIB_DOMAIN, "MatMulNBits"), inputs, f"{product.name}_MatMulNBits", attributes)
    describe(node.outputs[0], ir.DataType.FLOAT, product.node.outputs[0].shape)
    product.replace_by([*before, node, *product.bias_node(editor, node.outputs[0])])


def unsigned_shift(params: TensorParams) -> int:
    """Return the offset that makes the integers of a type unsigned."""
    return -params.dtype.lowest


def pack_columns(levels: np.ndarray, params: TensorParams) -> np.ndarray:
    """Return a matrix of integers [K, N] as bytes [N, groups, bytes of a group].

    Args:
        levels: The integers.
        params: Their type and the size of a group.
    """
    assert params.group is not None
    rows, columns = levels.shape
    groups = -(-rows // params.group)
    filled = np.zeros((columns, groups * params.group), np.uint8)
    filled[:, :rows] = levels.T.astype(np.int64) + unsigned_shift(params)
    return pack(filled.reshape(columns, groups, params.group), params.dtype.bits)


def pack(levels: np.ndarray, bits: int) -> np.ndarray:
    """Return unsigned integers packed along the last axis, the first in the lowest bits.

    Args:
        levels: Integers that fit the bits.
        bits: Width of each, 4 or 8.
    """
    count = _BYTE // bits
    lacking = -levels.shape[-1] % count
    padded = np.pad(levels.astype(np.uint8), [(0, 0)] * (levels.ndim - 1) + [(0, lacking)])
    parts = padded.reshape(*padded.shape[:-1], -1, count) << (np.arange(count, dtype=np.uint8) * np.uint8(bits))
    return np.asarray(np.bitwise_or.reduce(parts, axis=-1), np.uint8)
