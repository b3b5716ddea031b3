"""Parts of the user's model that stay float, by the names the user knows them by."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from quantry.errors import RecipeError, SelectionError
from quantry.plan.selection import meant, name_pattern
from quantry.recipe.checked import KnownArguments
from quantry.torchfront.lowering import Scope


@dataclass(frozen=True)
class FloatScopes(KnownArguments):
    """What is left in float.

    Attributes:
        modules: Dotted paths of submodules, with ``*`` for anything, or starting with ``^`` regular expressions;
            everything inside stays float.
        types: Module classes or their names; every instance stays float, with all inside it.
        tensors: Names of tensors, as in the captured graph and written alike; the operator that makes each stays float.
    """

    modules: tuple[str, ...] = ()
    types: tuple[Any, ...] = ()
    tensors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("modules", "types", "tensors"):
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, str | type) else tuple(given))


def nodes_in(scopes: FloatScopes, where: Mapping[str, Scope], model: ir.Model) -> tuple[str, ...]:
    """Return the names of the nodes that stay float.

    Args:
        scopes: What is left in float.
        where: Where each node comes from, by its name.
        model: The prepared model; nodes that folding has removed need no mention.

    Raises:
        RecipeError: It is something else.
        SelectionError: An entry names nothing.
    """
    if not isinstance(scopes, FloatScopes):
        raise RecipeError(
            f"float_scopes must be FloatScopes(modules=..., types=..., tensors=...), got {scopes!r}; in quantize_graph"
        )
    present = {node.name or "": node for node in model.graph}
    chosen: dict[str, None] = {}
    for path in scopes.modules:
        is_meant = name_pattern(path, "FloatScopes.modules")
        hits = [name for name, scope in where.items() if any(map(is_meant, _around(scope.path)))]
        paths = (outer for scope in where.values() for outer in _around(scope.path))
        chosen |= dict.fromkeys(_checked(path, hits, paths, "module"))
    for kind in scopes.types:
        label = kind if isinstance(kind, str) else kind.__name__
        hits = [name for name, scope in where.items() if label in scope.classes]
        classes = (entry for scope in where.values() for entry in scope.classes)
        chosen |= dict.fromkeys(_checked(label, hits, classes, "module class"))
    makers = {output.name or "": name for name, node in present.items() for output in node.outputs}
    for tensor in scopes.tensors:
        is_meant = name_pattern(tensor, "FloatScopes.tensors")
        hits = [maker for name, maker in makers.items() if is_meant(name)]
        chosen |= dict.fromkeys(_checked(tensor, hits, makers, "tensor"))
    return tuple(name for name in chosen if name in present)


def _around(path: str) -> list[str]:
    """Return the path and those of the modules around it."""
    parts = path.split(".")
    return [".".join(parts[: depth + 1]) for depth in range(len(parts))]


def _checked(entry: str, hits: list[str], known: Iterable[str], kind: str) -> list[str]:
    if not hits:
        names = sorted(set(known) - {""})
        raise SelectionError(
            f"every float scope must name a {kind} of the captured model, got {entry!r}"
            f"{meant(entry, names)}; it has {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
        )
    return hits
