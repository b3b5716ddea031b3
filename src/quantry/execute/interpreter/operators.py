"""All operators that the interpreter knows."""

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from quantry.execute.interpreter.attributes import Attributes
from quantry.execute.interpreter.elementwise import ELEMENTWISE
from quantry.execute.interpreter.linear import LINEAR
from quantry.execute.interpreter.movement import MOVEMENT
from quantry.execute.interpreter.reduction import REDUCTION
from quantry.execute.interpreter.resize import RESIZE

Operator = Callable[[list[Any], Attributes], Any]

OPERATORS: dict[str, Operator] = {**ELEMENTWISE, **LINEAR, **REDUCTION, **MOVEMENT, **RESIZE}
"""From operator type to a function of inputs (None where one is left out) and attributes."""


def interpretable(node: ir.Node) -> str | None:
    """Return why a node cannot be interpreted, or None where it can."""
    if node.domain not in ("", "ai.onnx"):
        return f"operator {node.op_type} is of domain {node.domain}"
    if node.op_type not in OPERATORS:
        return f"operator {node.op_type} has no function in torch here"
    if node.op_type == "Resize" and _text(node, "mode", "nearest") not in ("nearest", "linear"):
        return f"Resize by mode {_text(node, 'mode', 'nearest')} has no function in torch here"
    if node.op_type == "Resize" and _text(node, "coordinate_transformation_mode", "") == "tf_crop_and_resize":
        return "Resize by coordinate mode tf_crop_and_resize has no function in torch here"
    if any(output.uses() for output in node.outputs[1:]) and node.op_type != "Split":
        return f"a further output of {node.op_type} is used"
    return None


def _text(node: ir.Node, name: str, default: str) -> str:
    return node.attributes[name].as_string() if name in node.attributes else default
