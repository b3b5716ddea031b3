"""Replace Clip(0, 6) by Relu."""

import onnx_ir as ir

from quantry.graph.edit import bounds_of
from quantry.notes import Note


def clip6_to_relu(model: ir.Model) -> tuple[Note, ...]:
    """Replace every ``Clip`` from 0 to 6 by ``Relu``. Only on request, because values above 6 are no longer clipped.

    The quantized range of the tensor clips them again, where calibration decides.
    """
    replaced = 0
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type == "Clip" and bounds_of(node) == (0.0, 6.0):
            node.op_type = "Relu"
            node.resize_inputs(1)
            replaced += 1
    message = "replaced {count} Clip(0, 6) nodes by Relu: values above 6 are no longer clipped"
    return (Note.of(message, count=replaced),) if replaced else ()
