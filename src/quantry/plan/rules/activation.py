"""Activation functions.

ONNX writes SiLU as ``Mul(x, Sigmoid(x))``: this rule annotates the Sigmoid and the arithmetic rule the Mul. The three
tensors x, Sigmoid(x) and the product are quantized, which is what integer kernels with look-up tables compute.
"""

from dataclasses import dataclass

import onnx_ir as ir

from quantry.facts.operators import Family, operators_where
from quantry.plan.rules.annotation import Annotation, Declined, Within, input_at, is_constant, operands
from quantry.recipe import PlanOptions


@dataclass(frozen=True)
class ActivationRule:
    """Functions of one tensor; parameters such as the bounds of Clip stay float."""

    operators: tuple[str, ...] = operators_where(lambda row: row.family is Family.ACTIVATION and row.name != "PRelu")

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize input and output."""
        if node.op_type == "Clip":
            for index in (1, 2):
                bound = input_at(node, index)
                if bound is not None and not is_constant(bound):
                    return Declined(f"its bound {bound.name!r} is computed at run time")
        return operands(node, (0,))


@dataclass(frozen=True)
class PReluRule:
    """``PRelu``, whose slope is a constant operand."""

    operators: tuple[str, ...] = ("PRelu",)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize input, slope and output."""
        return operands(node, (0, 1))


@dataclass(frozen=True)
class SoftmaxRule:
    """``Softmax``, whose output is always in [0, 1]."""

    operators: tuple[str, ...] = ("Softmax",)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize the input, and the output with its known range."""
        return Annotation(activations=(0,), output=Within(0.0, 1.0))
