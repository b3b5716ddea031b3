"""Builds a plan from the annotations of single nodes, in the order of the graph."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from quantry.errors import RecipeError
from quantry.facts.operators import Family, facts
from quantry.graph.quant_plan import (
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
from quantry.plan.rules import Annotation, SameAs, Within, is_float
from quantry.plan.types import NodeTypes, Read, Resolution, TensorPins, finest, resolve_types
from quantry.recipe import FloatBias, OwnBias, PerChannel, PerGroup, PerTensor, PlanOptions, TensorSpec, nearest_bias
from quantry.recipe.layers import check_activation


@dataclass
class Draft:
    """Collects the annotations of nodes and merges them at the end.

    Attributes:
        options: Types and placement.
        types: Types that the user chose for single nodes, by name.
    """

    options: PlanOptions
    types: Mapping[str, NodeTypes]
    _activations: dict[str, ActivationPlan] = field(default_factory=dict)
    _weights: dict[str, WeightPlan] = field(default_factory=dict)
    _biased: list[tuple[ir.Node, Annotation]] = field(default_factory=list)
    _quantized: dict[str, ir.Node] = field(default_factory=dict)
    _declined: list[DeclinedNode] = field(default_factory=list)
    _reads: list[Read] = field(default_factory=list)
    _written: dict[str, TensorSpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._pins = TensorPins(self.options.tensors)

    def may_pass_through(self, node: ir.Node, annotation: Annotation) -> bool:
        """Whether to quantize a node that only copies values: if its input is quantized, or the user asks for it."""
        return self.options.force_pass_through or any(
            _name(node.inputs[index]) in self._activations for index in annotation.activations
        )

    def decline(self, node: ir.Node, reason: str) -> None:
        """Leave the node float."""
        self._declined.append(DeclinedNode(node.name or "", node.op_type, reason))

    def add(self, node: ir.Node, annotation: Annotation) -> None:
        """Add a quantized node."""
        self._quantized[node.name or ""] = node
        types = self._types(node)
        for index in annotation.activations:
            tensor = _name(node.inputs[index])
            self._activations.setdefault(tensor, OwnRange(self.options.activation))
            self._reads.append(Read(node.name or "", tensor, types.input(index), annotation.moves_data))
        for index in annotation.constants:
            self._add_weight(node, index, types.activation or self.options.activation, None)
        for index in annotation.tables:
            table = replace(types.weight or self.options.weight, granularity=PerTensor())
            self._add_weight(node, index, table, None)
        self.add_weights(node, annotation)
        if annotation.bias is not None:
            self._biased.append((node, annotation))
        stays = self.options.inputs_only or node.op_type in self.options.float_outputs
        if annotation.output is not None and not stays:
            for output in node.outputs:
                if is_float(output) and (output.uses() or output.is_graph_output()):
                    self._activations.setdefault(_name(output), self._output_plan(node, annotation))
                    if types.output is not None:
                        self._written[_name(output)] = types.output

    def add_weights(self, node: ir.Node, annotation: Annotation) -> None:
        """Add the weights of a node and nothing else; the node may be inside the body of another one."""
        if annotation.weight is not None:
            spec = self._types(node).weight or self.options.weight
            for index in (annotation.weight, *annotation.other_weights):
                self._add_weight(node, index, spec, annotation.weight_axis)

    def finish(self) -> QuantPlan:
        """Drop the tensors between fused operators, resolve all types and return the plan.

        Raises:
            SelectionError: An entry for tensors matches no quantized tensor.
            RecipeError: Types of a layer are incompatible, or an activation is to have one scale per channel.
        """
        for node in self._quantized.values():
            if node.op_type in self.options.fused_activations:
                self._fuse(node)
        for tensor in self._activations:
            check_activation(f"plan.tensors of {tensor!r}", self._pins.spec(tensor))
        resolved = resolve_types(self._activations, self._reads, self._written, self._pins.entry)
        biases = {
            name: bias
            for name, bias in (self._bias(node, annotation, resolved) for node, annotation in self._biased)
            if bias is not None
        }
        self._pins.check_all_used((*self._activations, *self._weights, *biases))
        return QuantPlan(
            activations=resolved.activations,
            weights=self._weights,
            biases=biases,
            quantized_nodes=tuple(self._quantized),
            declined=tuple(self._declined),
            conversions=resolved.conversions,
        )

    def _types(self, node: ir.Node) -> NodeTypes:
        return self.types.get(node.name or "", NodeTypes())

    def _output_plan(self, node: ir.Node, annotation: Annotation) -> ActivationPlan:
        output = annotation.output
        if isinstance(output, SameAs):
            source = _name(node.inputs[output.input])
            plan = self._activations[source]
            return plan if isinstance(plan, SharedRange) else SharedRange(source)
        if isinstance(output, Within):
            return FixedRange(self.options.activation, output.low, output.high)
        return OwnRange(self.options.activation)

    def _add_weight(self, node: ir.Node, index: int, requested_spec: TensorSpec, rule_axis: int | None) -> None:
        value = node.inputs[index]
        name = _name(value)
        assert value is not None
        previous = self._weights.get(name)
        spec = self._pins.spec(name) or requested_spec
        if previous is not None and finest((previous.spec, spec)) is previous.spec:
            # All readers of a constant share its integers. If they want different types, the finest one serves all.
            self._weights[name] = replace(previous, users=(*previous.users, node.name or ""))
            return
        axis: int | None = None
        if isinstance(spec.granularity, PerChannel) and rule_axis is not None:
            axis = _channel_axis(node, value, spec.granularity, rule_axis)
        if isinstance(spec.granularity, PerGroup) and rule_axis is not None:
            # Groups lie along the inputs: the last axis of recurrent layers, else the other one of axes 0 and 1.
            axis = 2 if facts(node).family is Family.RECURRENT else 1 - rule_axis
        users = () if previous is None else previous.users
        self._weights[name] = WeightPlan(spec, axis, (*users, node.name or ""))

    def _bias(self, node: ir.Node, annotation: Annotation, resolved: Resolution) -> tuple[str, BiasPlan | None]:
        assert annotation.bias is not None
        name = _name(node.inputs[annotation.bias])
        pinned = self._pins.spec(name)
        if pinned is not None:
            return name, OwnBiasPlan(pinned)
        if not annotation.activations:  # a weight-only plan, in which a derived bias stays float
            bias = self._types(node).bias or self.options.bias
            return name, OwnBiasPlan(bias.spec) if isinstance(bias, OwnBias) else None
        source, data = self._operand(node, annotation.activations[0], resolved)
        index = annotation.activations[1] if annotation.weight is None else annotation.weight
        factor, weight = self._operand(node, index, resolved)
        bias = self._types(node).bias or nearest_bias(self.options.bias, data, weight)
        if isinstance(bias, FloatBias):
            return name, None
        if isinstance(bias, OwnBias):
            return name, OwnBiasPlan(bias.spec)
        if nearest_bias(bias, data, weight) != bias:
            raise RecipeError(
                "DerivedBias() needs integers with at most 24 bits in activation and weight together, got "
                f"{data.dtype.value} and {weight.dtype.value} of {node.op_type} {node.name!r}; use OwnBias() there"
            )
        return name, DerivedBiasPlan(source, factor)

    def _operand(self, node: ir.Node, index: int, resolved: Resolution) -> tuple[str, TensorSpec]:
        """Return the name that the parameters of an operand have in the plan, and its type."""
        tensor = _name(node.inputs[index])
        if tensor in self._weights:
            return tensor, self._weights[tensor].spec
        key = resolved.read_as.get((node.name or "", tensor), tensor)
        if key in resolved.conversions:
            return key, resolved.conversions[key].spec
        plan = resolved.activations[tensor]
        root = resolved.activations[plan.source] if isinstance(plan, SharedRange) else plan
        assert not isinstance(root, SharedRange)
        return tensor, root.spec

    def _fuse(self, activation: ir.Node) -> None:
        # Conv -> t -> Relu: t stays in the accumulator if nothing else reads it.
        tensor = activation.inputs[0]
        assert tensor is not None
        producer = tensor.producer()
        if producer is None or not facts(producer).fuses or (producer.name or "") not in self._quantized:
            return
        if len(tensor.uses()) == 1 and not tensor.is_graph_output():
            planned = self._activations.get(_name(tensor))
            if isinstance(planned, OwnRange):
                del self._activations[_name(tensor)]
                # An output type that the user chose for the Conv then applies to the Relu.
                written = self._written.pop(_name(tensor), None)
                if written is not None:
                    self._written.setdefault(_name(activation.outputs[0]), written)


def _channel_axis(node: ir.Node, weight: ir.Value, granularity: PerChannel, rule_axis: int) -> int:
    rank = len(weight.shape) if weight.shape is not None else 0
    axis = granularity.axis
    if axis is not None and (not -rank <= axis < rank or axis % rank != rule_axis):
        raise RecipeError(
            f"PerChannel.axis must be the axis of output channels, which is {rule_axis} for the weight {weight.name!r} "
            f"of {node.op_type} {node.name!r}; got {axis}; PerChannel() takes the right axis of every operator"
        )
    return rule_axis


def _name(value: ir.Value | None) -> str:
    assert value is not None
    assert value.name is not None
    return value.name
