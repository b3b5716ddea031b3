"""A float operator between DequantizeLinear and QuantizeLinear, as a kernel's author sees it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantry.emit.graph_editor import GraphEditor

BYTES = (ir.DataType.INT8, ir.DataType.UINT8)


@dataclass(frozen=True)
class Side:
    """A tensor as integers.

    Attributes:
        integers: The integers.
        scale: Its scale, a constant.
        zero_point: Its zero point, a constant.
        axis: The channel axis where there are several scales.
    """

    integers: ir.Value
    scale: ir.Value
    zero_point: ir.Value
    axis: int | None = None

    @property
    def dtype(self) -> ir.DataType | None:
        """Type of the integers."""
        return self.zero_point.dtype

    @property
    def triple(self) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The integers, the scale and the zero point, in the order in which kernels read them."""
        return self.integers, self.scale, self.zero_point

    @property
    def pair(self) -> tuple[ir.Value, ir.Value]:
        """The scale and the zero point."""
        return self.scale, self.zero_point

    def same_grid(self, other: "Side") -> bool:
        """Whether equal integers of both mean equal numbers."""
        return self.dtype == other.dtype and all(
            np.array_equal(array(ours), array(theirs)) for ours, theirs in zip(self.pair, other.pair, strict=True)
        )


@dataclass(frozen=True)
class Unit:
    """One float node whose float inputs come from DequantizeLinear and whose outputs go to QuantizeLinear only.

    Attributes:
        node: The float node.
        inputs: For each input its quantized form, or None where it is not quantized or left out.
        outputs: The quantized form of each output.
        editor: Makes nodes and constants.
    """

    node: ir.Node
    inputs: tuple[Side | None, ...]
    outputs: tuple[Side, ...]
    editor: GraphEditor

    @property
    def output(self) -> Side:
        """The only output."""
        return self.outputs[0]

    def sides(self, count: int) -> tuple[Side, ...] | None:
        """Return the first inputs in quantized form where all of them have one type of 8 bits, that of the output."""
        found = tuple(side for side in self.inputs[:count] if side is not None and side.axis is None)
        if len(found) < count or {side.dtype for side in found} != {self.output.dtype}:
            return None
        return found if self.output.dtype in BYTES else None

    def make(
        self,
        operator: tuple[str, str],
        inputs: tuple[ir.Value | None, ...],
        attributes: dict[str, int | float | str | list[int]] | None = None,
    ) -> ir.Node:
        """Return the node that replaces the float one, named after it.

        Args:
            operator: Domain and operator type.
            inputs: Its inputs.
            attributes: Its attributes.
        """
        return self.editor.node(operator, inputs, f"{self.node.name}_quant", attributes)


Kernel = Callable[[Unit], ir.Node | None]
"""From a unit to the node that computes it on integers, or None where there is no such kernel."""


def array(value: ir.Value) -> np.ndarray:
    """Return the data of a constant."""
    assert value.const_value is not None
    return value.const_value.numpy()


def quantized_source(value: ir.Value | None) -> Side | None:
    """Return the quantized form of a value that a DequantizeLinear makes, else None."""
    producer = None if value is None else value.producer()
    if producer is None or producer.op_type != "DequantizeLinear":
        return None
    integers, scale, zero_point = producer.inputs
    assert integers is not None
    assert scale is not None
    assert zero_point is not None
    axis = producer.attributes.get_int("axis", 1) if scale.shape is not None and len(scale.shape) else None
    return Side(integers, scale, zero_point, axis)
