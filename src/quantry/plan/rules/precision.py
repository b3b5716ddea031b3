"""Functions whose results span many orders of magnitude."""

from dataclasses import dataclass

import onnx_ir as ir

from quantry.facts.operators import operators_where
from quantry.plan.rules.annotation import Annotation, Declined
from quantry.recipe import PlanOptions


@dataclass(frozen=True)
class WideRangeRule:
    """Powers, roots and logarithms: equal steps lose their small results."""

    operators: tuple[str, ...] = operators_where(lambda row: row.wide_range)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Decline."""
        return Declined("its result spans orders of magnitude, which integers of a few bits cannot represent")
