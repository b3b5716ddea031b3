"""Operators that stay float for their precision, or because nothing is known of them, where all are to be quantized."""

import onnx_ir as ir

from quantry.plan.rules import Annotation, Declined, Own, Rule, is_constant, is_float
from quantry.recipe import PlanOptions

_LEFT_ALONE = frozenset({"If", "Loop", "Scan", "SequenceMap", "LSTM", "GRU", "RNN"})


def is_left_float(node: ir.Node, rule: Rule | None, options: PlanOptions) -> bool:
    """Whether a node computes on floats and would not be quantized.

    Args:
        node: The node.
        rule: The rule of its operator; None where there is none.
        options: Passed on to the rule.
    """
    if node.op_type in _LEFT_ALONE or not any(_is_computed(value) for value in node.inputs):
        return False
    return rule is None or isinstance(rule.annotate(node, options), Declined)


def any_operator(node: ir.Node) -> Annotation:
    """Quantize what is computed and float, and the float results; constants of an unknown meaning stay float.

    Args:
        node: A node of `is_left_float`.
    """
    computed = tuple(index for index, value in enumerate(node.inputs) if _is_computed(value))
    return Annotation(activations=computed, output=Own() if any(is_float(output) for output in node.outputs) else None)


def _is_computed(value: ir.Value | None) -> bool:
    return is_float(value) and not is_constant(value)
