"""Rules about what stands between an operator and the quantizer of its result."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import onnx_ir as ir

from quantry.facts.operators import LINEAR
from quantry.graph.edit import bounds_of
from quantry.graph.qdq import QuantizedTensor, quantizers_of
from quantry.recipe import DataType, Dynamic, Recipe
from quantry.targets.rules.rule import CheckedModel, TargetRule, Violation

_EIGHT_BITS = (DataType.UINT8, DataType.INT8)
_BOUNDING = ("Relu", "Clip")


@dataclass(frozen=True, kw_only=True)
class RedundantFunctions(TargetRule):
    """A function between a linear operator and its quantizer is one that the quantizer's range applies anyway.

    ::

        DQ -> Conv -> Relu -> Q with zero point 0    the range starts at 0, so the Relu can go: Conv runs on integers
        DQ -> Conv -> Relu -> Q with zero point 128  the Relu stays, and Conv runs in float
    """

    name = "redundant function"

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "between a Conv, Gemm or MatMul and its quantizer stands only what the quantizer's range does anyway"

    def violations(self, model: CheckedModel) -> Iterator[Violation]:
        """Yield the functions that the range after them does not contain."""
        for node in model.operators:
            producer = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
            if producer is None or producer.op_type not in LINEAR or not _is_between(node):
                continue
            tensor = model.tensors.of(node.outputs[0])
            if tensor is None or _contains(node, tensor):
                continue
            values = f"{node.op_type} between {producer.name!r} and its quantizer changes values within the range"
            change = "quantize its input too: insert a QuantizeLinear and a DequantizeLinear before it"
            yield self.broken(node.name, values, change)

    def legalized(self, recipe: Recipe) -> Recipe:
        """Return the recipe with a pair before every function that a range does not contain."""
        spec = recipe.plan.activation
        # Ranges of asymmetric types start where the values do, so those of Relu and Clip end at the bounds.
        removable = () if spec.symmetric else _BOUNDING
        functions = tuple(name for name in recipe.plan.fused_activations if name in removable)
        return replace(recipe, plan=replace(recipe.plan, fused_activations=functions))


@dataclass(frozen=True, kw_only=True)
class FasterForms(TargetRule):
    """Operators with slow 8-bit kernels are written as convolutions that compute the same."""

    name = "faster forms"

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "8-bit average pools are best written as depthwise Conv, and zero padding as part of the Conv after it"

    def violations(self, model: CheckedModel) -> Iterator[Violation]:
        """Yield nothing: the other forms are slow, not wrong."""
        del model
        return iter(())

    def legalized(self, recipe: Recipe) -> Recipe:
        """Return the recipe that writes the fast forms."""
        plan = recipe.plan
        if plan.weights_only or plan.activation.dtype not in _EIGHT_BITS or isinstance(recipe.emit.format, Dynamic):
            return recipe
        return replace(recipe, prepare=replace(recipe.prepare, average_pool_to_conv=True, fold_pads=True))


def _is_between(node: ir.Node) -> bool:
    source = node.inputs[0]
    return source is not None and len(source.uses()) == 1 and bool(quantizers_of(node.outputs[0]))


def _contains(node: ir.Node, tensor: QuantizedTensor) -> bool:
    """Whether the range of a tensor lies within the bounds of the Relu or Clip that writes it."""
    bounds = bounds_of(node)
    if bounds is None or tensor.step is None or tensor.limits is None:
        return False
    scale, (low, high) = tensor.step, bounds
    start, end = ((level - tensor.offset) * scale for level in tensor.limits)
    # Half a step of slack: the ends of the range are rounded.
    return start >= low - scale / 2 and end <= high + scale / 2
