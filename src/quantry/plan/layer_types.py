"""From the user's entries for single layers to the types of each node."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import onnx_ir as ir

from quantry.plan.selected_nodes import matching, of_type
from quantry.recipe import Bias, LayerTypes, TensorSpec


@dataclass(frozen=True)
class NodeTypes:
    """What the user wants of one node; None where nothing was said.

    Attributes:
        activation: What it reads.
        output: What it writes.
        weight: Its weight.
        bias: Its bias.
        float_reason: Why it stays float.
    """

    activation: TensorSpec | None = None
    output: TensorSpec | None = None
    weight: TensorSpec | None = None
    bias: Bias | None = None
    float_reason: str | None = None


def types_of_nodes(graph: ir.Graph, layers: Iterable[LayerTypes]) -> dict[str, NodeTypes]:
    """Return what the entries say of each node they name.

    Args:
        graph: The graph; every node has a unique name.
        layers: The entries; each field of a node comes from the last that sets it.

    Returns:
        Node name to types.

    Raises:
        SelectionError: An entry matches no node.
    """
    nodes = list(graph)
    found: dict[str, NodeTypes] = {}
    for index, entry in enumerate(layers):
        where = f"plan.layers[{index}]"
        chosen = [node for name in entry.match for node in matching(nodes, name, f"{where}.match")]
        chosen += [node for operator in entry.operators for node in of_type(nodes, operator, f"{where}.operators")]
        for node in chosen:
            name = node.name or ""
            found[name] = _merged(found.get(name, NodeTypes()), entry, where)
    return found


def _merged(known: NodeTypes, entry: LayerTypes, where: str) -> NodeTypes:
    if entry.keep_float:
        return replace(known, float_reason=f"kept float by {where}")
    return NodeTypes(
        activation=entry.activation or known.activation,
        output=entry.output or known.output,
        weight=entry.weight or known.weight,
        bias=entry.bias or known.bias,
    )
