"""Hide Q/DQ pairs from fusions of onnxruntime that change the result. A Max with one input returns it unchanged.

**8-bit floats.** onnxruntime's CPU provider (1.19 to 1.31) fuses their pairs into integer kernels, or moves them past
operators that have no kernel for such floats, and then refuses its own graph
(github.com/microsoft/onnxruntime/issues/22269). It also removes a Relu in front of a pair, as if the pair had no
negative numbers, and then computes something else. TensorRT removes the Max::

    DequantizeLinear -> Conv, second input    becomes    DequantizeLinear -> Max -> Conv
    DequantizeLinear -> Transpose             becomes    DequantizeLinear -> Max -> Transpose
    Transpose -> QuantizeLinear               becomes    Transpose -> Max -> QuantizeLinear

**Flat probabilities.** QLinearSoftmax multiplies exponentials of up to 23 bits with ``floor(1 / scale)`` in 32 bits. If
no probability exceeds one half, the scale is below 1/511 and the product overflows: attention over many tokens becomes
noise. Such a Softmax is computed in float::

    DequantizeLinear -> Softmax -> QuantizeLinear    becomes    DequantizeLinear -> Max -> Softmax -> QuantizeLinear
"""

from collections.abc import Collection

import onnx_ir as ir

from quantry.emit.graph_editor import GraphEditor, describe
from quantry.facts.operators import LINEAR, Family, of_family
from quantry.graph.qdq import is_dequantize, is_quantize, read_through
from quantry.numerics.tensor_params import QuantParams

_KERNEL_BITS = 8
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
        if is_quantize(node) and node.outputs[0].dtype in _FLOAT8:
            source = node.inputs[0].producer() if node.inputs[0] is not None else None
            if source is not None and source.op_type in _PASSED:
                _separate(editor, node, 0)
        elif node.op_type in LINEAR and _reads_float8(node, 0) and _reads_float8(node, 1):
            _separate(editor, node, 1)
        elif node.op_type in _PASSED and _reads_float8(node, 0):
            _separate(editor, node, 0)


SMALLEST_STEP = 1 / 511
"""Smallest scale of the result of QLinearSoftmax that does not overflow."""


def flat_softmaxes(model: ir.Model, params: QuantParams) -> frozenset[str]:
    """Return the names of the Softmax nodes that onnxruntime would fuse into a kernel that overflows.

    Args:
        model: The float model.
        params: Scales and zero points of its tensors.
    """
    softmaxes = (node for node in model.graph if _is_softmax(node))
    params_of = {node.name or "": params.tensors.get(node.outputs[0].name or "") for node in softmaxes}
    # Kernels exist for 8 bits. Those with a zero point above the lowest integer are not fused.
    return frozenset(
        name
        for name, entry in params_of.items()
        if entry is not None and entry.dtype.bits == _KERNEL_BITS and not entry.dtype.is_float8
        if float(entry.scale.max()) < SMALLEST_STEP and int(entry.zero_point.min()) == entry.dtype.lowest
    )


def hide_softmaxes(editor: GraphEditor, names: Collection[str]) -> None:
    """Separate Softmax nodes from the pair before them.

    Args:
        editor: The graph, with its pairs written.
        names: Names of the nodes.
    """
    for node in tuple(editor.model.graph):
        source = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
        if _is_softmax(node) and node.name in names and is_dequantize(source):
            _separate(editor, node, 0)


def _is_softmax(node: ir.Node) -> bool:
    return node.op_type == "Softmax" and not node.domain


def _reads_float8(node: ir.Node, index: int) -> bool:
    tensor = read_through(node.inputs[index])
    return tensor is not None and tensor.dtype in _FLOAT8


def _separate(editor: GraphEditor, node: ir.Node, index: int) -> None:
    value = node.inputs[index]
    assert value is not None
    same = editor.node(("", "Max"), [value], f"{node.name}_unchanged")
    describe(same.outputs[0], ir.DataType.FLOAT, value.shape)
    editor.model.graph.insert_before(node, same)
    node.replace_input_with(index, same.outputs[0])
