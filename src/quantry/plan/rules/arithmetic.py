"""Arithmetic between tensors, and joins."""

from dataclasses import dataclass

import onnx_ir as ir

from quantry.facts.operators import Family, of_family
from quantry.plan.rules.annotation import Annotation, Declined, is_constant, operands
from quantry.recipe import PlanOptions


@dataclass(frozen=True)
class ArithmeticRule:
    """``Add`` and similar operators: every operand is quantized, constants to the type of activations."""

    operators: tuple[str, ...] = of_family(Family.ARITHMETIC)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize all operands and the output."""
        if any(use.node.op_type == "Sqrt" for use in node.outputs[0].uses()):
            return Declined(
                "a square root reads its result, and near zero a small step becomes a large one after the root"
            )
        return operands(node, tuple(range(len(node.inputs))))


@dataclass(frozen=True)
class DivRule:
    """``Div`` by a constant; a computed divisor could round to zero."""

    operators: tuple[str, ...] = ("Div",)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize the dividend and the output; the constant divisor stays float."""
        if not is_constant(node.inputs[1]):
            return Declined("its divisor is computed at run time, and rounding it to zero would give infinity")
        return operands(node, (0,))


@dataclass(frozen=True)
class WhereRule:
    """``Where``, whose condition stays boolean."""

    operators: tuple[str, ...] = ("Where",)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize both branches and the output."""
        return operands(node, (1, 2))


@dataclass(frozen=True)
class ConcatRule:
    """``Concat``: each input has its own scale, and the output one for all."""

    operators: tuple[str, ...] = ("Concat",)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize all inputs and the output."""
        return operands(node, tuple(range(len(node.inputs))))
