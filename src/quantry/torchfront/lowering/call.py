"""One operator call of a captured graph, its arguments by the names of its schema."""

from typing import Any

import torch
from torch import fx

from quantry.errors import ModelError


class Call:
    """Arguments of one node; nodes among them are replaced by what stands for them in the graph that is written.

    Attributes:
        node: The node of the captured graph.
    """

    def __init__(self, node: fx.Node, resolve: Any) -> None:
        self.node = node
        names = [argument.name for argument in node.target._schema.arguments]
        given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
        self._sources = {
            argument.name: given.get(argument.name, argument.default_value if argument.has_default_value() else None)
            for argument in node.target._schema.arguments
        }
        self._values = {name: fx.map_arg(source, resolve) for name, source in self._sources.items()}

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument, or the default where the operator has none of that name or it is None."""
        found = self._values.get(name)
        return default if found is None else found

    @property
    def first(self) -> Any:
        """The first argument, whatever its name."""
        return next(iter(self._values.values()))

    def meta(self, name: str) -> torch.Tensor:
        """Return shape and type of a tensor argument, as the capture saw it."""
        return meta_of(self._sources[name])

    @property
    def first_meta(self) -> torch.Tensor:
        """Shape and type of the first argument."""
        return meta_of(next(iter(self._sources.values())))

    @property
    def result(self) -> torch.Tensor:
        """Shape and type of the result."""
        return meta_of(self.node)

    def rank(self, name: str = "input") -> int:
        """Return the number of axes of a tensor argument."""
        return int((self.meta(name) if name in self._sources else self.first_meta).dim())


def meta_of(node: Any) -> Any:
    """Return what the capture recorded of a node's value.

    Raises:
        ModelError: Nothing was recorded.
    """
    if isinstance(node, fx.Node) and "val" in node.meta:
        return node.meta["val"]
    raise ModelError(
        f"a graph must carry the shapes that a capture records, got none for {node}; capture the model with "
        "quantry.torch.capture(model, example)"
    )


def fixed(sizes: Any, what: str, node: fx.Node) -> list[int]:
    """Return sizes as plain numbers.

    Raises:
        ModelError: One of them depends on the input's shape.
    """
    if not all(isinstance(size, int) for size in sizes):
        raise ModelError(
            f"{what} must be fixed numbers, got {list(sizes)} in {node.target} ({node.name}); capture the model with "
            "an example of the size it is deployed with"
        )
    return list(sizes)
