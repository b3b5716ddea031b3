"""Marks in a model between which operators are quantized: ``part -> QuantStub -> part -> DeQuantStub -> part``.

Both return their argument. They are operators of torch, because a captured graph keeps operators only.
"""

from collections.abc import Callable, Iterable

import torch
from torch import fx


@torch.library.custom_op("quantry::quant_stub", mutates_args=())  # type: ignore[untyped-decorator]
def _quant_stub(value: torch.Tensor) -> torch.Tensor:
    return value.clone()  # results of custom operators must not share memory with their arguments


@torch.library.custom_op("quantry::dequant_stub", mutates_args=())  # type: ignore[untyped-decorator]
def _dequant_stub(value: torch.Tensor) -> torch.Tensor:
    return value.clone()


for _stub in (_quant_stub, _dequant_stub):
    _stub.register_fake(torch.empty_like)
    _stub.register_autograd(lambda _, gradient: gradient)

QuantStub = torch.ops.quantry.quant_stub
"""What comes after it is quantized."""

DeQuantStub = torch.ops.quantry.dequant_stub
"""What comes after it stays float."""

STUBS = (QuantStub.default, DeQuantStub.default)


def nodes_outside(graph: fx.Graph) -> frozenset[str]:
    """Return the names of the nodes that stay float because of the marks of a captured graph.

    Quantized is what lies between a QuantStub and the DeQuantStubs after it, and what computes another argument of such
    a node, also from the model's inputs.

    Args:
        graph: The captured graph; without a QuantStub, nothing stays float.
    """
    starts = [node for node in graph.nodes if node.target == QuantStub.default]
    if not starts:
        return frozenset()
    inside = _reached(starts, lambda node: node.users)
    inside |= _reached(
        [entry for node in inside if node not in starts for entry in node.all_input_nodes if entry.target not in STUBS],
        lambda node: node.all_input_nodes,
    )
    return frozenset(node.name for node in graph.nodes if node.op == "call_function" and node not in inside)


def _reached(starts: Iterable[fx.Node], neighbours: Callable[[fx.Node], Iterable[fx.Node]]) -> set[fx.Node]:
    """Return the nodes that are reached without passing a mark; the starts are among them."""
    reached: dict[fx.Node, None] = dict.fromkeys(starts)
    pending = list(reached)
    while pending:
        for node in neighbours(pending.pop()):
            if node not in reached and node.target not in STUBS:
                reached[node] = None
                pending.append(node)
    return set(reached)
