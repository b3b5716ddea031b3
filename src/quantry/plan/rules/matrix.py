"""Matrix products."""

from dataclasses import dataclass

import onnx_ir as ir

from quantry.graph.passes.split_shared_weights import has_bias_per_channel
from quantry.plan.rules.annotation import Annotation, Declined, input_at, is_constant
from quantry.recipe import PlanOptions


@dataclass(frozen=True)
class MatMulRule:
    """``MatMul``: the right operand is usually the weight [K, N]."""

    operators: tuple[str, ...] = ("MatMul",)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize both operands and the output."""
        first, second = node.inputs
        if is_constant(second):
            assert second is not None
            rank = len(second.shape) if second.shape is not None else 0
            # The integer kernel of onnxruntime takes scales per channel for one matrix, not for a stack of them.
            return Annotation(activations=(0,), weight=1, weight_axis=1 if rank == 2 else None)
        if options.constant_right_operand_only:
            return Declined("its right operand is computed at run time and constant_right_operand_only is set")
        if is_constant(first):
            # The rows of a constant left operand are no output channels, so it has a single scale.
            return Annotation(activations=(1,), weight=0)
        return Annotation(activations=(0, 1))


@dataclass(frozen=True)
class GemmRule:
    """``Gemm``: weight [K, N], or [N, K] with transB, and a bias."""

    operators: tuple[str, ...] = ("Gemm",)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize both operands, the bias and the output."""
        bias = input_at(node, 2)
        if bias is not None and not is_constant(bias):
            return Declined(f"its bias {bias.name!r} is computed at run time; only a constant bias can be quantized")
        bias_index = None if bias is None else 2
        if is_constant(node.inputs[1]):
            axis = 0 if node.attributes.get_int("transB", 0) else 1
            # In a weight-only plan the bias does not have the scale of the weight, so its shape does not matter.
            per_channel = options.weights_only or has_bias_per_channel(node, axis)
            return Annotation(activations=(0,), weight=1, weight_axis=axis if per_channel else None, bias=bias_index)
        if options.constant_right_operand_only:
            return Declined("its right operand is computed at run time and constant_right_operand_only is set")
        return Annotation(activations=(0, 1), bias=bias_index)
