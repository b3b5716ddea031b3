"""Recurrent layers and control flow, which stay float."""

from dataclasses import dataclass

import onnx_ir as ir

from quantry.graph.operators import Family, of_family
from quantry.plan.rules.annotation import Annotation, Declined
from quantry.recipe import PlanOptions


@dataclass(frozen=True)
class RecurrentRule:
    """Recurrent layers, whose state never leaves the operator."""

    operators: tuple[str, ...] = of_family(Family.RECURRENT)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Decline."""
        return Declined("its state stays inside the operator, where no Q/DQ pair can be placed")


@dataclass(frozen=True)
class ControlFlowRule:
    """Operators with graphs inside, whose tensors cannot be calibrated."""

    operators: tuple[str, ...] = of_family(Family.CONTROL_FLOW)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Decline."""
        return Declined("tensors inside its body cannot be observed, so they have no ranges")
