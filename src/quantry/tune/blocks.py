"""Cuts a graph into blocks of a few linear layers, where as little as possible passes from one to the next."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import onnx_ir as ir

from quantry.graph.operators import LINEAR
from quantry.graph.segments import values_used


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive nodes.

    Attributes:
        nodes: The nodes, in order.
        inputs: Names of what they take from before.
        outputs: Names of what later nodes, or the model's user, take from them.
        passed: Names of what is alive behind the block, theirs or not.
    """

    nodes: tuple[ir.Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    passed: tuple[str, ...]

    @property
    def layers(self) -> int:
        """Number of linear layers with constant weights."""
        return sum(1 for node in self.nodes if is_linear(node))


def is_linear(node: ir.Node) -> bool:
    """Return whether a node multiplies with a constant weight."""
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    return node.op_type in LINEAR and weight is not None and weight.is_initializer()


def cut_into_blocks(nodes: Sequence[ir.Node], targets: Sequence[str], layers: int) -> tuple[Block, ...]:
    """Return nodes as blocks.

    Args:
        nodes: The nodes, in order.
        targets: Names of tensors that are wanted at the end.
        layers: Linear layers in a block, at most.
    """
    last_use = {value: at for at, node in enumerate(nodes) for value in values_used(node)}
    made = {value: at for at, node in enumerate(nodes) for value in node.outputs}
    ends = frozenset(targets)
    for value in made:
        if value.name in ends:
            last_use[value] = len(nodes)
    crossing = [
        sum(
            1
            for value, use in last_use.items()
            if use >= at and made.get(value, -1) < at and not value.is_initializer()
        )
        for at in range(len(nodes) + 1)
    ]
    bounds = [0]
    while bounds[-1] < len(nodes):
        bounds.append(_next_cut(nodes, bounds[-1], crossing, layers))
    return tuple(_block(nodes[start:end], end, last_use, made) for start, end in pairwise(bounds))


def _next_cut(nodes: Sequence[ir.Node], start: int, crossing: Sequence[int], layers: int) -> int:
    seen = 0
    possible = []
    for at in range(start, len(nodes)):
        if is_linear(nodes[at]):
            if seen > 0:
                possible.append(at)
            if seen == layers:
                break
            seen += 1
    else:
        return len(nodes)
    # Of places before a linear layer, the one that fewest tensors cross, and the latest of these.
    return min(possible, key=lambda at: (crossing[at], -at))


def _block(nodes: Sequence[ir.Node], end: int, last_use: dict[ir.Value, int], made: dict[ir.Value, int]) -> Block:
    own = {value for node in nodes for value in node.outputs}
    taken = dict.fromkeys(
        value for node in nodes for value in values_used(node) if value not in own and not value.is_initializer()
    )
    alive = [value for value, use in last_use.items() if use >= end and made.get(value, -1) < end]
    passed = [value for value in alive if not value.is_initializer()]
    outputs = [value for value in passed if value in own]
    return Block(tuple(nodes), _names(taken), _names(outputs), _names(passed))


def _names(values: Sequence[ir.Value] | dict[ir.Value, None]) -> tuple[str, ...]:
    return tuple(value.name for value in values if value.name)
