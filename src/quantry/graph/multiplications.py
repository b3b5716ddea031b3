"""How many multiplications a node needs: what a layer costs at run time."""

import math

import onnx_ir as ir

from quantry.facts.operators import STANDARD_DOMAINS
from quantry.graph.edit import int_of


def multiplications(node: ir.Node) -> float:
    """Return the multiplications of a Conv, ConvTranspose, Gemm or MatMul, and 0 for other nodes.

    Axes of unknown length count as 1.

    Args:
        node: The node.
    """
    if node.domain not in STANDARD_DOMAINS or len(node.inputs) < 2:
        return 0.0
    first, second = (_shape(value) for value in node.inputs[:2])
    results = elements(node.outputs[0])
    if node.op_type == "Conv":
        return results * math.prod(second[1:])
    if node.op_type == "ConvTranspose":
        return float(math.prod(first) * math.prod(second[1:]))
    if node.op_type in ("Gemm", "MatMul") and first:
        is_turned = node.op_type == "Gemm" and int_of(node, "transA", 0)
        return results * (first[0] if is_turned else first[-1])
    return 0.0


def elements(value: ir.Value | None) -> float:
    """Return the number of elements of a tensor; axes of unknown length count as 1."""
    return float(math.prod(_shape(value)))


def _shape(value: ir.Value | None) -> list[int]:
    if value is None:
        return []
    if value.const_value is not None:
        return [int(length) for length in value.const_value.shape.numpy()]
    return [] if value.shape is None else [length if isinstance(length, int) else 1 for length in value.shape]
