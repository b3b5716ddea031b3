"""Merges what the rules say about single nodes into one plan for the graph."""

from dataclasses import dataclass, field, replace

import onnx_ir as ir

from quantry.errors import RecipeError
from quantry.memo import stage
from quantry.plan.final_join import final_joins
from quantry.plan.masks import keep_masks_float, masked_tensors
from quantry.plan.quant_plan import (
    ActivationPlan,
    BiasPlan,
    DeclinedNode,
    DerivedBiasPlan,
    FixedRange,
    OwnBiasPlan,
    OwnRange,
    QuantPlan,
    SharedRange,
    WeightPlan,
)
from quantry.plan.rules import RULE_OF_OPERATOR, Annotation, Declined, SameAs, Within, is_constant, is_float
from quantry.plan.selected_nodes import deselected
from quantry.plan.weights_alone import weights_alone
from quantry.prepare import FloatModel
from quantry.recipe import DerivedBias, FloatBias, OwnBias, PerChannel, PerGroup, PlanOptions, TensorSpec

FUSING_PRODUCERS = frozenset(
    {
        "Conv",
        "ConvTranspose",
        "Gemm",
        "MatMul",
        "Add",
        "MaxPool",
        "AveragePool",
        "GlobalAveragePool",
        "InstanceNormalization",
        "BatchNormalization",
    }
)
"""Operators whose result stays in the accumulator until the activation function behind them is done."""

_KNOWN_DOMAINS = ("", "ai.onnx", "com.microsoft")


@stage(name="plan", version=3)
def plan(model: FloatModel, options: PlanOptions) -> QuantPlan:
    """Decide which tensors of the model are quantized, to what.

    Args:
        model: The prepared model.
        options: Types, selection and placement.

    Returns:
        The plan; every node is either among its quantized nodes or declined with a reason.

    Raises:
        SelectionError: The selection names something that is not there.
    """
    graph = model.model.graph
    joins = final_joins(graph, options) if options.float_final_joins else {}
    excluded = {**joins, **deselected(graph, options.selection)}
    masked = masked_tensors(graph)
    draft = _Draft(options)
    for node in graph:
        answer = _answer(node, excluded, options)
        if isinstance(answer, Annotation) and options.weights_only:
            answer = weights_alone(answer, options)
        if isinstance(answer, Annotation):
            answer = keep_masks_float(node, answer, masked)
        if isinstance(answer, Annotation) and answer.moves_data and not draft.may_pass_through(node, answer):
            answer = Declined("it only moves data and its input is not quantized")
        if isinstance(answer, Declined):
            draft.decline(node, answer.reason)
        else:
            draft.add(node, answer)
    return draft.finish()


def _answer(node: ir.Node, excluded: dict[str, str], options: PlanOptions) -> Annotation | Declined:
    if node.name in excluded:
        return Declined(excluded[node.name])
    rule = RULE_OF_OPERATOR.get(node.op_type) if node.domain in _KNOWN_DOMAINS else None
    if rule is None:
        where = f" of domain {node.domain}" if node.domain else ""
        return Declined(f"there is no rule for operator {node.op_type}{where}")
    if not any(is_float(value) for value in (*node.inputs, *node.outputs) if value is not None):
        # Control flow and recurrences give their own reason whatever their types.
        answer = rule.annotate(node, options) if node.op_type in ("If", "Loop", "Scan") else None
        return answer if isinstance(answer, Declined) else Declined("it does not compute on float32 tensors")
    answer = rule.annotate(node, options)
    if isinstance(answer, Annotation):
        if not all(is_float(node.inputs[index]) for index in answer.activations):
            return Declined("a data input of it is no float32 tensor")
        if any(is_constant(node.inputs[index]) for index in answer.activations):
            return Declined("its data are a constant and its weight is computed at run time")
    return answer


def _channel_axis(node: ir.Node, weight: ir.Value, granularity: PerChannel, rule_axis: int) -> int:
    rank = len(weight.shape) if weight.shape is not None else 0
    wanted = granularity.axis
    if wanted is not None and (not -rank <= wanted < rank or wanted % rank != rule_axis):
        raise RecipeError(
            f"PerChannel.axis must be the axis of output channels, which is {rule_axis} for the weight {weight.name!r} "
            f"of {node.op_type} {node.name!r}; got {wanted}; PerChannel() takes the right axis of every operator"
        )
    return rule_axis


def _name(value: ir.Value | None) -> str:
    assert value is not None
    assert value.name is not None
    return value.name


@dataclass
class _Draft:
    """The plan while it grows, in the order of the graph."""

    options: PlanOptions
    activations: dict[str, ActivationPlan] = field(default_factory=dict)
    weights: dict[str, WeightPlan] = field(default_factory=dict)
    biases: dict[str, BiasPlan] = field(default_factory=dict)
    quantized: dict[str, ir.Node] = field(default_factory=dict)
    declined: list[DeclinedNode] = field(default_factory=list)

    def may_pass_through(self, node: ir.Node, annotation: Annotation) -> bool:
        """Whether an operator that only moves data is worth quantizing."""
        return self.options.force_pass_through or any(
            _name(node.inputs[index]) in self.activations for index in annotation.activations
        )

    def decline(self, node: ir.Node, reason: str) -> None:
        """Leave the node float."""
        self.declined.append(DeclinedNode(node.name or "", node.op_type, reason))

    def add(self, node: ir.Node, annotation: Annotation) -> None:
        """Take the node in."""
        self.quantized[node.name or ""] = node
        for index in annotation.activations:
            self.activations.setdefault(_name(node.inputs[index]), OwnRange(self.options.activation))
        for index in annotation.constants:
            self._add_weight(node, index, self.options.activation, None)
        if annotation.weight is not None:
            self._add_weight(node, annotation.weight, self.options.weight, annotation.weight_axis)
        if annotation.bias is not None:
            self._add_bias(node, annotation)
        if annotation.output is not None:
            for output in node.outputs:
                if is_float(output) and (output.uses() or output.is_graph_output()):
                    self.activations.setdefault(_name(output), self._output_plan(node, annotation))

    def _output_plan(self, node: ir.Node, annotation: Annotation) -> ActivationPlan:
        output = annotation.output
        if isinstance(output, SameAs):
            source = _name(node.inputs[output.input])
            plan = self.activations[source]
            return plan if isinstance(plan, SharedRange) else SharedRange(source)
        if isinstance(output, Within):
            return FixedRange(self.options.activation, output.low, output.high)
        return OwnRange(self.options.activation)

    def _add_weight(self, node: ir.Node, index: int, spec: TensorSpec, rule_axis: int | None) -> None:
        value = node.inputs[index]
        name = _name(value)
        axis: int | None = None
        if isinstance(spec.granularity, PerChannel) and rule_axis is not None:
            assert value is not None
            axis = _channel_axis(node, value, spec.granularity, rule_axis)
        if isinstance(spec.granularity, PerGroup) and rule_axis is not None:
            axis = 1 - rule_axis  # of matrices and convolutions, the first two axes are output and summed-over channels
        known = self.weights.get(name)
        users = (*known.users, node.name or "") if known else (node.name or "",)
        self.weights[name] = replace(known, users=users) if known else WeightPlan(spec, axis, users)

    def _add_bias(self, node: ir.Node, annotation: Annotation) -> None:
        assert annotation.bias is not None
        bias = self.options.bias
        if isinstance(bias, FloatBias):
            return
        name = _name(node.inputs[annotation.bias])
        if isinstance(bias, OwnBias):
            self.biases[name] = OwnBiasPlan(bias.spec)
        else:
            assert isinstance(bias, DerivedBias)
            data = annotation.activations[0]
            weight = annotation.activations[1] if annotation.weight is None else annotation.weight
            self.biases[name] = DerivedBiasPlan(_name(node.inputs[data]), _name(node.inputs[weight]))

    def finish(self) -> QuantPlan:
        """Drop the tensors between fused operators and freeze."""
        for node in self.quantized.values():
            if node.op_type in self.options.fused_activations:
                self._fuse(node)
        return QuantPlan(
            activations=self.activations,
            weights=self.weights,
            biases=self.biases,
            quantized_nodes=tuple(self.quantized),
            declined=tuple(self.declined),
        )

    def _fuse(self, activation: ir.Node) -> None:
        # Conv -> t -> Relu: t stays in the accumulator when nobody else reads it.
        tensor = activation.inputs[0]
        assert tensor is not None
        producer = tensor.producer()
        if producer is None or producer.op_type not in FUSING_PRODUCERS or (producer.name or "") not in self.quantized:
            return
        if len(tensor.uses()) == 1 and not tensor.is_graph_output():
            planned = self.activations.get(_name(tensor))
            if isinstance(planned, OwnRange):
                del self.activations[_name(tensor)]
