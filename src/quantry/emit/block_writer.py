"""Block formats: one node of com.amd.quark for each tensor, weights kept as floats in front of theirs.

::

    producer -> t -> t_QuantizeDequantize -> consumers          w (float) -> w_QuantizeDequantize -> consumers
"""

import onnx_ir as ir

from quantry.emit.block_function import (
    BFP_OPERATOR,
    BIT_WIDTH,
    ELEMENTS,
    MX_OPERATOR,
    BlockLayout,
    block_function,
)
from quantry.emit.dialect import QUARK
from quantry.emit.function_book import FunctionBook
from quantry.emit.graph_editor import GraphEditor, describe
from quantry.recipe import DataType, PerBlock, TensorSpec

_HALF_TO_EVEN = 2
_SUB_BLOCKS = {"sub_block_size": 2, "sub_block_shift_bits": 1}


class BlockWriter:
    """Writes the tensors of one block format, one call for each."""

    def __init__(self, editor: GraphEditor, spec: TensorSpec) -> None:
        self._editor = editor
        self._dtype = spec.dtype
        assert isinstance(spec.granularity, PerBlock)
        self._blocks = spec.granularity
        self._nodes: list[tuple[ir.Node, BlockLayout]] = []

    def write_pair(self, tensor: str) -> None:
        """Put the node behind a tensor."""
        self._editor.put_behind(tensor, (self._node(self._editor.values[tensor], tensor),))

    def write_constant(self, name: str, users: frozenset[str] | None) -> None:
        """Put the node behind an initializer, which stays float.

        Args:
            name: Name of the float initializer.
            users: Names of the nodes to rewire; None rewires all.
        """
        self._editor.replace_constant(name, users, lambda value: (self._node(value, name),))

    def finish(self, functions: FunctionBook) -> None:
        """Note the function.

        Args:
            functions: Where functions are noted.
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
        # A bias has one axis only: its blocks lie along that.
        axis = min(self._blocks.axis, max(rank - 1, 0))
        length = value.shape[axis] if rank else 1
        return BlockLayout(rank, axis, size, -length % size if isinstance(length, int) else None)
