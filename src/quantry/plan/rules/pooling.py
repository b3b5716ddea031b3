"""Pooling, means, extremes and their positions."""

from dataclasses import dataclass

import onnx_ir as ir

from quantry.facts.operators import Family, of_family
from quantry.plan.rules.annotation import Annotation, Declined, SameAs
from quantry.recipe import PlanOptions


@dataclass(frozen=True)
class MaxPoolRule:
    """Largest and smallest values are among the inputs, so the output shares the scale of the input."""

    operators: tuple[str, ...] = of_family(Family.SELECTION)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize input and output with one scale."""
        if node.op_type == "MaxPool" and len(node.outputs) > 1 and node.outputs[1].uses():
            return Declined("its second output, the indices, is used, and integer kernels do not compute it")
        return Annotation(activations=(0,), output=SameAs())


@dataclass(frozen=True)
class AveragePoolRule:
    """Means have a narrower range than their input, so they have a scale of their own."""

    operators: tuple[str, ...] = of_family(Family.AVERAGE)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize input and output."""
        data = node.inputs[0]
        squares = None if data is None else data.producer()
        if squares is not None and (squares.op_type == "Pow" or _is_square(squares)):
            return Declined("it averages squares, as in a variance, where the small values matter most")
        return Annotation(activations=(0,))


def _is_square(node: ir.Node) -> bool:
    return node.op_type == "Mul" and node.inputs[0] is node.inputs[1]


@dataclass(frozen=True)
class ArgMaxRule:
    """``ArgMax`` and ``ArgMin`` return integers, which need no scale."""

    operators: tuple[str, ...] = of_family(Family.INDEX)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize the input only."""
        return Annotation(activations=(0,), output=None)
