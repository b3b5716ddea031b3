"""Edit a graph while a format is written: unique names, new initializers, nodes after tensors and before readers."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import ml_dtypes
import numpy as np
import onnx_ir as ir

from quantry.numerics.float8 import CONTAINERS
from quantry.numerics.tensor_params import TensorParams
from quantry.recipe import DataType


class Part(Enum):
    """What an initializer contains of a quantized tensor."""

    SCALE = "scale"
    ZERO_POINT = "zero_point"
    INTEGERS = "integers"


class Origin(NamedTuple):
    """The parameters that an initializer was computed from.

    Attributes:
        part: What it contains.
        tensor: Name of the tensor, as in `QuantParams.tensors`; for integers, also the name of the float initializer.
    """

    part: Part
    tensor: str


ONNX_TYPE: dict[DataType, ir.DataType] = {
    DataType.INT4: ir.DataType.INT4,
    DataType.UINT4: ir.DataType.UINT4,
    DataType.INT8: ir.DataType.INT8,
    DataType.UINT8: ir.DataType.UINT8,
    DataType.INT16: ir.DataType.INT16,
    DataType.UINT16: ir.DataType.UINT16,
    DataType.INT32: ir.DataType.INT32,
    DataType.UINT32: ir.DataType.UINT32,
    DataType.FLOAT16: ir.DataType.FLOAT16,
    DataType.BFLOAT16: ir.DataType.BFLOAT16,
    DataType.FLOAT8E4M3FN: ir.DataType.FLOAT8E4M3FN,
    DataType.FLOAT8E5M2: ir.DataType.FLOAT8E5M2,
}

FIRST_OPSET: dict[DataType, int] = {
    DataType.FLOAT8E4M3FN: 19,
    DataType.FLOAT8E5M2: 19,
    DataType.INT4: 21,
    DataType.UINT4: 21,
    DataType.INT16: 21,
    DataType.UINT16: 21,
}
"""First opset whose QuantizeLinear has the type, if that is later than per-axis int8."""

GROUPS_SINCE_OPSET = 21
"""First opset whose DequantizeLinear has a scale per group of values."""

WIDE_TYPES_SINCE_OPSET: dict[ir.DataType, int] = {ONNX_TYPE[dtype]: opset for dtype, opset in FIRST_OPSET.items()}
"""The same, by ONNX type."""


def as_tensor(values: np.ndarray, dtype: DataType, name: str) -> ir.TensorProtocol:
    """Return integers or 8-bit floats as an ONNX tensor.

    Args:
        values: Levels within the type's range, in any NumPy type.
        dtype: Type of the tensor.
        name: Its name.

    Returns:
        The tensor.
    """
    narrow = {DataType.INT4: ml_dtypes.int4, DataType.UINT4: ml_dtypes.uint4, **CONTAINERS}
    container = narrow[dtype] if dtype in narrow else np.dtype(dtype.value)
    return ir.Tensor(np.ascontiguousarray(values).reshape(values.shape).astype(container), ONNX_TYPE[dtype], name=name)


Attributes = Mapping[str, int | float | str | Sequence[int]]


class GraphEditor:
    """Knows which names are taken and which parameters have been written.

    One editor per graph; the same sequence of calls gives the same names, so the same plan gives the same bytes.

    Attributes:
        model: The model that is edited.
        values: Inputs and node outputs of the main graph before any edit, by name.
    """

    def __init__(self, model: ir.Model) -> None:
        graph = model.graph
        outputs = (output for node in graph for output in node.outputs)
        self.model = model
        self.values = {value.name: value for value in (*graph.inputs, *outputs) if value.name}
        # Names in subgraphs are taken as well: names are unique across a graph and its subgraphs.
        self._taken = {name for each_graph in model.graphs() for name in _names(each_graph)}
        self._written: dict[str, tuple[ir.Value, ir.Value]] = {}
        self._last: dict[str, ir.Value] = {}
        self._readers: dict[str, frozenset[str]] = {}

    def node(
        self,
        operator: tuple[str, str],
        inputs: Sequence[ir.Value | None],
        name: str,
        attributes: Attributes | None = None,
    ) -> ir.Node:
        """Return a new node with one output; it is not yet in the graph.

        Args:
            operator: Domain and operator type.
            inputs: Its inputs.
            name: Wanted name; the output is named ``<name>_Output``.
            attributes: Its attributes.
        """
        domain, op_type = operator
        node = ir.node(op_type, inputs, attributes=attributes or None, domain=domain, name=self.fresh(name))
        node.outputs[0].name = self.fresh(f"{name}_Output")
        return node

    def initializer(self, tensor: ir.TensorProtocol) -> ir.Value:
        """Register a constant and return its value."""
        shape = ir.Shape(tensor.shape.numpy())
        value = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
        self.model.graph.register_initializer(value)
        return value

    def constant(self, values: np.ndarray, name: str) -> ir.Value:
        """Register an array under a unique name and return its value."""
        return self.initializer(ir.Tensor(values, name=self.fresh(name)))

    def parameters(self, root: str, params: TensorParams) -> tuple[ir.Value, ir.Value]:
        """Return scale and zero point of a tensor, written once for all tensors that share them.

        Args:
            root: Name of the tensor that the parameters belong to.
            params: The parameters.
        """
        if root not in self._written:
            scale_name, zero_name = self.fresh(f"{root}_scale"), self.fresh(f"{root}_zero_point")
            scale = ir.Tensor(np.asarray(params.scale, np.float32), name=scale_name)
            zero_point = as_tensor(np.asarray(params.zero_point), params.dtype, zero_name)
            self._written[root] = (self.initializer(scale), self.initializer(zero_point))
        return self._written[root]

    def branch(self, name: str, tensor: str, readers: Collection[str]) -> None:
        """Name what some readers of a tensor read, so that nodes can be inserted before these readers only.

        Args:
            name: The name; `insert_after` and `values` accept it from now on.
            tensor: Name of a tensor after which nodes were inserted.
            readers: Names of the nodes; the empty name stands for the model's output.
        """
        self.values[name] = self._last[tensor]
        self._readers[name] = frozenset(readers)

    def insert_after(self, tensor: str, chain: Sequence[ir.Node]) -> None:
        """Insert nodes after a tensor and connect every reader to the last one's output.

        A graph output keeps its name: the last node's output gets it.

        Args:
            tensor: Name of an input, a node output or a branch; for a branch, only its readers are connected. The
                first node of the chain already reads it.
            chain: The nodes, in order.
        """
        value = self.values[tensor]
        last = chain[-1].outputs[0]
        chain_nodes = set(chain)
        producer = value.producer()
        if producer is None:
            self.model.graph.insert_before(self.model.graph[0], chain)
        else:
            self.model.graph.insert_after(producer, chain)
        readers = self._readers.get(tensor)
        for use in tuple(value.uses()):
            if use.node not in chain_nodes and (readers is None or use.node.name in readers):
                use.node.replace_input_with(use.idx, last)
        self._last[tensor] = last
        # An input that is also an output is returned unchanged: callers feed and read it by that name.
        if value.is_graph_output() and producer is not None and (readers is None or "" in readers):
            self._hand_output_name_over(value, last)

    def replace_constant(
        self, name: str, users: frozenset[str] | None, restore: Callable[[ir.Value], Sequence[ir.Node]]
    ) -> None:
        """Connect readers of an initializer to the output of a chain of nodes instead.

        Args:
            name: Name of the float initializer; it is removed if it has no other reader.
            users: Names of the nodes to rewire; None rewires all.
            restore: Returns the nodes that replace the initializer, in order.
        """
        graph = self.model.graph
        value = graph.initializers[name]
        # A reader inside a body keeps the float constant unless the plan names it.
        uses = [use for use in value.uses() if (use.node.graph is graph if users is None else use.node.name in users)]
        chain = restore(value)
        anchor = uses[0].node if len(uses) == 1 and uses[0].node.graph is graph else graph[0]
        graph.insert_before(anchor, chain)
        for use in uses:
            use.node.replace_input_with(use.idx, chain[-1].outputs[0])
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]

    def lazy(
        self,
        stem: str,
        source: ir.Value | Sequence[int],
        dtype: ir.DataType,
        make: Callable[[str], ir.TensorProtocol],
    ) -> ir.Value:
        """Register an initializer whose data is computed when it is written.

        In a model with many gigabytes of weights, only one tensor is then in memory at a time.

        Args:
            stem: Wanted name.
            source: The constant it is computed from, which has the same shape; or the shape itself.
            dtype: Element type.
            make: Returns the tensor for the final name.
        """
        name = self.fresh(stem)
        if isinstance(source, ir.Value):
            assert source.const_value is not None
            source = source.const_value.shape.numpy()
        shape = ir.Shape(source)
        return self.initializer(ir.LazyTensor(lambda: make(name), dtype, shape, name=name))

    def fresh(self, stem: str) -> str:
        """Return the name, with a number appended if it is taken."""
        name, count = stem, 1
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}"
        self._taken.add(name)
        return name

    def _hand_output_name_over(self, value: ir.Value, last: ir.Value) -> None:
        outputs = self.model.graph.outputs
        name = value.name
        value.name = self.fresh(f"{name}_QuantizeLinear_Input")
        last.name = name
        for index, output in enumerate(outputs):
            if output is value:
                outputs[index] = last


def _names(graph: ir.Graph) -> Iterator[str]:
    """Yield every name that a graph uses for a value or a node."""
    values = (*graph.inputs, *graph.initializers.values(), *(output for node in graph for output in node.outputs))
    yield from (value.name for value in values if value.name)
    yield from (node.name for node in graph if node.name)


def describe(value: ir.Value, dtype: ir.DataType, shape: ir.Shape | None) -> ir.Value:
    """Set type and shape of a value and return it."""
    value.type = ir.TensorType(dtype)
    value.shape = shape.copy() if shape is not None else None
    return value
