"""Hide Q/DQ pairs of 8-bit floats from the fusions of onnxruntime, which take every pair for integers.

onnxruntime's CPU provider (1.19 to 1.31) fuses pairs of 8-bit floats into integer kernels, or moves them past operators
that have no kernel for such floats, and then refuses its own graph (github.com/microsoft/onnxruntime/issues/22269). It
also removes a Relu in front of a pair, as if the pair had no negative numbers, and then computes something else. A Max
with one input returns it unchanged and stops all of these; TensorRT removes it::

    DequantizeLinear -> Conv, second input    becomes    DequantizeLinear -> Max -> Conv
    DequantizeLinear -> Transpose             becomes    DequantizeLinear -> Max -> Transpose
    Transpose -> QuantizeLinear               becomes    Transpose -> Max -> QuantizeLinear
"""

import onnx_ir as ir

from quantry.emit.graph_editor import GraphEditor, describe
from quantry.graph.operators import LINEAR, Family, of_family

_FLOAT8 = (ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E5M2)
_PASSED = (*of_family(Family.MOVEMENT), "MaxPool", "Clip", "Relu")
"""Operators that a fusion moves a pair past, or removes because the quantizer after them would clip as they do."""


def hide_float8_pairs(editor: GraphEditor) -> None:
    """Separate pairs of 8-bit floats from what onnxruntime would fuse them with.

    Args:
        editor: The graph, with its pairs written.
    """
    for node in tuple(editor.model.graph):
        if node.domain:
            continue
        if node.op_type == "QuantizeLinear" and node.outputs[0].dtype in _FLOAT8:
            source = node.inputs[0].producer() if node.inputs[0] is not None else None
            if source is not None and source.op_type in _PASSED:
                _separate(editor, node, 0)
        elif node.op_type in LINEAR and _reads_float8(node, 0) and _reads_float8(node, 1):
            _separate(editor, node, 1)
        elif node.op_type in _PASSED and _reads_float8(node, 0):
            _separate(editor, node, 0)


def _reads_float8(node: ir.Node, index: int) -> bool:
    value = node.inputs[index]
    source = value.producer() if value is not None else None
    stored = source.inputs[0] if source is not None and source.op_type == "DequantizeLinear" else None
    return stored is not None and stored.dtype in _FLOAT8


def _separate(editor: GraphEditor, node: ir.Node, index: int) -> None:
    value = node.inputs[index]
    assert value is not None
    same = editor.node(("", "Max"), [value], f"{node.name}_unchanged")
    describe(same.outputs[0], ir.DataType.FLOAT, value.shape)
    editor.model.graph.insert_before(node, same)
    node.replace_input_with(index, same.outputs[0])
