"""The plan node by node, for users who want to write selections."""

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import DerivedBiasPlan, QuantPlan


@dataclass(frozen=True)
class NodeOverview:
    """The types that one node computes with.

    Attributes:
        node: Its name.
        operator: Its operator type.
        outputs: Names of its outputs; each of them selects the node, too.
        reads: Types of its quantized activations, in order.
        constants: Types of its weight, its constant operands and its bias, in order.
        writes: Types of its quantized outputs; empty if there are none, as in front of a fused activation function.
        reason: Why it stays float; empty for a quantized node.
    """

    node: str
    operator: str
    outputs: tuple[str, ...]
    reads: tuple[str, ...]
    constants: tuple[str, ...]
    writes: tuple[str, ...]
    reason: str = ""


def overview(model: FloatModel, plan: QuantPlan) -> tuple[NodeOverview, ...]:
    """Return every node of the main graph, in order.

    Args:
        model: The model that was planned.
        plan: The plan.
    """
    reasons = {entry.node: entry.reason for entry in plan.declined}
    return tuple(_node(node, plan, reasons.get(node.name or "", "")) for node in model.model.graph)


def _node(node: ir.Node, plan: QuantPlan, reason: str) -> NodeOverview:
    inputs, outputs = _names(node.inputs), _names(node.outputs)
    name = node.name or ""
    if reason:
        return NodeOverview(name, node.op_type, outputs, (), (), (), reason)
    read_as = {conversion.tensor: key for key, conversion in plan.conversions.items() if name in conversion.readers}
    return NodeOverview(
        name,
        node.op_type,
        outputs,
        reads=_types(plan, (read_as.get(entry, entry) for entry in inputs if entry in plan.activations)),
        constants=_types(plan, (entry for entry in inputs if entry in plan.weights or entry in plan.biases)),
        writes=_types(plan, (entry for entry in outputs if entry in plan.activations)),
    )


def _names(values: Iterable[ir.Value | None]) -> tuple[str, ...]:
    return tuple(value.name for value in values if value is not None and value.name)


def _types(plan: QuantPlan, tensors: Iterable[str]) -> tuple[str, ...]:
    return tuple(_type(plan, tensor) for tensor in tensors)


def _type(plan: QuantPlan, tensor: str) -> str:
    if isinstance(plan.biases.get(tensor), DerivedBiasPlan):
        return "int32"
    spec = plan.spec_of(tensor)
    return "float" if spec is None else spec.dtype.value
