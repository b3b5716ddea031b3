"""Replace Clip(0, 6) by Relu."""

import onnx_ir as ir

from quantry.graph.edit import constant_of


def clip6_to_relu(model: ir.Model) -> tuple[str, ...]:
    """Replace every ``Clip`` from 0 to 6 by ``Relu``. Only on request, because values above 6 are no longer clipped.

    The quantized range of the tensor clips them again, where calibration decides.
    """
    replaced = 0
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type == "Clip" and node.domain == "" and _bounds(node) == (0.0, 6.0):
            node.op_type = "Relu"
            node.resize_inputs(1)
            replaced += 1
    return (f"replaced {replaced} Clip(0, 6) nodes by Relu: values above 6 are no longer clipped",) if replaced else ()


def _bounds(node: ir.Node) -> tuple[float | None, float | None]:
    """Return the limits of a Clip of opset 11 or later, whose limits are inputs."""
    limits = [constant_of(value) for value in node.inputs[1:3]]
    low, high = (
        None if limit is None or limit.size != 1 else float(limit.reshape(()))
        for limit in limits + [None] * (2 - len(limits))
    )
    return low, high
