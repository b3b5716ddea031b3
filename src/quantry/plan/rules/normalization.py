"""Normalizations: their input and output are quantized, the small vectors of parameters stay float."""

from dataclasses import dataclass

import onnx_ir as ir

from quantry.graph.operators import Family, of_family
from quantry.plan.rules.annotation import Annotation, Declined
from quantry.recipe import PlanOptions


@dataclass(frozen=True)
class NormalizationRule:
    """Normalizations of one tensor."""

    operators: tuple[str, ...] = of_family(Family.NORMALIZATION)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize data input and output."""
        if sum(1 for output in node.outputs if output.uses() or output.is_graph_output()) > 1:
            return Declined("its outputs of mean and deviation are used, which have no integer form")
        return Annotation(activations=(0,))
