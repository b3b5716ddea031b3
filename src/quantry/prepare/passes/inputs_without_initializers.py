"""Takes initializers out of the graph inputs."""

import onnx_ir as ir
from onnx_ir.passes.common import RemoveInitializersFromInputsPass


def inputs_without_initializers(model: ir.Model) -> tuple[str, ...]:
    """Take initializers out of the inputs, where old exporters list them as overridable defaults.

    A weight that a caller may override is no constant: it could neither be folded nor quantized. An IR version below 4
    demands the old form, so it is raised.
    """
    before = len(model.graph.inputs)
    RemoveInitializersFromInputsPass()(model)
    model.ir_version = max(model.ir_version, 4)
    removed = before - len(model.graph.inputs)
    return (f"took {removed} initializers out of the inputs",) if removed else ()
