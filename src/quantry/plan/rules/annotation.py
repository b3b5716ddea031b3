"""What a rule returns for one node: an annotation, or the reason why the node stays float."""

from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir

from quantry.recipe import PlanOptions


@dataclass(frozen=True)
class Own:
    """The output has a scale of its own, from calibration."""


@dataclass(frozen=True)
class SameAs:
    """The output only holds values of one input, so it shares that input's scale and zero point.

    Attributes:
        input: Index of the input.
    """

    input: int = 0


@dataclass(frozen=True)
class Within:
    """The output has a known range, so it needs no calibration."""

    low: float
    high: float


OutputRange = Own | SameAs | Within


@dataclass(frozen=True)
class Annotation:
    """How one node is quantized; every number is the index of an input.

    Attributes:
        activations: Inputs quantized as activations.
        constants: Constant operands, quantized to the type of activations.
        weight: The constant weight, quantized to the type of weights.
        weight_axis: Its axis of output channels; None if it must have a single scale.
        bias: The constant bias.
        tables: Constants quantized to the type of weights, each with one scale.
        output: How every float output is quantized; None if it stays float.
        other_weights: Further constant weights with the same axis, as recurrent layers have.
    """

    activations: tuple[int, ...]
    constants: tuple[int, ...] = ()
    weight: int | None = None
    weight_axis: int | None = None
    bias: int | None = None
    tables: tuple[int, ...] = ()
    output: OutputRange | None = Own()
    other_weights: tuple[int, ...] = ()

    @property
    def moves_data(self) -> bool:
        """Whether the node only copies values."""
        return isinstance(self.output, SameAs)


@dataclass(frozen=True)
class Declined:
    """The node stays float.

    Attributes:
        reason: Why, as a sentence for the user.
    """

    reason: str


class OperatorRule(Protocol):
    """Annotates the nodes of one family of operators.

    A rule is stateless and must not change the node. It only sees float32 nodes: the planner declines
    other types first.
    """

    @property
    def operators(self) -> tuple[str, ...]:
        """Operator types of the standard or the com.microsoft domain that this rule annotates."""
        ...

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Return how the node is quantized, or why it is not."""
        ...


def is_constant(value: ir.Value | None) -> bool:
    """Whether the value is an initializer with data."""
    return value is not None and value.const_value is not None


def is_float(value: ir.Value | None) -> bool:
    """Whether the value is a float32 tensor."""
    return value is not None and value.dtype == ir.DataType.FLOAT


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input of a node, or None if it is absent."""
    return node.inputs[index] if index < len(node.inputs) else None


def operands(node: ir.Node, indices: tuple[int, ...]) -> Annotation:
    """Annotate float operands, constant and computed ones, and an output with a scale of its own.

    Args:
        node: The node.
        indices: Indices of the operands.

    Returns:
        The annotation.
    """
    floats = [index for index in indices if is_float(input_at(node, index))]
    return Annotation(
        activations=tuple(index for index in floats if not is_constant(node.inputs[index])),
        constants=tuple(index for index in floats if is_constant(node.inputs[index])),
    )
