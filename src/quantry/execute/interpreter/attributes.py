"""A node's attributes with defaults."""

from collections.abc import Sequence

import onnx_ir as ir


class Attributes:
    """Reads the attributes of one node.

    Args:
        node: The node.
        opset: Version of the standard operator set.
    """

    def __init__(self, node: ir.Node, opset: int) -> None:
        self._attributes = node.attributes
        self.opset = opset
        self.outputs = len(node.outputs)

    def __contains__(self, name: str) -> bool:
        return name in self._attributes

    def integer(self, name: str, default: int = 0) -> int:
        """Return an integer."""
        return self._attributes[name].as_int() if name in self._attributes else default

    def number(self, name: str, default: float = 0.0) -> float:
        """Return a float."""
        return self._attributes[name].as_float() if name in self._attributes else default

    def text(self, name: str, default: str = "") -> str:
        """Return a string."""
        return self._attributes[name].as_string() if name in self._attributes else default

    def integers(self, name: str, default: Sequence[int] = ()) -> list[int]:
        """Return a list of integers."""
        return list(self._attributes[name].as_ints()) if name in self._attributes else list(default)

    def tensor(self, name: str) -> ir.TensorProtocol | None:
        """Return a tensor, or None."""
        return self._attributes[name].as_tensor() if name in self._attributes else None
