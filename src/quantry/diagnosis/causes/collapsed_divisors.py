"""Cause: small values in front of a division, a root or a logarithm that round to zero."""

from collections.abc import Iterator

import onnx_ir as ir

from quantry.diagnosis.evidence import Evidence, Finding, counted
from quantry.diagnosis.fix import float_fix, wide_fix
from quantry.diagnosis.tensor_health import TensorHealth
from quantry.plan.divisors import singular_operand

# Between the tensor that is rounded and the division there are a few float nodes, such as a sum of squares and a root.
_MOST_STEPS = 6

_WIDENED = 3


def collapsed_divisors(evidence: Evidence) -> Iterator[Finding]:
    """Find activations with values that round to zero and then are divided by."""
    health = {tensor.name: tensor for tensor in evidence.activations if tensor.vanishing > 0}
    collapsed: dict[str, tuple[TensorHealth, ir.Node]] = {}
    for node in evidence.model.graph:
        divisor = singular_operand(node)
        if divisor is not None and _is_hurt(evidence, node):
            for tensor in _rounded_before(divisor, health):
                collapsed.setdefault(tensor.name, (tensor, node))
    if not collapsed:
        return
    worst_first = sorted(collapsed.values(), key=lambda entry: -entry[0].vanishing)
    tensor, node = worst_first[0]
    names = tuple(entry.name for entry, _ in worst_first)
    nodes = evidence.producers(names)
    yield Finding(
        f"divisors that round to zero in {counted(len(collapsed), 'activation')}: {tensor.vanishing:.2%} of the values "
        f"of {tensor.name} are below half of its step of {tensor.scales[0]:.2g}, and {node.op_type} {node.name} "
        "divides by them",
        names,
        "keep the nodes that compute them in float (plan.selection.exclude), or 16 bits for them (plan.tensors)",
        (*((float_fix(nodes),) if nodes else ()), wide_fix(names[:_WIDENED])),
    )


def _is_hurt(evidence: Evidence, node: ir.Node) -> bool:
    """Whether a node's output is wrong, or cannot be compared because it is infinite."""
    outputs = [value.name for value in node.outputs if value.name]
    return any(name not in evidence.errors or evidence.is_harmed(name) for name in outputs)


def _rounded_before(value: ir.Value, health: dict[str, TensorHealth]) -> Iterator[TensorHealth]:
    """Yield the nearest activations with vanishing values on the way back from a divisor."""
    queue, met = [(value, 0)], {value}
    while queue:
        current, steps = queue.pop()
        tensor = health.get(current.name or "")
        producer = current.producer()
        if tensor is not None:
            yield tensor
        elif producer is not None and steps < _MOST_STEPS:
            new = [
                operand
                for operand in producer.inputs
                if operand is not None and operand.const_value is None and operand not in met
            ]
            met.update(new)
            queue += [(operand, steps + 1) for operand in new]
