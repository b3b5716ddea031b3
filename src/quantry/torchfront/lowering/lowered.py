"""What lowering a captured graph gives."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir


@dataclass(frozen=True)
class Scope:
    """Where in the user's model a node comes from.

    Attributes:
        path: Dotted path of the module, from outside in; empty for the root.
        classes: Names of the modules' classes, outermost first.
    """

    path: str
    classes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Lowered:
    """The float ONNX model of a captured graph, and what ONNX cannot say.

    Attributes:
        model: The model; initializers have the names of the parameters they come from.
        scopes: Of every node, by its name.
        signature: How the module's arguments and results are flattened, as torch keeps it; None for plain tensors.
        constants: Results that are no tensors, by their place among the flattened results.
        arguments: Arguments that are no tensors, by their place among the flattened arguments.
        parameters: Names of the initializers that the user's model trains.
        buffers: Names of those that it keeps fixed.
    """

    model: ir.Model
    scopes: Mapping[str, Scope]
    signature: Any
    constants: Mapping[int, Any]
    arguments: Mapping[int, Any] = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()
    buffers: frozenset[str] = frozenset()
