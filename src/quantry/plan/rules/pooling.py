"""Pooling and reductions over space."""

from dataclasses import dataclass

import onnx_ir as ir

from quantry.graph.operators import Family, of_family
from quantry.plan.rules.annotation import Annotation, Declined, SameAs
from quantry.recipe import PlanOptions


@dataclass(frozen=True)
class MaxPoolRule:
    """``MaxPool`` picks values, so the output has the input's parameters."""

    operators: tuple[str, ...] = of_family(Family.SELECTION)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize input and output alike."""
        if node.op_type == "MaxPool" and len(node.outputs) > 1 and node.outputs[1].uses():
            return Declined("its second output, the indices, is used; integer kernels give none")
        return Annotation(activations=(0,), output=SameAs())


@dataclass(frozen=True)
class AveragePoolRule:
    """Means over space or over axes have a narrower range than their input."""

    operators: tuple[str, ...] = of_family(Family.AVERAGE)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize input and output."""
        data = node.inputs[0]
        squares = None if data is None else data.producer()
        if squares is not None and (squares.op_type == "Pow" or _is_square(squares)):
            return Declined("it averages squares, a variance, whose small values decide what follows")
        return Annotation(activations=(0,))


def _is_square(node: ir.Node) -> bool:
    return node.op_type == "Mul" and node.inputs[0] is node.inputs[1]


@dataclass(frozen=True)
class ArgMaxRule:
    """``ArgMax`` gives integers, which need no scale."""

    operators: tuple[str, ...] = of_family(Family.INDEX)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize the input only."""
        return Annotation(activations=(0,), output=None)
