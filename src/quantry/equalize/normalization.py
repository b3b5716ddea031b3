"""Normalizations over the channels of a position, whose constants can take factors and offsets."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantry.facts.operators import KNOWN_DOMAINS
from quantry.graph.edit import constant_of, int_of


@dataclass(frozen=True, eq=False)
class Normalization:
    """A normalization of all channels of a position, with constant factors and offsets.

    Attributes:
        node: The operator; `Skip` operators add their first two inputs.
        gamma: Index of its factors among the inputs.
        beta: Index of its offsets among the inputs, or None if it cannot have any.
    """

    node: ir.Node
    gamma: int
    beta: int | None

    @property
    def data(self) -> tuple[int, ...]:
        """Indices of the inputs that are normalized, or added before."""
        if not self.node.op_type.startswith("Skip"):
            return (0,)
        bias = 4 if self.node.op_type == "SkipLayerNormalization" else 3
        return tuple(index for index in (0, 1, bias) if index < len(self.node.inputs) and self.node.inputs[index])

    @property
    def constants(self) -> list[ir.Value]:
        """Its factors, and its offsets if it has any."""
        indices = [self.gamma] if self.beta is None else [self.gamma, self.beta]
        values = [self.node.inputs[index] for index in indices if index < len(self.node.inputs)]
        return [value for value in values if value is not None]

    @property
    def sum(self) -> ir.Value | None:
        """The output of a `Skip` operator that has the sum."""
        return self.node.outputs[3] if len(self.node.outputs) > 3 else None

    @property
    def result(self) -> ir.Value:
        """The normalized tensor."""
        return self.node.outputs[0]

    def factors(self) -> np.ndarray:
        """Return gamma, (channels,) float64."""
        gamma = constant_of(self.node.inputs[self.gamma])
        assert gamma is not None
        return gamma.astype(np.float64).reshape(-1)

    def offsets(self) -> np.ndarray | None:
        """Return beta, (channels,) float64, or None if there is none."""
        value = self.node.inputs[self.beta] if self.beta is not None and self.beta < len(self.node.inputs) else None
        beta = constant_of(value)
        return None if beta is None else beta.astype(np.float64).reshape(-1)


NORMALIZATIONS: dict[str, tuple[int, int | None]] = {
    "LayerNormalization": (1, 2),
    "RMSNormalization": (1, None),
    "SimplifiedLayerNormalization": (1, None),
    "SkipLayerNormalization": (2, 3),
    "SkipSimplifiedLayerNormalization": (2, None),
}
"""Indices of gamma and beta, by operator type."""


def normalization(node: ir.Node) -> Normalization | str | None:
    """Return a node as a normalization over channels, why it cannot be changed, or None for any other node."""
    if node.op_type not in NORMALIZATIONS or node.domain not in KNOWN_DOMAINS or node.inputs[0] is None:
        return None
    result = Normalization(node, *NORMALIZATIONS[node.op_type])
    shape = node.inputs[0].shape
    if shape is None or not isinstance(shape[-1], int):
        return f"the number of channels of {node.op_type} is not known"
    if int_of(node, "axis", -1) not in (-1, len(shape) - 1):
        return f"{node.op_type} runs over more than the channels"
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:3]):
        return f"a second output of {node.op_type} is read"
    constants = [constant_of(value) for value in result.constants]
    if any(constant is None or constant.size != shape[-1] for constant in constants):
        return f"{node.op_type} has no constants with one value per channel"
    return result
