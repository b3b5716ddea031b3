"""How much arithmetic a quantized model asks for, independent of any machine."""

import math

import onnx_ir as ir

from quantry.graph.quant_plan import QuantPlan, SharedRange

_FLOAT_BITS = 32


def bit_operations(model: ir.Model, plan: QuantPlan) -> float:
    """Return the multiplications of Conv, ConvTranspose, Gemm and MatMul, each times the bits of its two operands.

    After "BOPs" of Uniq (Baskin et al., 2018): a product of 8 by 8 bits counts 64, one of floats 32 by 32. Axes whose
    length is not known count as 1.

    Args:
        model: The float graph that was planned, with its shapes.
        plan: Which tensors have which types.
    """
    return sum(_multiplications(node) * _bits(node, 0, plan) * _bits(node, 1, plan) for node in model.graph)


def _multiplications(node: ir.Node) -> float:
    if node.domain not in ("", "ai.onnx") or len(node.inputs) < 2:
        return 0.0
    left, right, output = _shape(node.inputs[0]), _shape(node.inputs[1]), _shape(node.outputs[0])
    if node.op_type == "Conv":
        return math.prod(output) * math.prod(right[1:])
    if node.op_type == "ConvTranspose":
        return math.prod(left) * math.prod(right[1:])
    if node.op_type == "Gemm":
        transposed = node.attributes.get_int("transA", 0)
        return math.prod(output) * (left[0] if transposed else left[-1]) if left else 0.0
    if node.op_type == "MatMul":
        return math.prod(output) * left[-1] if left else 0.0
    return 0.0


def _bits(node: ir.Node, index: int, plan: QuantPlan) -> int:
    value = node.inputs[index] if index < len(node.inputs) else None
    name = None if value is None else value.name
    if name is None or node.name not in plan.quantized_nodes:
        return _FLOAT_BITS
    if name in plan.weights:
        return plan.weights[name].spec.dtype.bits
    for conversion in plan.conversions.values():
        if conversion.tensor == name and node.name in conversion.readers:
            return conversion.spec.dtype.bits
    if name not in plan.activations:
        return _FLOAT_BITS
    entry = plan.activations[plan.root(name)]
    return _FLOAT_BITS if isinstance(entry, SharedRange) else entry.spec.dtype.bits


def _shape(value: ir.Value | None) -> list[int]:
    if value is None:
        return []
    if value.const_value is not None:
        return list(value.const_value.shape.numpy())
    return [] if value.shape is None else [size if isinstance(size, int) else 1 for size in value.shape]
