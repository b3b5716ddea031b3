r"""The type of every tensor: the user's entries for layers and tensors, and conversions where readers disagree.

A tensor and those that share its scale (its reshapes) have one type. If its readers want different types, it gets the
finest one, and the other readers get a Q/DQ pair of their own::

    Conv -> t -> Q int16 -> DQ int16 -> Conv that wants int16
                                   \--> Q int8 -> DQ int8 -> Conv that wants int8

Hardware works the same way: the tensor is written once and converted for readers that need fewer bits.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from quantry.errors import SelectionError
from quantry.graph.quant_plan import ActivationPlan, Conversion, SharedRange
from quantry.plan.selection import matching, meant, name_pattern, of_types
from quantry.recipe import Bias, LayerTypes, TensorSpec, TensorTypes


@dataclass(frozen=True)
class NodeTypes:
    """The types that the user chose for one node; None where nothing was chosen.

    Attributes:
        activation: Type of its inputs.
        second_input: Type of its second input, where it differs.
        output: Type of its outputs.
        weight: Type of its weight.
        bias: Type of its bias.
        float_reason: Why it stays float, or None.
    """

    activation: TensorSpec | None = None
    second_input: TensorSpec | None = None
    output: TensorSpec | None = None
    weight: TensorSpec | None = None
    bias: Bias | None = None
    float_reason: str | None = None

    def input(self, index: int) -> TensorSpec | None:
        """Return the type of a computed input by its place among the node's inputs."""
        return self.second_input or self.activation if index == 1 else self.activation


def types_of_nodes(graph: ir.Graph, layers: Iterable[LayerTypes]) -> dict[str, NodeTypes]:
    """Return the types that entries choose for the nodes they match.

    Args:
        graph: The graph; every node has a unique name.
        layers: The entries; the last one that sets a field of a node wins.

    Returns:
        Node name to types.

    Raises:
        SelectionError: An entry matches no node; a known operator type may be absent.
    """
    nodes = list(ir.traversal.RecursiveGraphIterator(graph))
    types: dict[str, NodeTypes] = {}
    for index, entry in enumerate(layers):
        path = f"plan.layers[{index}]"
        members = [node for name in entry.match for node in matching(nodes, name, f"{path}.match")]
        if entry.operators:
            selected = of_types(nodes, entry.operators, f"{path}.operators")
            members += [node for node in nodes if node in selected]
        for node in members:
            name = node.name or ""
            types[name] = _merged(types.get(name, NodeTypes()), entry, path)
    return types


def _merged(types: NodeTypes, entry: LayerTypes, path: str) -> NodeTypes:
    if entry.keep_float:
        return replace(types, float_reason=f"kept float by {path}")
    return NodeTypes(
        activation=entry.activation or types.activation,
        second_input=entry.second_input or types.second_input,
        output=entry.output or types.output,
        weight=entry.weight or types.weight,
        bias=entry.bias or types.bias,
    )


class TensorPins:
    """The types that the user chose for tensors by name, and which of these entries matched something."""

    def __init__(self, entries: Sequence[TensorTypes]) -> None:
        self._wanted = [
            (name, entry, f"plan.tensors[{index}].match") for index, entry in enumerate(entries) for name in entry.match
        ]
        self._patterns = [name_pattern(name, path) for name, _, path in self._wanted]
        self._used = [False] * len(self._wanted)

    def entry(self, tensor: str) -> TensorTypes | None:
        """Return the last entry that matches a quantized tensor, or None."""
        last_match = None
        for index, (pattern, (_, entry, _)) in enumerate(zip(self._patterns, self._wanted, strict=True)):
            if pattern(tensor):
                self._used[index] = True
                last_match = entry
        return last_match

    def spec(self, tensor: str) -> TensorSpec | None:
        """Return the type that the last matching entry chooses for a quantized tensor, or None."""
        entry = self.entry(tensor)
        return None if entry is None else entry.spec

    def check_all_used(self, quantized: Iterable[str]) -> None:
        """Raise if an entry matched nothing.

        Args:
            quantized: Names of all quantized tensors, for the nearest spelling.

        Raises:
            SelectionError: An entry matched no quantized tensor.
        """
        for (name, entry, path), used in zip(self._wanted, self._used, strict=True):
            if not used and not entry.optional:
                names = list(quantized)
                raise SelectionError(
                    f"{path} must name quantized tensors, got {name!r}, which matches none of {len(names)}"
                    f"{meant(name, names)}"
                )


@dataclass(frozen=True)
class Read:
    """One quantized input of one node.

    Attributes:
        node: Name of the node.
        tensor: Name of the input.
        wanted: The type that the user chose for the inputs of this node, or None.
        moves: Whether the node only copies values, which works with every type.
    """

    node: str
    tensor: str
    wanted: TensorSpec | None
    moves: bool


@dataclass(frozen=True)
class Resolution:
    """Types of all activations.

    Attributes:
        activations: The plan of each tensor, with its final type.
        conversions: Further Q/DQ pairs by name.
        read_as: From node and tensor to the conversion that the node reads; other nodes read the tensor itself.
    """

    activations: Mapping[str, ActivationPlan]
    conversions: Mapping[str, Conversion] = field(default_factory=dict)
    read_as: Mapping[tuple[str, str], str] = field(default_factory=dict)


def resolve_types(
    activations: Mapping[str, ActivationPlan],
    reads: Iterable[Read],
    written: Mapping[str, TensorSpec],
    pinned: Callable[[str], TensorTypes | None],
) -> Resolution:
    """Return the type of every activation and the conversions between them.

    Args:
        activations: The plan of each tensor so far, with the type that the whole model has.
        reads: Which node reads which tensor.
        written: Output types that the user chose, by tensor.
        pinned: Returns the types that the user chose for a tensor by name, or None.

    Raises:
        SelectionError: A node that is to read a converted tensor does not read it.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for tensor, plan in activations.items():
        groups[plan.source if isinstance(plan, SharedRange) else tensor].append(tensor)
    reads_of: dict[str, list[Read]] = defaultdict(list)
    for read in reads:
        if read.tensor in activations:
            reads_of[read.tensor].append(read)
    final = dict(activations)
    splits: dict[tuple[str, TensorSpec], list[str]] = defaultdict(list)
    for root, members in groups.items():
        plan_entry = activations[root]
        assert not isinstance(plan_entry, SharedRange)
        members_reads = [read for member in members for read in reads_of[member]]
        entries = [(member, entry) for member in members if (entry := pinned(member)) is not None]
        pins = [entry.spec for _, entry in entries]
        outputs = [written[member] for member in members if member in written]
        spec_of_tensor, follow = _chosen(pins, outputs, members_reads, plan_entry.spec)
        final[root] = replace(plan_entry, spec=spec_of_tensor)
        for read in members_reads if not pins else ():
            target = read.wanted if follow or read.moves else read.wanted or plan_entry.spec
            if target is not None and target != spec_of_tensor:
                splits[read.tensor, target].append(read.node)
        for member, entry in entries:
            if entry.convert is not None:
                splits[member, entry.convert] += _converted_readers(member, entry, reads_of[member])
    return _with_names(final, splits)


def _converted_readers(tensor: str, entry: TensorTypes, reads: list[Read]) -> list[str]:
    """Return the nodes that read a converted tensor, with the empty name for the model's output if all nodes do."""
    nodes = list(dict.fromkeys(read.node for read in reads))
    for name in entry.readers:
        if name not in nodes:
            raise SelectionError(
                f"plan.tensors of {tensor!r} must name readers of the tensor, got {name!r}; it is read by "
                f"{', '.join(map(repr, nodes)) or 'no quantized node'}{meant(name, nodes)}"
            )
    return [*nodes, ""] if not entry.readers or set(entry.readers) >= set(nodes) else list(entry.readers)


def _chosen(
    pins: list[TensorSpec], outputs: list[TensorSpec], reads: list[Read], default: TensorSpec
) -> tuple[TensorSpec, bool]:
    """Return the type of a tensor, and whether it also applies to readers without a choice of their own."""
    if pins:
        return pins[-1], True
    if outputs:
        return finest(outputs), True
    specs = [read.wanted or default for read in reads if read.wanted is not None or not read.moves]
    return (finest(specs), False) if specs else (default, True)


def finest(specs: Iterable[TensorSpec]) -> TensorSpec:
    """Return the type with the most bits; integers win over floats of the same size, then the first wins."""
    return max(specs, key=lambda spec: (spec.dtype.bits, spec.dtype.is_integer))


def _with_names(final: dict[str, ActivationPlan], splits: Mapping[tuple[str, TensorSpec], list[str]]) -> Resolution:
    conversions: dict[str, Conversion] = {}
    read_as: dict[tuple[str, str], str] = {}
    for (tensor, spec), readers in splits.items():
        requested = f"{tensor}_{spec.dtype.value}"
        name, count = requested, 1
        while name in final or name in conversions:
            count += 1
            name = f"{requested}_{count}"
        conversions[name] = Conversion(tensor, spec, tuple(dict.fromkeys(readers)))
        read_as.update({(reader, tensor): name for reader in readers})
    return Resolution(final, conversions, read_as)
