"""Read the quantized tensors of a graph with QuantizeLinear and DequantizeLinear nodes.

::

    computed -> QuantizeLinear -> DequantizeLinear -> operator
    stored integers            -> DequantizeLinear -> operator
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from quantry.facts.operators import LINEAR, Family, of_family
from quantry.numerics.power_of_two import position_of

_RECURRENT = of_family(Family.RECURRENT)


def is_quantize(node: ir.Node | None) -> bool:
    """Whether a node is QuantizeLinear of any dialect."""
    return node is not None and node.op_type.endswith("QuantizeLinear") and not is_dequantize(node)


def is_dequantize(node: ir.Node | None) -> bool:
    """Whether a node is DequantizeLinear of any dialect."""
    return node is not None and node.op_type.casefold().endswith("dequantizelinear")


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """The parameters of a tensor according to a Q/DQ pair, or to the DequantizeLinear of a constant.

    Attributes:
        node: Name of the DequantizeLinear node.
        scale: Its scales; None if they are computed at run time.
        zero_point: Its zero points; 0 if there are none.
        dtype: Type of the integers.
        role: "activation", "weight", "bias" or "operand" for another constant.
    """

    node: str
    scale: npt.NDArray[np.float32] | None
    zero_point: npt.NDArray[np.int64]
    dtype: ir.DataType | None
    role: str

    @property
    def position(self) -> int | None:
        """The position, or None unless there is exactly one power-of-two scale."""
        return None if self.scale is None or self.scale.size != 1 else position_of(self.scale.item())


class QdqTensors:
    """The quantized tensors of a graph, found through its pairs; does not change the graph."""

    def __init__(self, graph: ir.Graph) -> None:
        self.tensors: dict[str, QuantizedTensor] = {}
        self._key_of_output: dict[ir.Value, str] = {}
        for node in graph:
            if is_dequantize(node):
                self._add(node)

    def source(self, value: ir.Value) -> ir.Value:
        """Return the value as computed or stored, before any pair."""
        restore = value.producer()
        if restore is None or not is_dequantize(restore):
            return value
        integers = restore.inputs[0]
        assert integers is not None
        quantize = integers.producer()
        if quantize is None or not is_quantize(quantize):
            return integers
        floats = quantize.inputs[0]
        assert floats is not None
        return floats

    def key(self, value: ir.Value | None) -> str | None:
        """Return the value's key in `positions`, or None if it has no position."""
        key = self._find(value)
        return key if key is not None and self.tensors[key].position is not None else None

    def of(self, value: ir.Value | None) -> QuantizedTensor | None:
        """Return the parameters of a value read through a pair or followed by a quantizer; None if neither."""
        key = self._find(value)
        return None if key is None else self.tensors[key]

    def positions(self) -> dict[str, int]:
        """Return the positions of all tensors that have one."""
        found = {key: tensor.position for key, tensor in self.tensors.items()}
        return {key: position for key, position in found.items() if position is not None}

    def _find(self, value: ir.Value | None) -> str | None:
        if value is None:
            return None
        key = self._key_of_output.get(value)
        if key is None and any(is_quantize(use.node) for use in value.uses()):
            key = value.name
        return key if key in self.tensors else None

    def _add(self, node: ir.Node) -> None:
        tensor = _read(node, self.source(node.outputs[0]).const_value is not None)
        name = self.source(node.outputs[0]).name or ""
        key, number = name, 1
        # A tensor may have one pair per reader; equal ones count once.
        while key in self.tensors and not _agree(self.tensors[key], tensor):
            number += 1
            key = f"{name} ({number})"
        self.tensors.setdefault(key, tensor)
        self._key_of_output[node.outputs[0]] = key


def _read(node: ir.Node, constant: bool) -> QuantizedTensor:
    scale = None if node.inputs[1] is None else node.inputs[1].const_value
    zero_point = node.inputs[2] if len(node.inputs) > 2 else None
    stored = None if zero_point is None else zero_point.const_value
    integers = node.inputs[0]
    dtype = stored.dtype if stored is not None else (None if integers is None else integers.dtype)
    return QuantizedTensor(
        node=node.name or "",
        scale=None if scale is None else np.asarray(scale.numpy(), np.float32),
        zero_point=np.zeros(1, np.int64) if stored is None else np.asarray(stored.numpy()).astype(np.int64),
        dtype=dtype,
        role=_role(node.outputs[0]) if constant else "activation",
    )


def _role(value: ir.Value) -> str:
    if any(use.node.op_type in _RECURRENT for use in value.uses()):
        return "weight"
    indices = {use.idx for use in value.uses() if use.node.op_type in LINEAR}
    if 2 in indices:
        return "bias"
    return "weight" if indices else "operand"


def _agree(one: QuantizedTensor, other: QuantizedTensor) -> bool:
    if one.scale is None or other.scale is None:
        return one.scale is other.scale
    return np.array_equal(one.scale, other.scale) and np.array_equal(one.zero_point, other.zero_point)
