"""Operators of onnxruntime's transformer optimizer that have an integer form with dynamic quantization only."""

from dataclasses import dataclass

import onnx_ir as ir

from quantry.plan.rules.annotation import Annotation, Declined, input_at, is_constant, is_float
from quantry.recipe import PlanOptions


@dataclass(frozen=True)
class EmbedLayerNormRule:
    """``EmbedLayerNormalization``: three tables and two vectors, each with one scale."""

    operators: tuple[str, ...] = ("EmbedLayerNormalization",)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize its constants, on request."""
        if not (options.weights_only and node.op_type in options.extra_operators):
            return Declined("its tables are integers only with dynamic quantization, and only on request")
        if len(node.outputs) > 2:
            return Declined("its third output, the sum of embeddings, has no integer form")
        floats = tuple(index for index in range(2, 7) if is_float(input_at(node, index)))
        if not all(is_constant(node.inputs[index]) for index in floats):
            return Declined("one of its tables is computed at run time")
        return Annotation(activations=(), tables=floats, output=None)


@dataclass(frozen=True)
class AttentionRule:
    """``Attention`` of com.microsoft, whose weight [K, 3 N] projects queries, keys and values."""

    operators: tuple[str, ...] = ("Attention",)

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Quantize the weight of the projections, on request."""
        if node.domain != "com.microsoft":
            return Declined("there is no rule for operator Attention")
        if not (options.weights_only and node.op_type in options.extra_operators):
            return Declined("it has an integer form only with dynamic quantization, and only on request")
        if not is_constant(node.inputs[1]) or len(node.inputs) > 5:
            return Declined("its weight is computed at run time, or it has an input that the integer form lacks")
        return Annotation(activations=(0,), weight=1, weight_axis=1)
