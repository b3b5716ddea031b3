"""What every operator rule must do."""

import onnx
import onnx_ir as ir
import pytest

from quantry.graph.save import serialize
from quantry.plan.rules import Annotation, Declined, OperatorRule, SameAs, is_constant, is_float
from quantry.recipe import PlanOptions


class RuleSuite:
    """Inherit as ``class TestMyRule(RuleSuite)`` and supply the fixtures `rule` and `model`.

    Example:
        ::

            class TestConvRule(RuleSuite):
                @pytest.fixture
                def rule(self):
                    return ConvRule()

                @pytest.fixture
                def model(self):
                    return onnx.parser.parse_model(ONE_CONV)
    """

    @pytest.fixture
    def rule(self) -> OperatorRule:
        """The rule under test."""
        raise NotImplementedError("Supply the fixture `rule`.")

    @pytest.fixture
    def model(self) -> onnx.ModelProto:
        """A float32 model with one node or more that the rule answers for."""
        raise NotImplementedError("Supply the fixture `model`.")

    @pytest.fixture
    def graph(self, model: onnx.ModelProto) -> ir.Model:
        """The model with the type of every tensor."""
        return ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(model))

    @pytest.fixture
    def nodes(self, rule: OperatorRule, graph: ir.Model) -> list[ir.Node]:
        """The nodes that the rule answers for."""
        matching = [node for node in graph.graph if node.op_type in rule.operators]
        assert matching, f"the model has no node of {rule.operators}"
        return matching

    def test_operators_are_named_once(self, rule: OperatorRule) -> None:
        """A node is answered for by one rule."""
        assert rule.operators
        assert len(set(rule.operators)) == len(rule.operators)

    def test_it_answers_with_an_annotation_or_a_reason(self, rule: OperatorRule, nodes: list[ir.Node]) -> None:
        """Users read the reason why a node stays float."""
        for node in nodes:
            answer = rule.annotate(node, PlanOptions())
            assert isinstance(answer, Annotation | Declined)
            if isinstance(answer, Declined):
                assert answer.reason

    def test_the_graph_is_only_read(self, rule: OperatorRule, graph: ir.Model, nodes: list[ir.Node]) -> None:
        """Deciding is separate from writing."""
        original = serialize(graph)
        for node in nodes:
            rule.annotate(node, PlanOptions())
        assert serialize(graph) == original

    def test_the_same_node_gets_the_same_answer(self, rule: OperatorRule, nodes: list[ir.Node]) -> None:
        """Rules have no state."""
        for node in nodes:
            assert rule.annotate(node, PlanOptions()) == rule.annotate(node, PlanOptions())

    def test_indices_name_float_inputs_of_the_right_kind(self, rule: OperatorRule, nodes: list[ir.Node]) -> None:
        """Activations are computed, weights, biases and constants are not; no input has two roles."""
        for node in nodes:
            answer = rule.annotate(node, PlanOptions())
            if isinstance(answer, Declined):
                continue
            constant = [index for index in (answer.weight, answer.bias, *answer.constants) if index is not None]
            assert all(is_float(node.inputs[index]) for index in (*answer.activations, *constant))
            assert all(is_constant(node.inputs[index]) for index in constant)
            assert not any(is_constant(node.inputs[index]) for index in answer.activations)
            assert len({*answer.activations, *constant}) == len(answer.activations) + len(constant)

    def test_a_shared_range_is_that_of_an_activation(self, rule: OperatorRule, nodes: list[ir.Node]) -> None:
        """An output can only take over the scale of an input that has one."""
        for node in nodes:
            answer = rule.annotate(node, PlanOptions())
            if isinstance(answer, Annotation) and isinstance(answer.output, SameAs):
                assert answer.output.input in answer.activations
