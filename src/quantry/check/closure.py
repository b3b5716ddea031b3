"""Every operator of the NPU reads and writes quantized tensors; one that does not runs elsewhere, in float."""

from collections.abc import Iterator

import onnx_ir as ir

from quantry.check.pairs import is_dequantize, is_quantize
from quantry.check.violation import Violation
from quantry.plan import FUSING_PRODUCERS
from quantry.recipe import FUSIBLE_ACTIVATIONS
from quantry.scale.npu import is_correction

_COMPUTING = frozenset(
    {
        "Conv",
        "ConvTranspose",
        "Gemm",
        "MatMul",
        "Add",
        "Sub",
        "Mul",
        "Min",
        "Max",
        "Relu",
        "LeakyRelu",
        "PRelu",
        "Clip",
        "HardSigmoid",
        "HardSwish",
        "Sigmoid",
        "Tanh",
        "Softmax",
        "MaxPool",
        "AveragePool",
        "GlobalAveragePool",
        "ReduceMean",
    }
)
_MOVING = frozenset(
    {"Concat", "Pad", "Slice", "Split", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Resize"}
)
# Operands beyond the first that are numbers of the operator itself, such as the bounds of Clip, stay float.
_ALL_OPERANDS = frozenset(
    {"Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sub", "Mul", "Min", "Max", "PRelu", "Concat"}
)
_FUSED_BEHIND = {
    **dict.fromkeys(FUSIBLE_ACTIVATIONS, FUSING_PRODUCERS),
    "AveragePool": frozenset({"Pad"}),
}


def closure_violations(node: ir.Node) -> Iterator[Violation]:
    """Yield the float operands and results of a node that the NPU should compute.

    A float operator whose kind the NPU does not have is none of its business, nor is one that only moves data towards
    an output of the model.

    Args:
        node: Any node.
    """
    computes = node.op_type in _COMPUTING
    if not computes and not (node.op_type in _MOVING and _is_quantized(node.outputs[0])):
        return
    operands = node.inputs if node.op_type in _ALL_OPERANDS else node.inputs[:1]
    for operand in operands:
        if operand is not None and _is_float(operand) and not _reads_integers(node, operand):
            yield Violation(
                node.name or "",
                "closed by Q/DQ",
                f"its operand {operand.name!r} is float",
                "quantize it: put a QuantizeLinear and a DequantizeLinear between the two",
            )
    output = node.outputs[0]
    if computes and _is_float(output) and not _writes_integers(output):
        yield Violation(
            node.name or "",
            "closed by Q/DQ",
            f"its result {output.name!r} is float",
            "quantize it: put a QuantizeLinear behind the node",
        )


def _is_float(value: ir.Value) -> bool:
    return value.dtype in (None, ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)


def _is_quantized(value: ir.Value) -> bool:
    return any(is_quantize(use.node) for use in value.uses())


def _reads_integers(node: ir.Node, operand: ir.Value) -> bool:
    if operand.const_value is not None:
        others = [value for value in node.inputs if value is not None and value is not operand]
        return len(others) == 1 and is_correction(node, others[0])
    producer = operand.producer()
    return is_dequantize(producer) or _is_fused(node, operand)


def _writes_integers(output: ir.Value) -> bool:
    readers = [use.node for use in output.uses()]
    if output.is_graph_output() or not readers:
        return False
    return all(is_quantize(reader) or _is_fused(reader, output) for reader in readers)


def _is_fused(node: ir.Node, operand: ir.Value) -> bool:
    producer = operand.producer()
    if producer is None or len(operand.uses()) != 1 or operand.is_graph_output():
        return False
    return producer.op_type in _FUSED_BEHIND.get(node.op_type, frozenset()) or is_correction(node, operand)
