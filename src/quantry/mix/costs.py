"""What the choices of a group cost: tensors in finer types, bytes, operations on bits."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import QuantPlan
from quantry.mix.groups import Group
from quantry.recipe import TensorSpec

Floats = npt.NDArray[np.float64]

_UNQUANTIZED_BITS = 32
_DERIVED_BITS = 32


def count_costs(model: FloatModel, groups: Sequence[Group], plans: Sequence[QuantPlan]) -> Floats:
    """Return how many tensors each choice gives more bits than they need to have, [groups, choices]."""
    biases = _biases(model, plans[0])
    rows = []
    for group in groups:
        tensors = (*group.tensors, *(name for name in _following(group, biases) if plans[0].spec_of(name) is not None))
        bits = np.array([[_bits(plan.spec_of(name)) for plan in plans] for name in tensors])
        rows.append((bits > bits.min(axis=1, keepdims=True)).sum(axis=0))
    return np.array(rows, np.float64)


def quantized_tensors(plan: QuantPlan) -> int:
    """Return how many tensors have types of their own: activations with a range, weights and biases."""
    return sum(plan.root(name) == name for name in plan.activations) + len(plan.weights) + len(plan.biases)


def size_costs(model: FloatModel, groups: Sequence[Group], plans: Sequence[QuantPlan]) -> Floats:
    """Return the bytes of the constants of each group with each choice, [groups, choices]."""
    biases = _biases(model, plans[0])
    rows = [
        [sum(_bytes(model, plan, name) for name in (*group.tensors, *_following(group, biases))) for plan in plans]
        for group in groups
    ]
    return np.array(rows, np.float64)


def fixed_size(model: FloatModel, groups: Sequence[Group], plan: QuantPlan) -> float:
    """Return the bytes of the quantized constants that belong to no group."""
    biases = _biases(model, plan)
    changing = {name for group in groups for name in (*group.tensors, *_following(group, biases))}
    return sum(_bytes(model, plan, name) for name in (*plan.weights, *plan.biases) if name not in changing)


def bit_operations(model: FloatModel, groups: Sequence[Group], plans: Sequence[QuantPlan]) -> Floats:
    """Return multiplications x bits of the activation x bits of the weight, [groups, choices]."""
    nodes = {node.name or "": node for node in model.model.graph}
    rows = [[sum(_node_operations(nodes[name], plan) for name in group.nodes) for plan in plans] for group in groups]
    return np.array(rows, np.float64)


def _node_operations(node: ir.Node, plan: QuantPlan) -> float:
    operands = [value for value in node.inputs[:2] if value is not None]
    bits = [_bits(plan.spec_of(value.name or "")) for value in operands]
    return multiplications(node) * float(np.prod(bits))


def multiplications(node: ir.Node) -> float:
    """Return how many multiplications a product needs for one sample; axes of unknown length count once.

    Args:
        node: A Conv, ConvTranspose, Gemm or MatMul; other nodes need one for each element of their result.
    """
    shape = node.outputs[0].shape
    sizes = [] if shape is None else [dim if isinstance(dim, int) else 1 for dim in shape]
    results = float(np.prod(sizes[1:])) if len(sizes) > 1 else float(np.prod(sizes))
    operands = [value.shape for value in node.inputs[:2] if value is not None and value.shape is not None]
    if len(operands) < 2:
        return results
    weight = [dim if isinstance(dim, int) else 1 for dim in operands[1]]
    if node.op_type == "Conv":
        return results * float(np.prod(weight[1:]))
    if node.op_type == "ConvTranspose":
        spatial = [dim if isinstance(dim, int) else 1 for dim in operands[0][2:]]
        return float(np.prod(weight)) * float(np.prod(spatial))
    if node.op_type == "Gemm":
        return float(np.prod(weight))
    return results * weight[-2] if node.op_type == "MatMul" and len(weight) > 1 else results


def _bits(spec: TensorSpec | None) -> int:
    return _UNQUANTIZED_BITS if spec is None else spec.dtype.bits


def _bytes(model: FloatModel, plan: QuantPlan, name: str) -> float:
    value = model.model.graph.initializers.get(name)
    if value is None or value.const_value is None:
        return 0.0
    spec = plan.spec_of(name)
    derived = name in plan.biases and spec is None
    return value.const_value.size * (_DERIVED_BITS if derived else _bits(spec)) / 8


def _biases(model: FloatModel, plan: QuantPlan) -> dict[str, tuple[str, ...]]:
    """Return the biases of the layers by weight."""
    found: dict[str, tuple[str, ...]] = {}
    for node in model.model.graph:
        names = [value.name for value in node.inputs if value is not None and value.name]
        for weight in (name for name in names if name in plan.weights):
            found[weight] = (*found.get(weight, ()), *(name for name in names if name in plan.biases))
    return found


def _following(group: Group, biases: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the biases that change with the weights of a group."""
    if len(group.tensors) == 1 and group.name == group.tensors[0]:
        return ()  # decided upon apart
    return tuple(name for weight in group.tensors for name in biases.get(weight, ()))
