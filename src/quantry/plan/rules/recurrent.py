"""Recurrent and control-flow operators: declined, with the reason."""

from dataclasses import dataclass

import onnx_ir as ir

from quantry.graph.operators import Family, of_family
from quantry.plan.rules.annotation import Annotation, Declined
from quantry.recipe import PlanOptions


@dataclass(frozen=True)
class RecurrentRule:
    """State that feeds back on itself inside one operator cannot be quantized from outside."""

    operators: tuple[str, ...] = of_family(Family.RECURRENT)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Decline."""
        return Declined("its state feeds back inside the operator, out of reach of Q/DQ pairs")


@dataclass(frozen=True)
class ControlFlowRule:
    """Bodies run a number of times that is known only at run time."""

    operators: tuple[str, ...] = of_family(Family.CONTROL_FLOW)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Decline."""
        return Declined("tensors inside its body cannot be observed from outside, so they have no ranges")
