"""The nodes that a conversion may change.

Naming nodes in a note without letting the note grow with the model.
"""

from collections.abc import Container, Sequence

import onnx_ir as ir


def convertible(model: ir.Model, untouched: Container[str]) -> tuple[ir.Node, ...]:
    """Return the nodes of the main graph without those that must stay as they are.

    Args:
        model: The model.
        untouched: Names of nodes that stay float, and so are not computed by the NPU.
    """
    return tuple(node for node in model.graph if node.name not in untouched)


_NAMED = 6


def listed(names: Sequence[str]) -> str:
    """Return the first names and how many follow.

    Example:
        >>> listed(["a", "b"])
        'a, b'
    """
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
