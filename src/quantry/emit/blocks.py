"""Block number formats (BFP16, MX) as model-local functions in standard operators, bit-exact.

A tensor is cut along one axis into blocks that share an exponent; the last block is padded with zeros. With E the
exponent of the largest magnitude of a block (-127 for zeros and denormals)::

    BFP16           x -> round(x / step) * step,  step = 2**(E - 6),  within +-(2**(E + 1) - step)
    MX9, MX6, MX4   the same with steps 2**(E - 6), 2**(E - 3), 2**(E - 1), each halved for a pair of neighbours both
                    below 2**E; denormals are zero
    MXINT8          x -> round(x / scale * 64) / 64 * scale,  scale = 2**E,  integers within -128..127
    MXFP*           x -> element(x / scale) * scale,  scale = 2**(E - exponent of the element type's largest value)

Rounding is half to even and elements saturate. In BFP16, NaN and infinities pass through and do not count for E. In the
other formats, a block that contains one becomes NaN as a whole, because the shared exponent can represent nothing else.

Everything is computed in float64 and with few operators, because onnxruntime copies a function body for every tensor:

- Rounding to multiples of a power of two ``s`` is ``(x + m) - m`` with ``m = 1.5 * 2**52 * s``: near ``m``, float64
  numbers are ``s`` apart, and the sum is rounded half to even.
- The power of two at or below a magnitude ``a`` is ``(t + c) - c`` with ``t`` slightly more than ``0.75 * a`` and
  ``c = 2**52 * t``, which rounds ``t`` to its first binary digit. ``a`` has 24 digits, so ``t`` lies strictly between
  0.75 and 1.5 times that power.
- ``x - x`` is zero if x is finite and NaN otherwise; its sum over a block makes the block NaN.

Each tensor gets one node of the domain com.amd.quark; weights stay float in front of theirs:

::

    producer -> t -> t_QuantizeDequantize -> consumers          w (float) -> w_QuantizeDequantize -> consumers
"""

from dataclasses import dataclass

import onnx_ir as ir

from quantry.emit.graph_editor import GraphEditor, describe
from quantry.emit.local_functions import QUARK, FunctionCollector
from quantry.recipe import DataType, PerBlock, TensorSpec

BFP_OPERATOR = "BFPQuantizeDequantize"
MX_OPERATOR = "MXQuantizeDequantize"

_REDUCE_AXES_ARE_INPUTS = 18
_OVERHEAD = 10
"""Bits of a ``bit_width`` that are not fraction bits: shared exponent, sign and the leading one."""
_LEAST_POWER = 2.0**-127
_SHARE = 0.75 * (1 + 2.0**-26)


@dataclass(frozen=True)
class Element:
    """A small float type inside an MX block.

    Attributes:
        name: Its name in the ``element_dtype`` attribute.
        mantissa: Explicit bits of the mantissa.
        smallest: Exponent of the smallest normal value.
        largest: Exponent of the largest value.
        limit: The largest value.
    """

    name: str
    mantissa: int
    smallest: int
    largest: int
    limit: float


ELEMENTS = {
    DataType.MXFP8E5M2: Element("fp8_e5m2", 2, -14, 15, 57344.0),
    DataType.MXFP8E4M3: Element("fp8_e4m3", 3, -6, 8, 448.0),
    DataType.MXFP6E3M2: Element("fp6_e3m2", 2, -2, 4, 28.0),
    DataType.MXFP6E2M3: Element("fp6_e2m3", 3, 0, 2, 7.5),
    DataType.MXFP4E2M1: Element("fp4_e2m1", 1, 0, 2, 6.0),
}
BIT_WIDTH = {DataType.BFP16: 16, DataType.MX9: 16, DataType.MX6: 13, DataType.MX4: 11}

_BFP_ATTRIBUTES = (
    'bfp_method: string = "to_bfp", axis: int = 1, bit_width: int = 16, block_size: int = 8, rounding_mode: int = 2, '
    "sub_block_size: int = 2, sub_block_shift_bits: int = 1, convert_to_bfloat_before_bfp: int = 0"
)
_MX_ATTRIBUTES = 'element_dtype: string = "int8", axis: int = 1, block_size: int = 32, rounding_mode: int = 2'


@dataclass(frozen=True)
class BlockLayout:
    """The arrangement of a tensor's blocks; tensors with the same layout share a function.

    Attributes:
        rank: Number of axes; None if unknown, a sufficient number is then assumed.
        axis: The axis of the blocks.
        size: Number of values in a block.
        lacking: Number of values missing in the last block; None if known only at run time.
    """

    rank: int | None
    axis: int
    size: int
    lacking: int | None

    @property
    def kind(self) -> str:
        """A unique name of the layout."""
        form = "scalar" if self.rank == 0 else f"axis{self.axis}"
        return f"{form}-size{self.size}-{'any' if self.lacking is None else f'lacking{self.lacking}'}"


def block_function(dtype: DataType, layout: BlockLayout, opset: int) -> str:
    """Return the function of a block format in ONNX text.

    Args:
        dtype: The format.
        layout: The arrangement of the blocks.
        opset: Operator set of the model, which the body must use.
    """
    if dtype in BIT_WIDTH:
        name, attributes = BFP_OPERATOR, _BFP_ATTRIBUTES
        body = _bfp(opset) if dtype == DataType.BFP16 else _with_pairs(BIT_WIDTH[dtype] - _OVERHEAD, opset)
    else:
        name, attributes = MX_OPERATOR, _MX_ATTRIBUTES
        body = _mxint8(opset) if dtype == DataType.MXINT8 else _small_float(ELEMENTS[dtype], opset)
    text = _to_blocks(layout) + body + _from_blocks(layout)
    return f"{name} <{attributes}> (x) => (y) {{ {text} }}"


def _to_blocks(layout: BlockLayout) -> str:
    """Return the nodes from x to `blocks`: float64 [..., blocks, pairs, 2, inner], padded with zeros.

    Axes before the axis of the blocks are kept, those after it are merged into one. Nothing is merged with the batch,
    so all shapes except the batch are known: onnxruntime plans memory in a time that grows with the square of the
    number of tensors of unknown shape.
    """
    copied_axes = "1" if layout.rank == 0 else ", ".join(["0"] * (layout.axis + 1))
    return f"""
        shape = Shape (x)
        exact = Cast <to = 11> (x)
        flat_shape = Constant <value_ints = [{copied_axes}, 1, 1, -1]> ()
        {"padded" if layout.lacking == 0 else "flat"} = Reshape (exact, flat_shape)
        {_padding(layout)}
        block_shape = Constant <value_ints = [{"0, " * layout.axis}-1, {layout.size // 2}, 2, 0]> ()
        blocks = Reshape (padded, block_shape)
        nothing = Constant <value = double {{0.0}}> ()
    """


def _padding(layout: BlockLayout) -> str:
    """Return the nodes that pad the last block; `flat` has three axes after the axis of the blocks."""
    if layout.lacking == 0:
        return ""
    axis = layout.axis
    front, back = ", ".join(["0"] * (axis + 4 + axis)), "0, 0, 0"
    if layout.lacking is not None:
        return f"""
            pads = Constant <value_ints = [{front}, {layout.lacking}, {back}]> ()
            padded = Pad (flat, pads)
            end = Constant <value_ints = [-{layout.lacking}]> ()
            padded_shape = Shape (padded)
        """
    return f"""
        all_lengths = Shape (flat)
        here = Constant <value_ints = [{axis}]> ()
        end = Gather (all_lengths, here)
        short = Neg (end)
        size = Constant <value_ints = [{layout.size}]> ()
        lacking = Mod (short, size)
        pads_before = Constant <value_ints = [{front}]> ()
        pads_behind = Constant <value_ints = [{back}]> ()
        pads = Concat <axis = 0> (pads_before, lacking, pads_behind)
        padded = Pad (flat, pads)
        padded_shape = Shape (padded)
    """


def _from_blocks(layout: BlockLayout) -> str:
    """Return the nodes from `result`, shaped like `blocks`, to y."""
    cut = f"""
        joined = Reshape (narrow, padded_shape)
        start = Constant <value_ints = [0]> ()
        along = Constant <value_ints = [{layout.axis}]> ()
        whole = Slice (joined, start, end, along)
    """
    return f"""
        narrow = Cast <to = 1> (result)
        {"" if layout.lacking == 0 else cut}
        y = Reshape ({"narrow" if layout.lacking == 0 else "whole"}, shape)
    """


def _number(name: str, value: float) -> str:
    return f"{name} = Constant <value = double {{{value!r}}}> ()\n"


def _power_of_two(source: str, target: str, smallest: float | None = None) -> str:
    """Return the largest power of two not above positive magnitudes, which are at least `smallest`."""
    p = target
    floor = "" if smallest is None else _number(f"{p}_least", smallest) + f"{p}_safe = Max ({source}, {p}_least)\n"
    return f"""
        {floor}
        {_number(f"{p}_share", _SHARE)}
        {p}_part = Mul ({source if smallest is None else f"{p}_safe"}, {p}_share)
        {_number(f"{p}_far", 2.0**52)}
        {p}_shift = Mul ({p}_part, {p}_far)
        {p}_sum = Add ({p}_part, {p}_shift)
        {target} = Sub ({p}_sum, {p}_shift)
    """


def _reduce(operator: str, source: str, target: str, axes: tuple[int, ...], opset: int) -> str:
    as_input = opset >= _REDUCE_AXES_ARE_INPUTS or operator == "ReduceSum"
    if not as_input:
        return f"{target} = {operator} <axes = {list(axes)}, keepdims = 1> ({source})\n"
    return (
        f"{target}_axes = Constant <value_ints = {list(axes)}> ()\n"
        f"{target} = {operator} <keepdims = 1> ({source}, {target}_axes)\n"
    )


def _rounding(source: str, power: str, digits: int) -> str:
    """Return the nodes that compute `rounded`, multiples of ``power * 2**-digits``."""
    return f"""
        {_number("unit", 1.5 * 2.0 ** (52 - digits))}
        middle = Mul ({power}, unit)
        sum = Add ({source}, middle)
        rounded = Sub (sum, middle)
    """


def _within(power: str, largest: float, target: str) -> str:
    """Return the nodes that clip `rounded` to plus and minus ``power * largest``."""
    return f"""
        {_number("bound", largest)}
        limit = Mul ({power}, bound)
        at_most = Min (rounded, limit)
        negative_limit = Neg (limit)
        {target} = Max (at_most, negative_limit)
    """


def _bfp(opset: int) -> str:
    digits = BIT_WIDTH[DataType.BFP16] - _OVERHEAD
    return f"""
        residue = Sub (blocks, blocks)
        finite = Equal (residue, nothing)
        values = Where (finite, blocks, nothing)
        magnitude = Abs (values)
        {_reduce("ReduceMax", "magnitude", "largest", (-3, -2), opset)}
        {_power_of_two("largest", "power", _LEAST_POWER)}
        {_rounding("values", "power", digits)}
        {_within("power", 2.0 - 2.0**-digits, "bounded")}
        result = Where (finite, bounded, blocks)
    """


def _spoiling(source: str, target: str, opset: int) -> str:
    """Return the nodes that make magnitudes of blocks NaN if the block contains NaN or an infinity."""
    return f"""
        residue = Sub (blocks, blocks)
        {_reduce("ReduceSum", "residue", "spoilt", (-3, -2), opset)}
        {target} = Add ({source}, spoilt)
    """


def _with_pairs(digits: int, opset: int) -> str:
    """Return the rounding of pairs, whose step is halved if both are below the block's power of two."""
    return f"""
        every_magnitude = Abs (blocks)
        {_number("normal", 2.0**-126)}
        counts = GreaterOrEqual (every_magnitude, normal)
        values = Where (counts, blocks, nothing)
        magnitude = Where (counts, every_magnitude, nothing)
        {_reduce("ReduceMax", "magnitude", "pair_largest", (-2,), opset)}
        {_reduce("ReduceMax", "pair_largest", "largest", (-3,), opset)}
        {_power_of_two("largest", "finite_power", _LEAST_POWER)}
        {_spoiling("finite_power", "power", opset)}
        {_number("half", 0.5)}
        half_power = Mul (power, half)
        reaches = GreaterOrEqual (pair_largest, power)
        own_power = Where (reaches, power, half_power)
        {_rounding("values", "own_power", digits)}
        {_within("own_power", 2.0 - 2.0**-digits, "result")}
    """


def _mxint8(opset: int) -> str:
    return f"""
        magnitude = Abs (blocks)
        {_reduce("ReduceMax", "magnitude", "largest", (-3, -2), opset)}
        {_power_of_two("largest", "finite_power", _LEAST_POWER)}
        {_spoiling("finite_power", "power", opset)}
        {_rounding("blocks", "power", 6)}
        {_number("bound", 127 / 64)}
        limit = Mul (power, bound)
        result = Min (rounded, limit)
    """


def _small_float(element: Element, opset: int) -> str:
    """Return the rounding to a small float type with a shared scale."""
    return f"""
        magnitude = Abs (blocks)
        {_reduce("ReduceMax", "magnitude", "largest", (-3, -2), opset)}
        {_power_of_two("largest", "finite_power", _LEAST_POWER)}
        {_spoiling("finite_power", "power", opset)}
        {_number("shrink", 2.0**-element.largest)}
        any_scale = Mul (power, shrink)
        {_number("least_scale", _LEAST_POWER)}
        scale = Max (any_scale, least_scale)
        {_number("smallest", 2.0**element.smallest)}
        smallest_normal = Mul (scale, smallest)
        normal_magnitude = Max (magnitude, smallest_normal)
        {_power_of_two("normal_magnitude", "own_power")}
        {_rounding("blocks", "own_power", element.mantissa)}
        {_within("scale", element.limit, "result")}
    """


_HALF_TO_EVEN = 2
_SUB_BLOCKS = {"sub_block_size": 2, "sub_block_shift_bits": 1}


class BlockWriter:
    """Writes the tensors of one block format, one call per tensor."""

    def __init__(self, editor: GraphEditor, spec: TensorSpec) -> None:
        self._editor = editor
        self._dtype = spec.dtype
        assert isinstance(spec.granularity, PerBlock)
        self._blocks = spec.granularity
        self._nodes: list[tuple[ir.Node, BlockLayout]] = []

    def write_pair(self, tensor: str) -> None:
        """Insert the node after a tensor."""
        self._editor.insert_after(tensor, (self._node(self._editor.values[tensor], tensor),))

    def write_constant(self, name: str, users: frozenset[str] | None) -> None:
        """Insert the node after an initializer, which stays float.

        Args:
            name: Name of the float initializer.
            users: Names of the nodes to rewire; None rewires all.
        """
        self._editor.replace_constant(name, users, lambda value: (self._node(value, name),))

    def finish(self, functions: FunctionCollector) -> None:
        """Register the function.

        Args:
            functions: Collects the functions of the model.
        """
        opset = self._editor.model.opset_imports[""]
        for node, layout in self._nodes:
            functions.use(node, block_function(self._dtype, layout, opset), f"{self._dtype.value}-{layout.kind}")

    def _node(self, value: ir.Value, name: str) -> ir.Node:
        layout = self._layout(value)
        shared = {"axis": layout.axis, "block_size": layout.size, "rounding_mode": _HALF_TO_EVEN}
        attributes: dict[str, int | str]
        if self._dtype in BIT_WIDTH:
            paired = self._dtype != DataType.BFP16
            method = "to_bfp_prime" if paired else "to_bfp"
            attributes = {"bfp_method": method, "bit_width": BIT_WIDTH[self._dtype], **shared}
            attributes |= _SUB_BLOCKS if paired else {}
            operator = BFP_OPERATOR
        else:
            element = ELEMENTS[self._dtype].name if self._dtype in ELEMENTS else "int8"
            attributes = {"element_dtype": element, **shared}
            operator = MX_OPERATOR
        node = self._editor.node((QUARK.domain, operator), [value], f"{name}_QuantizeDequantize", attributes)
        describe(node.outputs[0], ir.DataType.FLOAT, value.shape)
        self._nodes.append((node, layout))
        return node

    def _layout(self, value: ir.Value) -> BlockLayout:
        size = self._blocks.size_for(self._dtype)
        if value.shape is None:
            return BlockLayout(None, self._blocks.axis, size, None)
        rank = len(value.shape)
        # A bias has only one axis, so its blocks are along that.
        axis = min(self._blocks.axis, max(rank - 1, 0))
        length = value.shape[axis] if rank else 1
        return BlockLayout(rank, axis, size, -length % size if isinstance(length, int) else None)
