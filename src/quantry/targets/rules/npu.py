"""Rules of AMD's integer NPUs: what they have no kernels for, what is closed by Q/DQ pairs, limits of the shifters."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

import onnx_ir as ir

from quantry.facts.operators import FUSIBLE, Family, operators_where
from quantry.graph.qdq import is_dequantize, is_quantize
from quantry.numerics.power_of_two import scale_at
from quantry.plan.after_layers import post_processing
from quantry.plan.stay_float import masked_tensors
from quantry.recipe import NpuLimits, Recipe
from quantry.scale.npu import LIMITS, find_units, is_correction
from quantry.targets.rules.rule import CheckedModel, TargetRule, Violation

_COMPUTING = operators_where(lambda row: row.npu and not row.npu.moves)
_MOVING = operators_where(lambda row: row.npu and row.npu.moves)
# Further operands of other operators are parameters, such as the bounds of Clip, and stay float.
_ALL_OPERANDS = operators_where(lambda row: row.weight or row.operands > 1 or row.family is Family.JOIN)
_WEIGHTED = operators_where(lambda row: row.weight)
_AVERAGES = operators_where(lambda row: row.family is Family.AVERAGE)
_FUSED_AFTER = {
    **dict.fromkeys(FUSIBLE, operators_where(lambda row: row.fuses)),
    "AveragePool": ("Pad",),
}


@dataclass(frozen=True, kw_only=True)
class Closed(TargetRule):
    """Every operator that the NPU computes reads and writes quantized tensors.

    Float operators that the NPU does not have are allowed, and so are those that only move data to an output of the
    model. After the last layer with weights, so are a float average pool with what follows it and the decoding of
    boxes: the CPU computes this end of the model more precisely, and the rest stays one piece for the NPU. So are the
    nodes that the recipe of a model written by quantry excludes: that was a decision, with its gain in accuracy.
    Attention masks and the sums with them are float in any case: next to -10000 all scores would round to one level.
    """

    name = "closed by Q/DQ"

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return (
            "every operator that the NPU computes reads and writes quantized tensors; "
            "a float average pool or the decoding of boxes after the last layer with weights runs on the CPU, "
            "and so do sums with an attention mask"
        )

    def violations(self, model: CheckedModel) -> Iterator[Violation]:
        """Yield the float operands and results of nodes that the NPU should compute."""
        on_cpu, masked = _float_end(model.graph), masked_tensors(model.graph)
        for node in model.operators:
            if node in on_cpu or node.name in model.excluded or node.outputs[0] in masked:
                continue
            computes = node.op_type in _COMPUTING
            output = node.outputs[0]
            is_quantized = any(is_quantize(use.node) for use in output.uses())
            if computes or (node.op_type in _MOVING and is_quantized):
                yield from self._operands(node, masked)
            if computes and _is_float(output) and not _writes_integers(output):
                change = "quantize it: insert a QuantizeLinear after the node"
                yield self.broken(node.name, f"its result {output.name!r} is float", change)

    def legalized(self, recipe: Recipe) -> Recipe:
        """Return the recipe with quantized sums, also in front of a normalization."""
        return replace(recipe, plan=replace(recipe.plan, float_residuals=False))

    def _operands(self, node: ir.Node, masked: frozenset[ir.Value]) -> Iterator[Violation]:
        operands = node.inputs if node.op_type in _ALL_OPERANDS else node.inputs[:1]
        for operand in operands:
            if operand is None or operand in masked:
                continue
            if _is_float(operand) and not _reads_integers(node, operand):
                yield self.broken(
                    node.name,
                    f"its operand {operand.name!r} is float",
                    "quantize it: insert a QuantizeLinear and a DequantizeLinear before the node",
                )


@dataclass(frozen=True, kw_only=True)
class ShiftLimits(TargetRule):
    """The limits of the NPU's shifters on the positions of neighbouring tensors: `quantry.recipe.NpuLimits`."""

    name = "shift limits"

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"the shifters reach: {', '.join(limit.name.replace('_', ' ') for limit in LIMITS)}"

    def violations(self, model: CheckedModel) -> Iterator[Violation]:
        """Yield the nodes whose tensors are too far apart for the shifters."""
        positions = model.tensors.positions()
        for unit in find_units(model.operators, model.tensors):
            for limit in LIMITS:
                finding = limit.find(unit, positions)
                if finding is not None:
                    name = limit.name.replace("_", " ")
                    yield self.broken(unit.node, finding.values, _advice(finding.moves), name)

    def legalized(self, recipe: Recipe) -> Recipe:
        """Return the recipe with the limits."""
        if recipe.scale.npu is not None or recipe.scale.align:
            return recipe
        return replace(recipe, scale=replace(recipe.scale, npu=NpuLimits()))

    def conflicts(self, recipe: Recipe) -> Iterator[str]:
        """Yield which limits a recipe does not ask for."""
        limits = recipe.scale.npu
        if limits is None:
            yield "scale.npu is None, so that nothing keeps positions within reach of the shifters; use NpuLimits()"
            return
        for limit in fields(limits):
            if getattr(limits, limit.name) is False:
                yield f"scale.npu.{limit.name} is false, so that positions may be out of reach of the shifters"


def _advice(moves: Mapping[str, int]) -> str:
    parts = (f"{tensor!r} to position {move} (scale {scale_at(move):g})" for tensor, move in moves.items())
    return f"move {', '.join(parts)} and quantize the float model again"


def _float_end(graph: ir.Graph) -> set[ir.Node]:
    """Return float average pools and decoding with what follows, if that is neither quantized again nor has weights."""
    decoding = post_processing(graph)
    end: set[ir.Node] = set()
    for node in reversed(graph):
        readers = {use.node for output in node.outputs for use in output.uses()}
        if not is_quantize(node) and node.op_type not in _WEIGHTED and readers <= end:
            end.add(node)
    end_nodes: set[ir.Node] = set()
    for node in graph:
        producers = {value.producer() for value in node.inputs if value is not None}
        if node in end and (node.op_type in _AVERAGES or node.name in decoding or producers & end_nodes):
            end_nodes.add(node)
    return end_nodes


def _is_float(value: ir.Value) -> bool:
    return value.dtype in (None, ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)


def _reads_integers(node: ir.Node, operand: ir.Value) -> bool:
    if operand.const_value is not None:
        operands = [value for value in node.inputs if value is not None and value is not operand]
        return len(operands) == 1 and is_correction(node, operands[0])
    producer = operand.producer()
    return is_dequantize(producer) or _is_fused(node, operand)


def _writes_integers(output: ir.Value) -> bool:
    readers = [use.node for use in output.uses()]
    if output.is_graph_output() or not readers:
        return False
    return all(is_quantize(reader) or _is_fused(reader, output) for reader in readers)


def _is_fused(node: ir.Node, operand: ir.Value) -> bool:
    producer = operand.producer()
    if producer is None or len(operand.uses()) != 1 or operand.is_graph_output():
        return False
    return producer.op_type in _FUSED_AFTER.get(node.op_type, frozenset()) or is_correction(node, operand)
