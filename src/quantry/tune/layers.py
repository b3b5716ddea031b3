"""The layers that can be tuned one by one: linear operators and normalizations with constants of their own."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from quantry.facts.operators import Family, facts, operators_where
from quantry.graph.edit import int_of
from quantry.graph.quant_plan import QuantPlan
from quantry.memo import Blob

NORMALIZATIONS = operators_where(lambda row: row.tunable and row.family is Family.NORMALIZATION)

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Layer:
    """One node with its constants.

    Attributes:
        node: The node of the model to tune.
        weight: Name of its weight, an initializer that only this node reads.
        bias: Name of its bias, likewise, or None.
        weight_planned: Whether the weight is rounded to integers; those of normalizations are not.
        activation: The activation function that directly follows it, or None.
    """

    node: ir.Node
    weight: str
    bias: str | None
    weight_planned: bool
    activation: ir.Node | None

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name or ""

    @property
    def source(self) -> str:
        """Name of its data input."""
        return _name(self.node.inputs[0])

    @property
    def output(self) -> str:
        """Name of its output."""
        return _name(self.node.outputs[0])

    def initializer(self, name: str) -> Array:
        """Return the values of one of its constants."""
        value = next(value for value in self.node.inputs if value is not None and value.name == name)
        assert value.const_value is not None
        return value.const_value.numpy().astype(np.float32)


@dataclass(frozen=True)
class SkippedLayer:
    """A layer of a wanted operator type that cannot be tuned.

    Attributes:
        node: Its name.
        reason: Why, as a sentence.
    """

    node: str
    reason: str


def find_layers(
    model: ir.Model, plan: QuantPlan, operators: Collection[str]
) -> tuple[tuple[Layer, ...], tuple[SkippedLayer, ...]]:
    """Return the layers of some operator types in the order of the graph, and those that cannot be tuned.

    Args:
        model: The float model that was planned.
        plan: What is quantized.
        operators: Operator types.
    """
    layers: list[Layer] = []
    skipped: list[SkippedLayer] = []
    quantized = frozenset(plan.quantized_nodes)
    for node in model.graph:
        if node.op_type not in operators or node.domain not in ("", "ai.onnx"):
            continue
        reason = _reason(node, plan, quantized)
        if reason is not None:
            skipped.append(SkippedLayer(node.name or "", reason))
            continue
        bias = node.inputs[2] if len(node.inputs) > 2 and _is_own(node.inputs[2]) else None
        weight = _name(node.inputs[1])
        layers.append(
            Layer(node, weight, None if bias is None else _name(bias), weight in plan.weights, _activation(node))
        )
    return tuple(layers), tuple(skipped)


def _reason(node: ir.Node, plan: QuantPlan, quantized: frozenset[str]) -> str | None:
    """Return why a node cannot be tuned, or None."""
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    if (node.name or "") not in quantized:
        return "it is not quantized"
    if not _is_own(weight) or weight is None or weight.const_value is None:
        return "its weight is not a constant or is shared with another node"
    planned = plan.weights.get(_name(weight))
    if planned is None:
        return None if node.op_type in NORMALIZATIONS else "its weight is not quantized"
    if not planned.spec.dtype.is_integer:
        return f"its weight has the type {planned.spec.dtype.value}, which is not an integer type"
    if node.op_type == "MatMul" and len(weight.const_value.shape) != 2:
        return "its weight has more than one matrix"
    factors = (node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
    if node.op_type == "Gemm" and (int_of(node, "transA", 0) or any(factor != 1.0 for factor in factors)):
        return "Gemm transposes its input or has factors"
    return None


def _activation(node: ir.Node) -> ir.Node | None:
    output = node.outputs[0]
    readers = tuple(output.uses())
    if len(readers) != 1 or output.is_graph_output():
        return None
    reader = readers[0].node
    return reader if facts(reader).tuned_after and reader.graph is node.graph else None


def _is_own(value: ir.Value | None) -> bool:
    return (
        value is not None
        and value.is_initializer()
        and not value.is_graph_input()
        and not value.is_graph_output()
        and value.const_value is not None
        and value.const_value.dtype == ir.DataType.FLOAT
        and value.const_value.size > 0
        and len(value.uses()) == 1
    )


def _name(value: ir.Value | None) -> str:
    assert value is not None
    assert value.name is not None
    return value.name


@dataclass(frozen=True, eq=False)
class LayerConstants:
    """New constants of one layer.

    Attributes:
        values: float32 arrays by initializer name; empty if nothing better was found.
        before: Mean squared error of the layer's output with plain rounding.
        after: The same with the new values.
        failure: Why nothing was computed, or empty.
    """

    values: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    before: float = 0.0
    after: float = 0.0
    failure: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", MappingProxyType(dict(self.values)))

    def to_blob(self) -> Blob:
        """Return the stored form."""
        failed = {"failure": self.failure} if self.failure else {}
        return Blob(meta={"before": self.before, "after": self.after, **failed}, arrays=dict(self.values))

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return the value that `to_blob` was called on."""
        meta: Any = blob.meta
        return cls(dict(blob.arrays), meta["before"], meta["after"], meta.get("failure", ""))
