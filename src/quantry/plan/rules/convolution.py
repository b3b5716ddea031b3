"""Convolutions: one scale per output channel of the weight, and a bias with the scale of the accumulator."""

from dataclasses import dataclass

import onnx_ir as ir

from quantry.plan.rules.annotation import Annotation, Declined, input_at, is_constant
from quantry.recipe import PlanOptions


@dataclass(frozen=True)
class ConvRule:
    """``Conv``: weight [C_out, C_in / group, ...]."""

    operators: tuple[str, ...] = ("Conv",)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize input, weight, bias and output."""
        return _convolution(node, weight_axis=0)


@dataclass(frozen=True)
class ConvTransposeRule:
    """``ConvTranspose``: weight [C_in, C_out / group, ...]."""

    operators: tuple[str, ...] = ("ConvTranspose",)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize input, weight, bias and output; a weight with groups has a single scale."""
        # With groups, each index of axis 1 belongs to one output channel of every group, so a scale per index of that
        # axis would not be a scale per output channel.
        group = node.attributes.get_int("group", 1)
        return _convolution(node, weight_axis=1 if group == 1 else None)


def _convolution(node: ir.Node, weight_axis: int | None) -> Annotation | Declined:
    bias = input_at(node, 2)
    if bias is not None and not is_constant(bias):
        return Declined(f"its bias {bias.name!r} is computed at run time; only a constant bias can be quantized")
    bias_index = None if bias is None else 2
    if not is_constant(node.inputs[1]):
        return Annotation(activations=(0, 1), bias=bias_index)
    return Annotation(activations=(0,), weight=1, weight_axis=weight_axis, bias=bias_index)
