"""Which nodes of the graph are quantized at all."""

from dataclasses import dataclass

from quantry.recipe.checked import Checked


@dataclass(frozen=True)
class Subgraph(Checked):
    """All nodes on a path from one of ``starts`` to one of ``ends``, both included.

    Attributes:
        starts: Names of the first nodes.
        ends: Names of the last nodes.
    """

    starts: tuple[str, ...]
    ends: tuple[str, ...]


@dataclass(frozen=True)
class Selection(Checked):
    """Where quantization applies. Empty means no restriction.

    A node is named by its own name or by the name of one of its outputs, in which ``*`` stands for anything. A name or
    an operator type that starts with ``^`` is a regular expression that must match from the start. Every entry must
    match at least one node; an entry that matches nothing is an error, because a misspelt exclusion would quantize
    silently. Only a type in ``operators`` that quantry knows may be absent.

    Attributes:
        input_nodes: Quantization starts at these nodes: every node they depend on stays float.
        output_nodes: Quantization ends at these nodes: every node that depends on them stays float.
        operators: Only these operator types.
        include: Only these nodes.
        exclude: Not these nodes.
        exclude_operators: Not these operator types.
        exclude_subgraphs: Nothing on the paths these name.
    """

    input_nodes: tuple[str, ...] = ()
    output_nodes: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    exclude_operators: tuple[str, ...] = ()
    exclude_subgraphs: tuple[Subgraph, ...] = ()
