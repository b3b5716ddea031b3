"""Reads operator calls of a captured graph and writes ONNX nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import fx

from quantry.errors import ModelError


class Call:
    """The arguments of one operator call by the names of its schema, as values of the ONNX graph.

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
        """Return an argument, or the default if there is no such argument or it is None."""
        found = self._values.get(name)
        return default if found is None else found

    @property
    def first(self) -> Any:
        """The first argument, whatever its name."""
        return next(iter(self._values.values()))

    def meta(self, name: str) -> torch.Tensor:
        """Return a fake tensor with shape and type of an argument, as recorded by the capture."""
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


Attributes = Mapping[str, int | float | str | Sequence[int] | Sequence[float]]

ONNX_TYPES: dict[torch.dtype, ir.DataType] = {
    torch.float32: ir.DataType.FLOAT,
    torch.float64: ir.DataType.DOUBLE,
    torch.float16: ir.DataType.FLOAT16,
    torch.bfloat16: ir.DataType.BFLOAT16,
    torch.int64: ir.DataType.INT64,
    torch.int32: ir.DataType.INT32,
    torch.int16: ir.DataType.INT16,
    torch.int8: ir.DataType.INT8,
    torch.uint8: ir.DataType.UINT8,
    torch.bool: ir.DataType.BOOL,
}
"""The types that torch and ONNX share."""


@dataclass(frozen=True)
class Dimension:
    """A size that is known only at run time.

    Attributes:
        value: int64 [1].
    """

    value: ir.Value


class GraphWriter:
    """Collects nodes and initializers. Names follow the captured nodes, so that users recognize them.

    Attributes:
        nodes: Nodes in order.
        initializers: Constants by name.
    """

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []
        self.initializers: dict[str, ir.Value] = {}
        self._taken: set[str] = set()
        self._named: set[ir.Value] = set()
        self._prefix = ""
        self._scope = ""

    def enter(self, name: str, scope: str) -> None:
        """Start writing the nodes of one captured node.

        Args:
            name: Its name.
            scope: Dotted path of the module it belongs to; empty for the root.
        """
        self._prefix, self._scope = name, scope

    def op(self, operator: str, inputs: Sequence[ir.Value | None], attributes: Attributes | None = None) -> ir.Value:
        """Write a node with one output and return the output."""
        return self.multi(operator, inputs, 1, attributes)[0]

    def multi(
        self,
        operator: str,
        inputs: Sequence[ir.Value | None],
        outputs: int,
        attributes: Attributes | None = None,
        *,
        domain: str = "",
    ) -> list[ir.Value]:
        """Write a node and return its outputs."""
        label = self.fresh(f"{self._prefix}_{operator.lower()}")
        values = [ir.Value(name=label if outputs == 1 else self.fresh(f"{label}_{i}")) for i in range(outputs)]
        path = f"{self._scope}/{label}" if self._scope else label
        node = ir.node(
            operator, list(inputs), attributes=dict(attributes or {}), outputs=values, name=path, domain=domain
        )
        self.nodes.append(node)
        return list(node.outputs)

    def constant(self, array: Any, dtype: Any = np.float32, name: str | None = None) -> ir.Value:
        """Return an initializer with the values of an array or a number."""
        label = self.fresh(name or f"{self._prefix}_constant")
        data = np.ascontiguousarray(array, dtype=dtype).reshape(np.shape(array))
        return self.tensor(ir.Tensor(data, name=label))

    def tensor(self, tensor: ir.TensorProtocol) -> ir.Value:
        """Return a tensor as an initializer of its name."""
        assert tensor.name is not None
        value = ir.Value(
            name=tensor.name,
            shape=ir.Shape(tensor.shape.numpy()),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        self._taken.add(tensor.name)
        self.initializers[tensor.name] = value
        return value

    def ints(self, values: Sequence[int]) -> ir.Value:
        """Return an int64 vector as an initializer."""
        return self.constant(np.asarray(values, np.int64), np.int64)

    def sizes(self, values: Sequence[int | Dimension]) -> ir.Value:
        """Return a shape, some of whose sizes may be known only at run time."""
        if all(isinstance(value, int) for value in values):
            return self.ints([value for value in values if isinstance(value, int)])
        parts = [value.value if isinstance(value, Dimension) else self.ints([value]) for value in values]
        return self.op("Concat", parts, {"axis": 0})

    def cast(self, value: ir.Value, dtype: torch.dtype) -> ir.Value:
        """Write a Cast to another type."""
        return self.op("Cast", [value], {"to": int(ONNX_TYPES[dtype])})

    def name(self, value: ir.Value, name: str) -> None:
        """Give the result of a captured node that node's name."""
        if name not in self._taken and value.producer() is not None and value not in self._named:
            self._taken.add(name)
            self._named.add(value)
            value.name = name

    def fresh(self, name: str) -> str:
        """Return the name, with a number appended if it is already used."""
        candidate, count = name, 0
        while candidate in self._taken:
            count += 1
            candidate = f"{name}_{count}"
        self._taken.add(candidate)
        return candidate
