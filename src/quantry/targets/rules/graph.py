"""Rules about the graph: formats, shapes, attributes, operators, and which types meet at one operator."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import onnx_ir as ir

from quantry.data.conform import describe
from quantry.facts.operators import OPERATORS, Family
from quantry.graph.float_model import FloatModel
from quantry.graph.qdq import is_dequantize
from quantry.plan.rules import RULE_OF_OPERATOR
from quantry.recipe import DataType, Dynamic, LayerTypes, MatMulNBits, Recipe
from quantry.recipe.checked import Checked
from quantry.targets.rules.rule import OTHER_FORMATS, CheckedModel, TargetRule, Violation

# Operators that only move or select values have the type of what they move.
_MOVING = (Family.SELECTION, Family.PADDING, Family.RESIZE)
_COMPUTING = tuple(
    name for name in RULE_OF_OPERATOR if OPERATORS[name].copies is None and OPERATORS[name].family not in _MOVING
)


_CONVOLUTIONS = ("Conv", "ConvTranspose")


@dataclass(frozen=True, kw_only=True)
class StaticFormats(TargetRule):
    """Quantization with constant scales, in a format of single integers.

    Attributes:
        again: What to do with a model in another format.
    """

    name = "format"
    whole_model = True

    again: str = "quantize the float model with a preset of this target"

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "no dynamic, weight-only or block quantization"

    def violations(self, model: CheckedModel) -> Iterator[Violation]:
        """Yield the nodes that quantize in another way."""
        for node in model.graph:
            if node.op_type in OTHER_FORMATS:
                yield self.broken(node.name, f"{node.op_type}: {OTHER_FORMATS[node.op_type]}", self.again)

    def conflicts(self, recipe: Recipe) -> Iterator[str]:
        """Yield that a recipe writes another format."""
        if isinstance(recipe.emit.format, Dynamic | MatMulNBits):
            yield f"emit.format is {type(recipe.emit.format).__name__}, which has no constant scales of activations"
        elif recipe.plan.weights_only:
            yield "plan.weights_only is True, so that activations stay float"


@dataclass(frozen=True, kw_only=True)
class StaticShapes(TargetRule):
    """All inputs have shapes that are known when the model is compiled."""

    name = "static shapes"

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "every input has a static shape"

    def violations(self, model: CheckedModel) -> Iterator[Violation]:
        """Yield the inputs with unknown dimensions."""
        for value in model.graph.inputs:
            if value.shape is None or value.shape.is_dynamic():
                shape = "unknown" if value.shape is None else str(value.shape)
                change = "quantize the float model with --target and --batch, which fix the shape"
                yield self.broken(value.name, f"input {value.name!r} has shape {shape}", change)

    def legalized(self, recipe: Recipe) -> Recipe:
        """Return the recipe with a batch of one, unless it has a size."""
        batch = recipe.prepare.batch or 1
        return replace(recipe, prepare=replace(recipe.prepare, batch=batch))

    def refusals(self, model: FloatModel) -> Iterator[str]:
        """Yield the inputs that are still dynamic."""
        for signature in model.inputs:
            if not all(isinstance(dim, int) for dim in signature.shape):
                yield f"input {signature.name!r} is {describe(signature)}; give sizes with --dimension NAME=SIZE"


@dataclass(frozen=True, kw_only=True)
class WrittenAttributes(TargetRule):
    """Attributes that must be written out, even with their default value.

    Attributes:
        operators: Operator types.
        attributes: Names of their attributes.
    """

    name = "written attributes"

    operators: tuple[str, ...]
    attributes: tuple[str, ...]

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"{' and '.join(self.operators)} have their attributes {', '.join(self.attributes)} written out"

    def violations(self, model: CheckedModel) -> Iterator[Violation]:
        """Yield the nodes without one of the attributes."""
        for node in model.operators:
            if node.op_type not in self.operators:
                continue
            # Padding by name replaces the amounts.
            padded = node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET"
            missing = [
                name for name in self.attributes if name not in node.attributes and not (padded and name == "pads")
            ]
            if missing:
                change = "write them out; quantize --target does"
                yield self.broken(node.name, f"{node.op_type} without {', '.join(missing)}", change)

    def legalized(self, recipe: Recipe) -> Recipe:
        """Return the recipe with all attributes written out."""
        return replace(recipe, emit=replace(recipe.emit, explicit_attributes=True))


@dataclass(frozen=True, kw_only=True)
class NoOperators(TargetRule):
    """Operators that the target refuses.

    Attributes:
        operators: Their types.
        constant_condition: Whether If is fine as long as its condition is constant.
    """

    name = "operator"

    operators: tuple[str, ...]
    constant_condition: bool = False

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"no {', '.join(self.operators)}"

    def violations(self, model: CheckedModel) -> Iterator[Violation]:
        """Yield the nodes of these types."""
        for node in model.operators:
            if node.op_type not in self.operators:
                continue
            condition = node.inputs[0] if node.op_type == "If" else None
            if self.constant_condition and condition is not None and condition.const_value is not None:
                continue
            change = "replace the operator in the float model, or let this part run elsewhere"
            yield self.broken(node.name, f"{node.op_type} is not supported", change)


@dataclass(frozen=True, kw_only=True)
class FloatType(TargetRule):
    """The float type of the graph around the quantized tensors.

    Attributes:
        refused: Types that the target refuses, such as ``bfloat16``.
    """

    name = "float type"
    whole_model = True

    refused: tuple[DataType, ...]

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"no tensor is {' or '.join(dtype.value for dtype in self.refused)}"

    def violations(self, model: CheckedModel) -> Iterator[Violation]:
        """Yield the nodes that write such a tensor."""
        refused = {ir.DataType[dtype.name] for dtype in self.refused}
        for node in model.graph:
            for output in node.outputs:
                if output.dtype in refused:
                    values = f"its result {output.name!r} is {output.dtype.name.lower()}"
                    yield self.broken(node.name, values, "convert the float model to float32 first")


@dataclass(frozen=True, kw_only=True)
class SecondOperand(TargetRule):
    """The type of an operator's second operand if its first has a given type.

    Attributes:
        operator: The operator type.
        first: Type of the first operand.
        second: Types of the second one.
    """

    name = "second operand"

    operator: str
    first: DataType
    second: tuple[DataType, ...]

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        second = " or ".join(dtype.value for dtype in self.second)
        return f"the second operand of {self.operator} is {second} if the first is {self.first.value}"

    def violations(self, model: CheckedModel) -> Iterator[Violation]:
        """Yield the nodes with another second operand."""
        allowed = {ir.DataType[dtype.name] for dtype in self.second}
        for node in model.operators:
            if node.op_type != self.operator or len(node.inputs) < 2:
                continue
            first, second = (model.tensors.of(value) for value in node.inputs[:2])
            if first is None or second is None or first.dtype is not ir.DataType[self.first.name]:
                continue
            if second.dtype is not None and second.dtype not in allowed:
                names = " or ".join(dtype.value for dtype in self.second)
                values = f"its second operand is {second.dtype.name.lower()}, allowed {names}"
                yield self.broken(node.name, values, "quantize the float model with --target, which sets the type")

    def legalized(self, recipe: Recipe) -> Recipe:
        """Return the recipe with the type of the second operand."""
        plan = recipe.plan
        if plan.weights_only or plan.activation.dtype is not self.first:
            return recipe
        spec = replace(plan.activation, dtype=self.second[0])
        layer = LayerTypes(operators=(self.operator,), second_input=spec)
        return _with_layer(recipe, layer)


def _with_layer(recipe: Recipe, layer: LayerTypes) -> Recipe:
    # In front, so that the user's own entries win; once, because a recipe may be legalized again.
    layers = tuple(entry for entry in recipe.plan.layers if entry != layer)
    return replace(recipe, plan=replace(recipe.plan, layers=(layer, *layers)))


@dataclass(frozen=True)
class RefusedTypes(Checked):
    """Operators that the target does not compute with some of its types.

    Attributes:
        operators: The operator types.
        refused: The types.
    """

    operators: tuple[str, ...]
    refused: tuple[DataType, ...]


@dataclass(frozen=True, kw_only=True)
class OperatorTypes(TargetRule):
    """Operators that have fewer types than the others.

    Attributes:
        entries: The operators and the types that they do not have.
        instead: The type to use for them.
    """

    name = "operator type"

    entries: tuple[RefusedTypes, ...]
    instead: DataType

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        refusals = (f"{', '.join(e.operators)} not in {' or '.join(t.value for t in e.refused)}" for e in self.entries)
        return "; ".join(refusals)

    def violations(self, model: CheckedModel) -> Iterator[Violation]:
        """Yield the nodes that read or write an activation of such a type."""
        for node in model.operators:
            refused = {ir.DataType[t.name] for e in self.entries if node.op_type in e.operators for t in e.refused}
            tensors = [model.tensors.of(value) for value in (*node.inputs[:1], *node.outputs)] if refused else []
            used_types = {t.dtype for t in tensors if t is not None and t.dtype in refused}
            if used_types:
                types = " and ".join(sorted(dtype.name.lower() for dtype in used_types if dtype is not None))
                values = f"{node.op_type} in {types}, allowed for it {self.instead.value}"
                yield self.broken(node.name, values, "quantize the float model with --target, which sets the type")

    def legalized(self, recipe: Recipe) -> Recipe:
        """Return the recipe with another type for these operators."""
        plan = recipe.plan
        operators = tuple(name for e in self.entries if plan.activation.dtype in e.refused for name in e.operators)
        if not operators or plan.weights_only:
            return recipe
        spec = replace(plan.activation, dtype=self.instead, symmetric=False)
        layer = LayerTypes(operators=operators, activation=spec, output=spec)
        return _with_layer(recipe, layer)


@dataclass(frozen=True, kw_only=True)
class OneType(TargetRule):
    """Activations that one operator reads and writes have one type; where types change, a pair converts.

    Attributes:
        except_operators: Operators that are free to change the type.
    """

    name = "one type per operator"

    except_operators: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "the activations that an operator reads and writes have one type"

    def violations(self, model: CheckedModel) -> Iterator[Violation]:
        """Yield the nodes between activations of several types."""
        for node in model.operators:
            if node.op_type in self.except_operators:
                continue
            tensors = [model.tensors.of(value) for value in (*node.inputs, *node.outputs) if value is not None]
            types = {t.dtype.name.lower() for t in tensors if t is not None and t.role == "activation" and t.dtype}
            if len(types) > 1:
                change = "give its result a pair of each type: quantize the float model with --target"
                yield self.broken(node.name, f"it reads and writes {' and '.join(sorted(types))}", change)

    def legalized(self, recipe: Recipe) -> Recipe:
        """Return the recipe in which every operator keeps the model's type unless it has its own; pairs convert."""
        plan = recipe.plan
        differing = [
            spec
            for layer in plan.layers
            for spec in (layer.activation, layer.second_input, layer.output)
            if spec is not None and spec.dtype is not plan.activation.dtype
        ]
        if not differing:
            return recipe
        return _with_layer(recipe, LayerTypes(operators=_COMPUTING, activation=plan.activation, output=plan.activation))


@dataclass(frozen=True, kw_only=True)
class QuantizedResiduals(TargetRule):
    """An Add after a convolution reads both operands quantized, or none, so that it is fused with the convolution.

    Sums of transformers are not fused: their residuals and masks may stay float.
    """

    name = "quantized residual"

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "both operands of a residual Add after a convolution are quantized, or none"

    def violations(self, model: CheckedModel) -> Iterator[Violation]:
        """Yield the sums of one quantized and one float tensor."""
        for node in model.operators:
            operands = [value for value in node.inputs if value is not None and value.const_value is None]
            if node.op_type != "Add" or len(operands) != 2 or not any(map(_follows_convolution, operands)):
                continue
            quantized = [is_dequantize(value.producer()) for value in operands]
            if any(quantized) and not all(quantized):
                name = operands[quantized.index(False)].name
                change = "quantize it as well: insert a QuantizeLinear and a DequantizeLinear before the node"
                yield self.broken(node.name, f"its operand {name!r} is float", change)


@dataclass(frozen=True, kw_only=True)
class QuantizedInputs(TargetRule):
    """Some operators that only move data read a quantized tensor, also at the start of the model.

    Attributes:
        operators: Their types.
    """

    name = "quantized input"
    operators: tuple[str, ...]

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return f"what {', '.join(self.operators)} reads is quantized"

    def violations(self, model: CheckedModel) -> Iterator[Violation]:
        """Yield the operators that read a float tensor."""
        for node in model.operators:
            value = node.inputs[0] if node.inputs else None
            if node.op_type not in self.operators or value is None or is_dequantize(value.producer()):
                continue
            if value.dtype is None or value.dtype.is_floating_point():
                change = "quantize its input: insert a QuantizeLinear and a DequantizeLinear before it"
                yield self.broken(node.name, f"its input {value.name!r} is float", change)

    def legalized(self, recipe: Recipe) -> Recipe:
        """Return the recipe that quantizes operators that only move data, also if their input is not quantized."""
        if recipe.plan.weights_only or isinstance(recipe.emit.format, Dynamic | MatMulNBits):
            return recipe
        return replace(recipe, plan=replace(recipe.plan, force_pass_through=True))


def _follows_convolution(value: ir.Value) -> bool:
    """Whether a convolution computes a tensor, possibly with a function, a normalization or a pair after it."""
    producer = value.producer()
    while producer is not None and producer.op_type not in _CONVOLUTIONS:
        computed = [operand for operand in producer.inputs if operand is not None and operand.const_value is None]
        if len(computed) != 1:
            return False
        producer = computed[0].producer()
    return producer is not None
