"""Which of the user's modules a node of a captured graph comes from."""

from dataclasses import dataclass

from torch import fx


@dataclass(frozen=True)
class Scope:
    """The part of the user's model that a node comes from.

    Attributes:
        path: Dotted path of the module; empty for the root.
        classes: Names of the modules' classes, outermost first.
        outside: Whether the node stays float because of the model's quantization marks; see `quant_stubs`.
    """

    path: str
    classes: tuple[str, ...]
    outside: bool = False

    @property
    def paths(self) -> list[str]:
        """The path and those of the modules around it, outermost first; none for the root."""
        names = self.path.split(".") if self.path else []
        return [".".join(names[: depth + 1]) for depth in range(len(names))]


def scope_of(node: fx.Node) -> Scope:
    """Return the scope that a capture recorded for a node."""
    stack = node.meta.get("nn_module_stack") or {}
    entries = [entry for entry in stack.values() if isinstance(entry, tuple) and "metadata_hook" not in entry[0]]
    classes = tuple(str(kind if isinstance(kind, str) else kind.__name__).rsplit(".", 1)[-1] for _, kind in entries)
    return Scope(entries[-1][0] if entries else "", classes)


def captured_name(node: fx.Node) -> str:
    """Return the name of the captured node that a node of a decomposed program comes from."""
    sources = node.meta.get("from_node") or ()
    return str(sources[-1].name) if sources else node.name
