"""How one ONNX operator is computed in torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class OperatorEntry:
    """A torch function and how a node's inputs reach it.

    Attributes:
        function: Called with the tensors in the order of the node's inputs, and with attributes by their ONNX names.
        constants: Inputs that must be constants and are passed by name as Python numbers or lists: index to name.
        many: Whether the function takes all tensors as one list.
    """

    function: Callable[..., Any]
    constants: Mapping[int, str] = field(default_factory=dict)
    many: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "constants", MappingProxyType(dict(self.constants)))
