"""Operators that move values: they do the same to integers."""

import onnx_ir as ir

from quantry.emit.integer.unit import BYTES, Unit

MOVEMENT = (
    "Reshape",
    "Transpose",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
    "Slice",
    "Split",
    "Gather",
    "GatherElements",
    "GatherND",
    "Expand",
    "Tile",
    "Identity",
    "MaxPool",
    "ReduceMax",
    "ReduceMin",
    "Resize",
)
"""Operators with 8-bit kernels in onnxruntime whose results are among their inputs."""


def move(unit: Unit) -> ir.Node | None:
    """Return the same operator on integers, where all outputs have the parameters of the input."""
    source = unit.inputs[0]
    if source is None or source.dtype not in BYTES or not all(source.same_grid(output) for output in unit.outputs):
        return None
    if unit.node.op_type == "Resize" and unit.node.attributes.get_string("mode", "nearest") != "nearest":
        return None
    return _copy(unit, (source.integers, *unit.node.inputs[1:]))


def pad(unit: Unit) -> ir.Node | None:
    """Return Pad on integers, which fills with the zero point where the float one fills with zero."""
    source = unit.inputs[0]
    if source is None or source.dtype not in BYTES or not source.same_grid(unit.output):
        return None
    rest = list(unit.node.inputs[1:])
    if unit.node.attributes.get_string("mode", "constant") == "constant":
        fill = rest[1] if len(rest) > 1 else None
        if fill is not None and (fill.const_value is None or fill.const_value.numpy().any()):
            return None
        rest = [rest[0], source.zero_point, *rest[2:]]
    return _copy(unit, (source.integers, *rest))


def _copy(unit: Unit, inputs: tuple[ir.Value | None, ...]) -> ir.Node:
    node = ir.node(
        unit.node.op_type,
        inputs,
        attributes={name: attribute.value for name, attribute in unit.node.attributes.items()} or None,
        num_outputs=len(unit.node.outputs),
        name=unit.editor.fresh(f"{unit.node.name}_quant"),
    )
    for index, output in enumerate(node.outputs):
        output.name = unit.editor.fresh(f"{unit.node.name}_quant_Output_{index}")
    return node
