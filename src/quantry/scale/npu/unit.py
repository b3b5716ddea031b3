"""What the NPU computes in one step: an operator with the activation function fused into it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir

from quantry.facts.operators import FUSIBLE, operators_where

WEIGHTED = operators_where(lambda row: row.npu and row.npu.weighted)
"""Operators whose weight and bias the NPU shifts: ``Conv`` and ``Gemm``."""

_CORRECTED = operators_where(lambda row: row.npu and row.npu.factor)


class Tensors(Protocol):
    """The quantized tensors of a graph.

    Two implementations: one for a float model with a plan, where tensors are found by name, and one for a graph with
    Q/DQ pairs, where they are found through the pairs. Both only read the graph.
    """

    def source(self, value: ir.Value) -> ir.Value:
        """Return the value as it was computed, before any Q/DQ pair."""
        ...

    def key(self, value: ir.Value | None) -> str | None:
        """Return the key of a value's position, or None if it is not quantized."""
        ...


@dataclass(frozen=True)
class Unit:
    """One operator of the NPU and the tensors whose positions depend on each other; tensors are named by their keys.

    Attributes:
        node: Name of the node.
        operator: Its operator type.
        inputs: Quantized operands in order; only the data for Conv and Gemm. For ``x * HardSigmoid(x)``, x comes first.
        output: The quantized result, after a fused activation function; None if it stays float.
        weight: Constant weight of Conv and Gemm.
        bias: Its bias.
        leaky: Whether a LeakyRelu is fused into it.
        swish: Whether it is the product in ``x * HardSigmoid(x)``.
    """

    node: str
    operator: str
    inputs: tuple[str, ...] = ()
    output: str | None = None
    weight: str | None = None
    bias: str | None = None
    leaky: bool = False
    swish: bool = False


def find_units(nodes: Iterable[ir.Node], tensors: Tensors) -> tuple[Unit, ...]:
    """Return a unit for each node.

    Args:
        nodes: Nodes that compute on quantized tensors, in order.
        tensors: The quantized tensors.
    """
    return tuple(_unit(node, tensors) for node in nodes)


def _unit(node: ir.Node, tensors: Tensors) -> Unit:
    output, tail = _result(node, tensors)
    weighted = node.op_type in WEIGHTED
    operands = node.inputs[:1] if weighted else node.inputs
    gated = _gate_first(node, tensors) if node.op_type == "Mul" else None
    if gated is not None:
        operands = (gated[1], gated[0])
    keys = (tensors.key(operand) for operand in operands)
    return Unit(
        node=node.name or "",
        operator=node.op_type,
        inputs=tuple(key for key in keys if key is not None),
        output=output,
        weight=_constant(node, 1, tensors) if weighted else None,
        bias=_constant(node, 2, tensors) if weighted else None,
        leaky="LeakyRelu" in tail,
        swish=gated is not None,
    )


def _constant(node: ir.Node, index: int, tensors: Tensors) -> str | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None or tensors.source(value).const_value is None:
        return None
    return tensors.key(value)


def _result(node: ir.Node, tensors: Tensors) -> tuple[str | None, tuple[str, ...]]:
    """Follow fused operators after a node to the quantized tensor; return its key and the operators on the way."""
    passed: list[str] = []
    while True:
        output = node.outputs[0]
        key = tensors.key(output)
        if key is not None:
            return key, tuple(passed)
        readers = [use.node for use in output.uses()]
        if len(readers) != 1 or not (readers[0].op_type in FUSIBLE or is_correction(readers[0], output)):
            return None, tuple(passed)
        node = readers[0]
        passed.append(node.op_type)


def is_correction(node: ir.Node, operand: ir.Value) -> bool:
    """Whether a node multiplies an average or a HardSigmoid by a constant, which the NPU does in the same step.

    Args:
        node: The node.
        operand: Its computed operand.
    """
    producer = operand.producer()
    if node.op_type != "Mul" or producer is None or producer.op_type not in _CORRECTED:
        return False
    return any(value is not None and value.const_value is not None for value in node.inputs)


def _gate_first(product: ir.Node, tensors: Tensors) -> tuple[ir.Value, ir.Value] | None:
    """Return the operands (HardSigmoid(x), x) of a product of the two, or None for any other product."""
    first, second = product.inputs
    if first is None or second is None:
        return None
    for gate, factor in ((first, second), (second, first)):
        argument = _hard_sigmoid_argument(gate, tensors)
        if argument is not None and argument is tensors.source(factor):
            return gate, factor
    return None


def _hard_sigmoid_argument(gate: ir.Value, tensors: Tensors) -> ir.Value | None:
    """Return x if a value is HardSigmoid(x), or that times a constant."""
    producer = tensors.source(gate).producer()
    if producer is not None and producer.op_type == "Mul":
        values = [tensors.source(value) for value in producer.inputs if value is not None]
        computed = [value for value in values if value.const_value is None]
        producer = computed[0].producer() if len(computed) == 1 else None
    if producer is None or producer.op_type != "HardSigmoid" or producer.inputs[0] is None:
        return None
    return tensors.source(producer.inputs[0])
