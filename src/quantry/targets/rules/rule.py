"""What a rule of a target is: it reads a quantized model, and before that the recipe that asks for one."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import onnx_ir as ir
from onnx_ir.passes import common

from quantry.errors import ModelError
from quantry.graph.edit import products_after
from quantry.graph.float_model import FloatModel
from quantry.graph.load import ModelLike, model_source
from quantry.graph.passes.infer_shapes import infer_shapes
from quantry.graph.passes.tidy import inputs_without_initializers, name_nodes
from quantry.graph.qdq import QdqTensors, is_dequantize, is_pair_node
from quantry.recipe import OwnBias, Recipe, TensorSpec
from quantry.recipe.checked import Checked
from quantry.targets.as_pairs import write_as_pairs

OTHER_FORMATS = {
    "DynamicQuantizeLinear": "its scale is computed at run time",
    "ConvInteger": "its result has no scale",
    "MatMulInteger": "its result has no scale",
    "DynamicQuantizeMatMul": "its scale is computed at run time",
    "DynamicQuantizeLSTM": "its scale is computed at run time",
    "MatMulIntegerToFloat": "its result is float",
    "MatMulNBits": "it multiplies floats; only its weight is stored as integers",
    "BFPQuantizeDequantize": "it uses blocks with a shared exponent instead of integers",
    "MXQuantizeDequantize": "it uses blocks with a shared exponent instead of integers",
}
"""Operators of quantized models without Q/DQ pairs, and what is different about them."""


@dataclass(frozen=True)
class Violation:
    """One violated constraint.

    Attributes:
        node: Name of the node, or of the model's input.
        rule: The constraint, such as "shift cut".
        values: The actual values, and those allowed.
        change: What to change.
        consequence: What the target does with such a model.
        source: Where the rule was read.
    """

    node: str
    rule: str
    values: str
    change: str
    consequence: str = field(default="", compare=False)
    source: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.node}: {self.rule}: {self.values}; {self.change}"


class CheckedModel:
    """A quantized model as rules read it.

    Every format is rewritten as Q/DQ pairs around float operators, and the caller's model is not changed.

    Attributes:
        graph: The graph.
        label: The model in messages.
        tensors: The quantized tensors.
        operators: The nodes that are not part of a pair, in graph order.
    """

    def __init__(self, model: ModelLike) -> None:
        source = model_source(model)
        self.label = source.label
        loaded = source.load()
        # Scales and weights may come from Constant nodes, and types of intermediate tensors need not be stored.
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(loaded)
        inputs_without_initializers(loaded)
        name_nodes(loaded)
        self.metadata = dict(loaded.metadata_props)
        write_as_pairs(loaded)
        infer_shapes(loaded)
        self.graph: ir.Graph = loaded.graph
        self.tensors = QdqTensors(self.graph)
        self.operators = [node for node in self.graph if not is_pair_node(node)]

    @cached_property
    def excluded(self) -> frozenset[str]:
        """Names of the nodes that stay float because the recipe says so, which models of quantry carry along."""
        try:
            recipe = json.loads(self.metadata.get("quantry.recipe", "{}"))
            names = frozenset(recipe["plan"]["selection"]["exclude"])
        except (KeyError, TypeError, ValueError):
            return frozenset()
        # What equalization inserts after a layer is part of it, as in the selection of nodes.
        products = products_after(self.operators, names)
        return (names | products) & {node.name for node in self.operators if node.name}

    @property
    def is_quantized(self) -> bool:
        """Whether any tensor is quantized."""
        return any(is_dequantize(node) for node in self.graph)

    def require_quantized(self) -> None:
        """Check that there is something to check.

        Raises:
            ModelError: No tensor is quantized.
        """
        if not self.is_quantized and not any(node.op_type in OTHER_FORMATS for node in self.graph):
            raise ModelError(
                "a model to check must be quantized, with Q/DQ pairs, FixNeuron nodes or integer operators, got none "
                f"of them among {len(self.graph)} nodes of {self.label}; quantize it first"
            )


@dataclass(frozen=True, kw_only=True)
class TargetRule(Checked):
    """One rule of a target.

    Attributes:
        source: Where the rule was read or measured.
        consequence: What the target does with a model that breaks it.
    """

    name = "rule"
    whole_model = False
    """Whether breaking the rule means that the model was quantized for something else."""

    source: str = ""
    consequence: str = ""

    def violations(self, model: CheckedModel) -> Iterator[Violation]:
        """Yield where a quantized model breaks the rule.

        Args:
            model: The model.
        """
        raise NotImplementedError

    def conflicts(self, recipe: Recipe) -> Iterator[str]:
        """Yield what in a recipe leads to a model that breaks the rule.

        Args:
            recipe: The recipe, legalized for the target.
        """
        del recipe
        return iter(())

    def legalized(self, recipe: Recipe) -> Recipe:
        """Return the recipe with the options that make its models keep the rule, as far as options can.

        Args:
            recipe: The recipe.

        Raises:
            RecipeError: The options exclude each other.
        """
        return recipe

    def refusals(self, model: FloatModel) -> Iterator[str]:
        """Yield what in a prepared float model breaks the rule, whatever the recipe.

        Args:
            model: The model.
        """
        del model
        return iter(())

    def broken(self, node: str | None, values: str, change: str, name: str | None = None) -> Violation:
        """Return a violation of this rule.

        Args:
            node: Name of the node.
            values: The actual values, and those allowed.
            change: What to change.
            name: The rule's name in the violation, if it has several.
        """
        return Violation(node or "", name or self.name, values, change, self.consequence, self.source)

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        raise NotImplementedError


def specs_of(recipe: Recipe) -> Iterator[tuple[str, str, TensorSpec]]:
    """Yield the types that a recipe gives to tensors: role, field and type.

    Args:
        recipe: The recipe.
    """
    plan = recipe.plan
    if not plan.weights_only:
        yield "activation", "plan.activation", plan.activation
    yield "weight", "plan.weight", plan.weight
    if isinstance(plan.bias, OwnBias):
        yield "bias", "plan.bias.spec", plan.bias.spec
    for index, layer in enumerate(plan.layers):
        read = (layer.activation, layer.second_input, layer.output)
        for role, spec in (*(("activation", spec) for spec in read), ("weight", layer.weight)):
            if spec is not None:
                yield role, f"plan.layers[{index}]", spec
    targets = () if recipe.mix.mixed is None else recipe.mix.mixed.targets
    for index, target in enumerate(targets):
        for role, spec in (("activation", target.activation), ("weight", target.weight)):
            if spec is not None:
                yield role, f"mix.mixed.targets[{index}]", spec
