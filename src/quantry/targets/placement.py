"""What runs where: the table of a model's nodes on a target, with the reason for each that fell back."""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

from quantry.errors import ModelError
from quantry.graph.load import ModelLike, model_source
from quantry.graph.save import serialize
from quantry.runtime.sessions import SessionModel
from quantry.targets.arithmetic import require_backend
from quantry.targets.backends import PlacedNode
from quantry.targets.backends.backend import Arrays
from quantry.targets.check import check_model
from quantry.targets.registry import find_target
from quantry.targets.rules import Violation
from quantry.targets.target import Target


@dataclass(frozen=True)
class Placement:
    """What became of every node of a model on a target.

    Attributes:
        target: Name of the target.
        device: The device that nodes should run on.
        nodes: One entry per node.
        violations: The rules that the model breaks.
    """

    target: str
    device: str
    nodes: tuple[PlacedNode, ...]
    violations: tuple[Violation, ...] = ()

    @cached_property
    def elsewhere(self) -> tuple[PlacedNode, ...]:
        """The nodes that run on another device."""
        return tuple(entry for entry in self.nodes if entry.device and entry.device != self.device)

    @property
    def rows(self) -> tuple[dict[str, str], ...]:
        """One row per node for tables, by heading."""
        return tuple(
            {
                "node": entry.node,
                "operator": entry.operator,
                "kernel": entry.kernel,
                "fused into": "" if entry.unit in ("", entry.node) else entry.unit,
                "precision": entry.precision,
                "device": entry.device,
                "ms": "" if entry.milliseconds is None else f"{entry.milliseconds:.3f}",
                "why not": entry.why,
            }
            for entry in self.nodes
        )

    @property
    def summary(self) -> str:
        """One line: how many nodes run where, in which precision."""
        counts = Counter(
            f"{entry.device} {entry.precision}".strip() if entry.device else "removed" for entry in self.nodes
        )
        return f"{len(self.nodes)} nodes: " + ", ".join(f"{count} {device}" for device, count in counts.most_common())


def place(model: ModelLike, target: Target | str, feeds: Arrays) -> Placement:
    """Return what becomes of every node of a model on a target.

    Args:
        model: A model, quantized or not.
        target: The target or its name; it must have a backend.
        feeds: One sample, by input name.

    Raises:
        RecipeError: Only the rules of the target are known.
        ModelError: The model cannot be read.
    """
    deployed = find_target(target)
    backend = require_backend(deployed)
    try:
        broken = check_model(model, deployed)
    except ModelError:
        # A float model breaks no rule of a quantized one.
        broken = ()
    nodes = backend.placement(_loadable(model), feeds)
    return Placement(deployed.name, backend.device, _with_rules(nodes, broken, backend.device), broken)


def _loadable(model: ModelLike) -> SessionModel:
    source = model_source(model).load()
    return serialize(source)


def _with_rules(nodes: tuple[PlacedNode, ...], broken: tuple[Violation, ...], device: str) -> tuple[PlacedNode, ...]:
    """Return the nodes with the rule as reason where a rule explains that a node runs elsewhere."""
    by_node = {violation.node: violation for violation in reversed(broken)}
    dynamic_shapes = next((violation for violation in broken if violation.rule == "static shapes"), None)
    table = []
    for entry in nodes:
        rule = dynamic_shapes or by_node.get(entry.node)
        if entry.device and entry.device != device and rule is not None:
            entry = replace(entry, why=f"rule {rule.rule!r}: {rule.values}; {rule.consequence}")  # noqa: PLW2901
        table.append(entry)
    return tuple(table)
