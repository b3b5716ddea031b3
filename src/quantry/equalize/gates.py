r"""Gates: functions of a tensor whose results are multiplied with that tensor, as in SiLU, HardSwish and GELU.

::

    y = x * g(x)      =      y' = x' * g(x' / s),   x' = s x,   y' = s y

::

    x -----------> Mul -> y            x' -----------------------> Mul -> y'
     \-> g(x) -----^                    \-> Mul(1 / s) -> g -------^

A factor passes a gate if the function reads its input without the factor, which takes one multiplication.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantry.equalize.factor_absorption import insert_product
from quantry.equalize.linear_layer import array_of, is_own, store_array
from quantry.facts.operators import STANDARD_DOMAINS, facts
from quantry.graph.edit import FreshNames, constant_of
from quantry.graph.joined import Joined
from quantry.prepare.hard_swish import write_hard_sigmoid

_STEEPEST, _MOST = 0.25, 1.0
"""An error of x by the fraction e changes y = x * g(x) by up to e * x * x times the slope of g. The slope of a Sigmoid
is at most 0.25, and 0 for large x, so the change is never more than about e."""


@dataclass(frozen=True, eq=False)
class Gate:
    """A gate whose input has factors.

    Attributes:
        node: The function, or a HardSwish, which is split into function and product.
        labels: (channels,) labels of the channels that it reads.
        axis: Axis of the channels.
    """

    node: ir.Node
    labels: np.ndarray
    axis: int

    @property
    def source(self) -> ir.Value:
        """The tensor that the function reads."""
        value = self.node.inputs[0]
        assert value is not None
        return value

    def restore(self, factors: np.ndarray, names: FreshNames) -> None:
        """Divide what the function reads by factors, in a constant that multiplies it already or with a new Mul."""
        if np.all(factors == 1.0):
            return
        if self.node.op_type == "HardSwish":
            self._split(1.0 / factors, names)
            return
        constant = self._constant()
        if constant is None:
            insert_product(self.source, [self.node], 1.0 / factors, self.axis, names)
            return
        array = array_of(constant)
        store_array(constant, (array / factors.reshape(array.shape)).astype(array.dtype))

    def _split(self, factors: np.ndarray, names: FreshNames) -> None:
        """Write HardSwish as a product with a HardSigmoid that reads its input times factors."""
        graph, source = self.node.graph, self.source
        assert graph is not None
        gate = write_hard_sigmoid(source, self.node.outputs[0], names, product=True)
        graph.remove(self.node, safe=True)
        insert_product(source, [gate], factors, self.axis, names)

    def _constant(self) -> ir.Value | None:
        """Return the constant with one value per channel by which only this function's input is multiplied."""
        product = self.source.producer()
        if product is None or product.op_type != "Mul" or len(self.source.uses()) != 1:
            return None
        rank = 0 if self.source.shape is None else len(self.source.shape)
        shape = tuple(len(self.labels) if axis == self.axis else 1 for axis in range(rank))
        for value in product.inputs:
            if value is not None and is_own(value) and array_of(value).shape == shape:
                return value
        return None


def is_self_gating(node: ir.Node, is_alike: Callable[[ir.Value], bool]) -> bool:
    """Whether a node is a function whose result is multiplied with its input, perhaps after other functions.

    Args:
        node: The node.
        is_alike: Whether the channels of a tensor have the same factors as those of the node's input.
    """
    if not _is_function(node) or facts(node).homogeneous is not False:
        return False
    pending, is_multiplied = [node.outputs[0]], False
    while pending:
        value = pending.pop()
        if value.is_graph_output():
            return False
        for reader in (use.node for use in value.uses()):
            operands = [operand for operand in reader.inputs if operand is not None and operand is not value]
            if reader.op_type == "Mul" and any(
                constant_of(operand) is None and is_alike(operand) for operand in operands
            ):
                is_multiplied = True
            elif _is_function(reader):
                pending.append(reader.outputs[0])
            else:
                return False
    return is_multiplied


def _is_function(node: ir.Node) -> bool:
    """Whether a node computes every element from one element and constant numbers."""
    if node.domain not in STANDARD_DOMAINS or facts(node).scalar is None:
        return False
    computed = [value for value in node.inputs if value is not None and constant_of(value) is None]
    constants = [constant_of(value) for value in node.inputs if value is not None]
    return len(computed) == 1 and all(constant is None or constant.size == 1 for constant in constants)


def sensitivity(energy: np.ndarray) -> np.ndarray:
    """Return how much the square of a relative error of a gate's factors counts in its product.

    Args:
        energy: (channels,) mean squares of what the function reads.
    """
    result: np.ndarray = np.minimum(_STEEPEST * energy, _MOST) ** 2
    return result


def connected(numbers: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the factors of gates that share factors, directly or through other gates, as sets without 0.

    Args:
        numbers: For each gate the numbers of its factors.
    """
    joined: Joined[int] = Joined()
    every = [positive[positive > 0].tolist() for positive in numbers]
    for positive in filter(None, every):
        joined.join(positive)
    sets: dict[int, set[int]] = {}
    for number in {number for positive in every for number in positive}:
        sets.setdefault(joined.root(number), set()).add(number)
    return [np.array(sorted(members)) for members in sets.values()]
