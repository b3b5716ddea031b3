"""Operators that copy values, and resizing."""

from dataclasses import dataclass

import onnx_ir as ir

from quantry.facts.operators import Family, of_family, operators_where
from quantry.graph.edit import int_of
from quantry.plan.rules.annotation import Annotation, Declined, Own, SameAs, input_at, is_constant, is_float
from quantry.recipe import PerGroup, PlanOptions


@dataclass(frozen=True)
class MovementRule:
    """Reshapes and selections: every output shares the scale of the first input."""

    operators: tuple[str, ...] = of_family(Family.MOVEMENT)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize input and outputs with one scale."""
        if is_constant(node.inputs[0]):
            return Declined("it moves a constant, so nothing is computed at run time")
        return Annotation(activations=(0,), output=SameAs())


@dataclass(frozen=True)
class GatherRule:
    """Lookups in a computed tensor; a constant table stays float unless only weights in groups are quantized."""

    operators: tuple[str, ...] = operators_where(lambda row: row.family is Family.LOOKUP and row.copies)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize data and output with one scale."""
        if is_constant(node.inputs[0]):
            if _is_table(node) and options.weights_only and isinstance(options.weight.granularity, PerGroup):
                return Annotation((), weight=0, weight_axis=0, output=None)
            return Declined("it looks up rows of a constant table, which takes no arithmetic; the table stays float")
        return Annotation(activations=(0,), output=SameAs())


def _is_table(node: ir.Node) -> bool:
    """Return whether a node looks up rows of a matrix, as onnxruntime's GatherBlockQuantized does."""
    table = node.inputs[0]
    rank = 0 if table is None or table.shape is None else len(table.shape)
    return node.op_type == "Gather" and rank == 2 and int_of(node, "axis", 0) == 0 and is_float(table)


@dataclass(frozen=True)
class PadRule:
    """``Pad``: the scale of the input covers zeros and copies that are added, but not every other constant."""

    operators: tuple[str, ...] = ("Pad",)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize input and output, with one scale if that covers the padding."""
        fill = input_at(node, 2)
        if node.attributes.get_string("mode", "constant") != "constant" or fill is None:
            return Annotation(activations=(0,), output=SameAs())
        if fill.const_value is None:
            return Declined(f"its padding value {fill.name!r} is computed at run time")
        is_zero = not fill.const_value.numpy().any()
        return Annotation(activations=(0,), output=SameAs() if is_zero else Own())


@dataclass(frozen=True)
class ResizeRule:
    """``Resize``: nearest neighbors are copies, interpolation computes."""

    operators: tuple[str, ...] = of_family(Family.RESIZE)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize input and output, with one scale for nearest neighbors."""
        mode = node.attributes.get_string("mode", "nearest")
        extrapolates = node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize"
        shares = mode == "nearest" and not extrapolates
        return Annotation(activations=(0,), output=SameAs() if shares else Own())
