"""Recurrent layers, of which the weights are quantized, and control flow, which runs the graphs inside it."""

from dataclasses import dataclass

import onnx_ir as ir

from quantry.facts.operators import Family, of_family
from quantry.plan.rules.annotation import Annotation, Declined, input_at, is_constant
from quantry.recipe import PlanOptions


@dataclass(frozen=True)
class RecurrentRule:
    """Recurrent layers: weights [directions, gates * hidden, inputs], with one scale per row of a gate.

    Their state never leaves the operator, so activations stay float.
    """

    operators: tuple[str, ...] = of_family(Family.RECURRENT)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize the weights of the input and of the state."""
        first, *further = [index for index in (1, 2) if is_constant(input_at(node, index))] or (None,)
        if first is None:
            return Declined("its weights are computed, and its state stays inside where no Q/DQ pair can be placed")
        return Annotation((), weight=first, weight_axis=1, other_weights=tuple(further), output=None)


@dataclass(frozen=True)
class ControlFlowRule:
    """Operators with graphs inside, which `quantry.plan.bodies` covers."""

    operators: tuple[str, ...] = of_family(Family.CONTROL_FLOW)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Decline: the node itself computes nothing."""
        return Declined("it only runs its body, of which the weights are quantized at most")
