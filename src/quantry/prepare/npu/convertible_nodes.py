"""The nodes that a conversion may change."""

from collections.abc import Container

import onnx_ir as ir


def convertible(model: ir.Model, untouched: Container[str]) -> tuple[ir.Node, ...]:
    """Return the nodes of the main graph without those that must stay as they are.

    Args:
        model: The model.
        untouched: Names of nodes that stay float, and so are not computed by the NPU.
    """
    return tuple(node for node in model.graph if node.name not in untouched)
