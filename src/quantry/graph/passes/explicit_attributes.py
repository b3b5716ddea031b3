"""Write out the attributes of convolutions and pooling that have their default value."""

import onnx_ir as ir

from quantry.notes import Note, NoteKind

_WINDOWED = ("Conv", "ConvTranspose", "MaxPool", "AveragePool")
_GROUPED = ("Conv", "ConvTranspose")


def explicit_attributes(model: ir.Model) -> tuple[Note, ...]:
    """Write out ``kernel_shape``, ``strides``, ``pads``, ``dilations`` and ``group``, in place.

    Compilers that read attributes without their defaults need them. ``pads`` stays away where ``auto_pad`` decides, and
    ``dilations`` of AveragePool is written only where the model has it, since it is new in opset 19.
    """
    written = 0
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type not in _WINDOWED or node.domain not in ("", "ai.onnx"):
            continue
        missing = {name: value for name, value in _defaults(node).items() if name not in node.attributes}
        for name, value in missing.items():
            node.attributes[name] = ir.AttrInt64(name, value) if isinstance(value, int) else ir.AttrInt64s(name, value)
        written += bool(missing)
    message = "wrote out default attributes of {count} nodes"
    return (Note.of(message, NoteKind.GRAPH, count=written),) if written else ()


def _defaults(node: ir.Node) -> dict[str, int | list[int]]:
    kernel = _kernel(node)
    if kernel is None:
        return {}
    axes = len(kernel)
    defaults: dict[str, int | list[int]] = {"kernel_shape": kernel, "strides": [1] * axes}
    if node.attributes.get_string("auto_pad", "NOTSET") == "NOTSET" and "output_shape" not in node.attributes:
        defaults["pads"] = [0] * 2 * axes
    if node.op_type != "AveragePool":
        defaults["dilations"] = [1] * axes
    if node.op_type in _GROUPED:
        defaults["group"] = 1
    return defaults


def _kernel(node: ir.Node) -> list[int] | None:
    if "kernel_shape" in node.attributes:
        return list(node.attributes["kernel_shape"].as_ints())
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    if weight is None or weight.shape is None or weight.shape.is_dynamic():
        return None
    return [int(dim) for dim in weight.shape[2:] if isinstance(dim, int)]
