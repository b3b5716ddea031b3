"""Reading a node's attribute with the default that its operator has."""

import onnx_ir as ir


def int_of(node: ir.Node, name: str, default: int) -> int:
    """Return an integer attribute, or the default where it is absent or bound to a function's parameter."""
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.is_ref() else attribute.as_int()


def float_of(node: ir.Node, name: str, default: float) -> float:
    """Return a float attribute, or the default where it is absent or bound to a function's parameter."""
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.is_ref() else attribute.as_float()


def string_of(node: ir.Node, name: str, default: str) -> str:
    """Return a string attribute, or the default where it is absent or bound to a function's parameter."""
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.is_ref() else attribute.as_string()
