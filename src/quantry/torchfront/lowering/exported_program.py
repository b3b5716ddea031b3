"""The ``torch.export.ExportedProgram`` of a captured graph, from which torch's exporter starts."""

import warnings
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import fx
from torch.export import Dim, ExportedProgram, ShapesCollection
from torch.utils._pytree import tree_leaves, tree_unflatten

from quantry.errors import ModelError

# Saves exporting a graph a second time, which takes as long as its capture.
_PROGRAMS: "WeakKeyDictionary[fx.GraphModule, tuple[str, ExportedProgram]]" = WeakKeyDictionary()
"""The programs of captured graphs, with the text of each graph at its capture.

Not an attribute of the graph: a program cannot be pickled, but a captured graph may be part of a model that is.
"""


def store_program(graph: fx.GraphModule, program: ExportedProgram) -> None:
    """Keep the program that a graph was made from, so that `program_of` need not export it again."""
    _PROGRAMS[graph] = str(graph.graph), program


def program_of(graph: fx.GraphModule) -> ExportedProgram:
    """Return the program of a captured graph; one that was changed since its capture is exported again.

    Raises:
        ModelError: The graph does not come from torch.export.
    """
    text, program = _PROGRAMS.get(graph, ("", None))
    if program is not None and text == str(graph.graph):
        return program
    arguments, keywords = _example(graph)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        program = torch.export.export(graph, arguments, keywords, dynamic_shapes=_dynamic(graph, arguments, keywords))
    store_program(graph, program)
    return program


def shapes_of(tensors: list[tuple[torch.Tensor, list[int]]]) -> ShapesCollection | None:
    """Return which axes of which tensors are dynamic in torch's form; with AUTO, torch still fixes what a model fixes.

    torch matches the tensors of a collection with the arguments itself, also those of ``forward(*args)``.
    """
    shapes = ShapesCollection()
    for tensor, axes in tensors:
        if axes:
            shapes[tensor] = dict.fromkeys(axes, Dim.AUTO)
    return shapes if len(shapes) else None


def node_meta(node: Any) -> Any:
    """Return the fake tensor that the capture recorded for a node.

    Raises:
        ModelError: Nothing was recorded.
    """
    if isinstance(node, fx.Node) and "val" in node.meta:
        return node.meta["val"]
    raise ModelError(
        f"a graph must have the shapes that a capture records, got none for {node}; capture the model with "
        "quantry.torch.capture(model, example)"
    )


def _example(graph: fx.GraphModule) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments with the shapes of the capture."""
    called = [node for node in graph.graph.nodes if node.op == "call_module" and node.users]
    if called:
        raise ModelError(
            f"a captured graph must consist of operators, got a call of module {called[0].target!r}; capture the model "
            "with quantry.torch.capture(model, example)"
        )
    leaves = [_real(node_meta(node)) for node in graph.graph.nodes if node.op == "placeholder"]
    signature = getattr(graph.graph._codegen, "pytree_info", None)
    if signature is None or signature.in_spec is None:
        return tuple(leaves), {}
    arguments, keywords = tree_unflatten(leaves, signature.in_spec)
    return tuple(arguments), dict(keywords)


def _real(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    sizes = [size if isinstance(size, int) else int(size.node.hint) for size in value.shape]
    return torch.zeros(sizes, dtype=value.dtype, device=value.device)


def _dynamic(graph: fx.GraphModule, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> ShapesCollection | None:
    recorded = [node_meta(node) for node in graph.graph.nodes if node.op == "placeholder"]
    return shapes_of(
        [
            (leaf, [axis for axis, size in enumerate(fake.shape) if not isinstance(size, int)])
            for leaf, fake in zip(tree_leaves((arguments, keywords)), recorded, strict=True)
            if isinstance(leaf, torch.Tensor)
        ]
    )
