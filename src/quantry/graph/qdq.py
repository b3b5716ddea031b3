"""Read Q/DQ pairs: which nodes they are, and the scale, zero point, axis and type that they give to integers.

::

    computed -> QuantizeLinear -> integers -> DequantizeLinear -> operator
                        stored integers    -> DequantizeLinear -> operator

Nodes of all dialects count: the standard ones, those of com.microsoft and those of AMD's domains. `emit` writes pairs;
everything that reads them on a graph does it here. Only `emit.look_ups` reads protobufs itself, because it runs before
every evaluation and must be fast.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.facts.operators import LINEAR, Family, of_family
from quantry.graph.edit import constant_of
from quantry.numerics.power_of_two import position_of
from quantry.recipe import DataType

_PREFIXES = ("", "vai", "vitis", "extended")
_QUANTIZERS = frozenset(f"{prefix}quantizelinear" for prefix in _PREFIXES)
_DEQUANTIZERS = frozenset(f"{prefix}dequantizelinear" for prefix in _PREFIXES)
_FAKE_QUANTIZERS = ("FixNeuron", "BFPQuantizeDequantize", "MXQuantizeDequantize")
_RECURRENT = of_family(Family.RECURRENT)


def is_quantize(node: ir.Node | None) -> bool:
    """Whether a node is QuantizeLinear of any dialect."""
    return node is not None and node.op_type.casefold() in _QUANTIZERS


def is_dequantize(node: ir.Node | None) -> bool:
    """Whether a node is DequantizeLinear of any dialect."""
    return node is not None and node.op_type.casefold() in _DEQUANTIZERS


def is_pair_node(node: ir.Node | None) -> bool:
    """Whether a node is one of the two nodes of a pair, in any dialect."""
    return node is not None and is_pair_operator(node.op_type)


def is_pair_operator(op_type: str) -> bool:
    """Whether an operator type is QuantizeLinear or DequantizeLinear of any dialect."""
    return op_type.casefold() in _QUANTIZERS | _DEQUANTIZERS


def is_fake_quantize(node: ir.Node) -> bool:
    """Whether a vendor's node does what a pair does, in one piece: its result is float."""
    return node.op_type in _FAKE_QUANTIZERS


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """Integers, and the parameters with which they stand for ``(integers - zero_point) * scale``.

    Attributes:
        integers: What QuantizeLinear writes or DequantizeLinear reads.
        scale: Its scale; None only in a broken model.
        zero_point: Its zero point; None stands for 0.
        axis: The axis along which scales differ; None if there is one scale.
        block_size: How many values along the axis share a scale; 0 stands for all of one channel.
        node: The node that was read, if any.
    """

    integers: ir.Value
    scale: ir.Value | None
    zero_point: ir.Value | None
    axis: int | None = None
    block_size: int = 0
    node: ir.Node | None = None

    @property
    def node_name(self) -> str:
        """Name of the node that was read."""
        return "" if self.node is None else self.node.name or ""

    @property
    def scales(self) -> NDArray[np.float32] | None:
        """The scales; None if they are computed at run time."""
        return None if (stored := constant_of(self.scale)) is None else stored.astype(np.float32)

    @property
    def zero_points(self) -> NDArray[np.int64]:
        """The zero points; 0 if there are none, or if they are computed at run time."""
        stored = constant_of(self.zero_point)
        return np.zeros(1, np.int64) if stored is None else stored.astype(np.int64)

    @property
    def step(self) -> float | None:
        """The scale if it is a single constant."""
        scales = self.scales
        return None if scales is None or scales.size != 1 else float(scales.reshape(()))

    @property
    def offset(self) -> int:
        """The first zero point."""
        return int(self.zero_points.reshape(-1)[0])

    @property
    def position(self) -> int | None:
        """The position of the binary point; None unless there is exactly one scale, a power of two."""
        return None if self.step is None else position_of(self.step)

    @property
    def dtype(self) -> ir.DataType | None:
        """Type of the integers; None if the model does not say."""
        if self.zero_point is not None and self.zero_point.dtype is not None:
            return self.zero_point.dtype
        return ir.DataType.UINT8 if is_quantize(self.node) and self.integers.dtype is None else self.integers.dtype

    @property
    def limits(self) -> tuple[int, int] | None:
        """Smallest and largest integer of the type; None for floats and unknown types."""
        name = "" if self.dtype is None or not self.dtype.is_integer() else self.dtype.name
        return (DataType[name].lowest, DataType[name].highest) if name in DataType.__members__ else None

    @property
    def levels(self) -> NDArray[Any] | None:
        """The integers if they are stored, in their own type."""
        return constant_of(self.integers)

    @property
    def numbers(self) -> NDArray[np.float64] | None:
        """What stored integers stand for; None if they are computed, or have a scale per block."""
        levels, scales = self.levels, self.scales
        if levels is None or scales is None or scales.ndim > 1:
            return None
        shape = [1] * levels.ndim
        if scales.size > 1 and self.axis is not None:
            shape[self.axis] = scales.size
        offsets = self.zero_points.reshape(shape if self.zero_points.size > 1 else [1] * levels.ndim)
        return np.asarray((levels.astype(np.float64) - offsets) * scales.astype(np.float64).reshape(shape), np.float64)

    @property
    def is_fixed(self) -> bool:
        """Whether scale and zero point are there, and constant."""
        return constant_of(self.scale) is not None and constant_of(self.zero_point) is not None

    @property
    def parameters(self) -> tuple[ir.Value, ir.Value]:
        """The scale and the zero point of a tensor that has both."""
        assert self.scale is not None
        assert self.zero_point is not None
        return self.scale, self.zero_point

    @property
    def triple(self) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The integers, the scale and the zero point, in the order in which integer kernels read them."""
        return self.integers, *self.parameters

    @property
    def role(self) -> str:
        """What a dequantized tensor is for its readers: activation, weight, bias or, for other constants, operand."""
        restored = None if self.node is None or not is_dequantize(self.node) else self.node.outputs[0]
        if restored is None or before_pair(restored).const_value is None:
            return "activation"
        if any(use.node.op_type in _RECURRENT for use in restored.uses()):
            return "weight"
        indices = {use.idx for use in restored.uses() if use.node.op_type in LINEAR}
        if 2 in indices:
            return "bias"
        return "weight" if indices else "operand"

    def same_grid(self, tensor: "QuantizedTensor") -> bool:
        """Whether equal integers of both stand for equal numbers."""
        if self.scales is None or tensor.scales is None:
            return self.scales is tensor.scales
        equal = np.array_equal(self.scales, tensor.scales) and np.array_equal(self.zero_points, tensor.zero_points)
        return equal and self.dtype == tensor.dtype


def tensor_of(node: ir.Node | None) -> QuantizedTensor | None:
    """Return the integers that a node of a pair writes or reads; None for other nodes."""
    if node is None or not is_pair_node(node) or len(node.inputs) < 2 or node.inputs[0] is None:
        return None
    integers = node.outputs[0] if is_quantize(node) else node.inputs[0]
    scale, zero_point = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    has_axis = scale is not None and scale.shape is not None and len(scale.shape) > 0
    axis = node.attributes.get_int("axis", 1) if has_axis else None
    return QuantizedTensor(integers, scale, zero_point, axis, node.attributes.get_int("block_size", 0), node)


def read_through(value: ir.Value | None) -> QuantizedTensor | None:
    """Return the integers that a value is dequantized from; None if it does not come from DequantizeLinear."""
    producer = None if value is None else value.producer()
    return tensor_of(producer) if is_dequantize(producer) else None


def before_pair(value: ir.Value) -> ir.Value:
    """Return a value as computed or stored: what its pair reads, or the integers that it is dequantized from."""
    tensor = read_through(value)
    if tensor is None:
        return value
    quantize = tensor.integers.producer()
    floats = quantize.inputs[0] if quantize is not None and is_quantize(quantize) else None
    return tensor.integers if floats is None else floats


def quantizers_of(value: ir.Value) -> list[ir.Node]:
    """Return the nodes that read a value if all of them are QuantizeLinear, else none; it may be an output too."""
    return _only_readers(value, is_quantize)


def dequantizers_of(integers: ir.Value) -> list[ir.Node]:
    """Return the nodes that read integers if all of them are DequantizeLinear, else none; they may be an output too."""
    return _only_readers(integers, is_dequantize)


def _only_readers(value: ir.Value, accepts: Callable[[ir.Node], bool]) -> list[ir.Node]:
    readers = [use.node for use in value.uses()]
    return readers if all(map(accepts, readers)) else []


class QdqTensors:
    """The quantized tensors of a graph by name, found through its pairs; does not change the graph.

    Attributes:
        tensors: The tensors by the name of what is computed or stored. A tensor with several different pairs has
            several entries, the later ones with a number.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.tensors: dict[str, QuantizedTensor] = {}
        self._key_of_output: dict[ir.Value, str] = {}
        for node in graph:
            tensor = tensor_of(node)
            if tensor is not None and is_dequantize(node):
                self._add(node.outputs[0], tensor)

    def source(self, value: ir.Value) -> ir.Value:
        """Return the value as computed or stored, before any pair."""
        return before_pair(value)

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
        positions = {key: tensor.position for key, tensor in self.tensors.items()}
        return {key: position for key, position in positions.items() if position is not None}

    def _find(self, value: ir.Value | None) -> str | None:
        if value is None:
            return None
        key = self._key_of_output.get(value)
        if key is None and any(is_quantize(use.node) for use in value.uses()):
            key = value.name
        return key if key in self.tensors else None

    def _add(self, output: ir.Value, tensor: QuantizedTensor) -> None:
        name = before_pair(output).name or ""
        key, number = name, 1
        # A tensor may have one pair per reader; equal ones count once.
        while key in self.tensors and not self.tensors[key].same_grid(tensor):
            number += 1
            key = f"{name} ({number})"
        self.tensors.setdefault(key, tensor)
        self._key_of_output[output] = key
