"""What a rule says about one node."""

from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir

from quantry.recipe import PlanOptions


@dataclass(frozen=True)
class Own:
    """The output is calibrated by itself."""


@dataclass(frozen=True)
class SameAs:
    """The output only moves values of one input, so it has that input's parameters.

    Attributes:
        input: Index of the input.
    """

    input: int = 0


@dataclass(frozen=True)
class Within:
    """The output's range is known."""

    low: float
    high: float


OutputRange = Own | SameAs | Within


@dataclass(frozen=True)
class Annotation:
    """How one node is quantized; every number is the index of an input.

    Attributes:
        activations: Inputs quantized as activations.
        constants: Constant operands, quantized to the activation's type.
        weight: The constant weight, quantized to the weight's type.
        weight_axis: Its axis of output channels; None where one scale must serve all.
        bias: The constant bias.
        output: Range of every float output; None when no output is quantized.
    """

    activations: tuple[int, ...]
    constants: tuple[int, ...] = ()
    weight: int | None = None
    weight_axis: int | None = None
    bias: int | None = None
    output: OutputRange | None = Own()

    @property
    def moves_data(self) -> bool:
        """Whether the node only moves values."""
        return isinstance(self.output, SameAs)


@dataclass(frozen=True)
class Declined:
    """The node stays float.

    Attributes:
        reason: Why, as a sentence for the user.
    """

    reason: str


class Rule(Protocol):
    """Knows one family of operators.

    A rule is stateless and must not change the node. It answers for float32 nodes only: the planner has already
    declined nodes of other types.
    """

    @property
    def operators(self) -> tuple[str, ...]:
        """Operator types of the default or the com.microsoft domain that this rule answers for."""
        ...

    def annotate(self, node: ir.Node, options: PlanOptions) -> Annotation | Declined:
        """Say how the node is quantized, or why not."""
        ...


def is_constant(value: ir.Value | None) -> bool:
    """Whether the value is an initializer with data."""
    return value is not None and value.const_value is not None


def is_float(value: ir.Value | None) -> bool:
    """Whether the value is a float32 tensor."""
    return value is not None and value.dtype == ir.DataType.FLOAT


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """Return the input, or None where it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def operands(node: ir.Node, indices: tuple[int, ...]) -> Annotation:
    """Annotate float operands: constants to `constants`, computed ones to `activations`, the output by itself.

    Args:
        node: The node.
        indices: The operands.

    Returns:
        The annotation.
    """
    floats = [index for index in indices if is_float(input_at(node, index))]
    return Annotation(
        activations=tuple(index for index in floats if not is_constant(node.inputs[index])),
        constants=tuple(index for index in floats if is_constant(node.inputs[index])),
    )
