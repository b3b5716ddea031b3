"""Normalizations: their input and output are quantized.

The small vectors of parameters stay float unless the operator is among ``PlanOptions.extra_operators``: only NPUs that
have no float numbers at all need them as integers.
"""

from dataclasses import dataclass

import onnx_ir as ir

from quantry.facts.operators import Family, of_family
from quantry.plan.rules.annotation import Annotation, Declined, input_at, is_constant
from quantry.recipe import PlanOptions


@dataclass(frozen=True)
class NormalizationRule:
    """Normalizations of one tensor."""

    operators: tuple[str, ...] = of_family(Family.NORMALIZATION)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize data input and output, and constant parameters on request."""
        if sum(1 for output in node.outputs if output.uses() or output.is_graph_output()) > 1:
            return Declined("its outputs of mean and deviation are used, which have no integer form")
        if node.op_type not in options.extra_operators or not is_constant(input_at(node, 1)):
            return Annotation(activations=(0,))
        bias = input_at(node, 2)
        return Annotation(activations=(0,), weight=1, bias=2 if is_constant(bias) else None)
