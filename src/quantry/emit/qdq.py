"""Standard ONNX: QuantizeLinear and DequantizeLinear around float operators.

For a tensor ``t``::

    before    producer -> t -> consumers
    after     producer -> t -> t_QuantizeLinear -> t_DequantizeLinear -> consumers

For a weight ``w``: the integers are stored as ``w_quantized`` and ``w_DequantizeLinear`` feeds the consumers. The names
are those onnxruntime and AMD Quark give, so that tools which look for them find them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from quantry.emit.element_type import ONNX_TYPE, as_tensor
from quantry.plan import QuantPlan
from quantry.scale import QuantParams, TensorParams, quantize_array

# onnxruntime 1.27 to 1.31 move an int8 DequantizeLinear through these operators and then refuse the model when nothing
# quantizes behind them (opset 21 and later). The com.microsoft twins of Q and DQ are not touched by that rewrite.
_MOVED_BY_RUNTIME = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Gather", "MaxPool", "Expand", "Split", "Tile"}
)
_REWRITE_SINCE_OPSET = 21
_CONTRIB = "com.microsoft"


def emit_qdq(model: ir.Model, plan: QuantPlan, params: QuantParams) -> None:
    """Insert the pairs and the integer weights into the model, in place.

    Args:
        model: A copy of the float model that may be edited.
        plan: Which tensors.
        params: With which scales and zero points.
    """
    writer = _Writer(model, plan, params)
    for tensor in plan.activations:
        writer.write_pair(tensor)
    for name, weight in plan.weights.items():
        writer.write_constant(name, frozenset(weight.users))
    for name in plan.biases:
        writer.write_constant(name, None)
    writer.finish()


@dataclass
class _Writer:
    """Edits one graph; knows which names are taken and which parameters are written."""

    model: ir.Model
    plan: QuantPlan
    params: QuantParams
    values: dict[str, ir.Value] = field(init=False)
    taken: set[str] = field(init=False)
    closed: frozenset[str] = field(init=False)
    written: dict[str, tuple[ir.Value, ir.Value]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.model.graph
        outputs = (output for node in graph for output in node.outputs)
        self.values = {value.name: value for value in (*graph.inputs, *outputs) if value.name}
        self.closed = frozenset(self.plan.quantized_nodes)
        self.taken = {*self.values, *graph.initializers, *(node.name for node in graph if node.name)}

    def write_pair(self, tensor: str) -> None:
        """Put a Q/DQ pair behind a tensor and rewire every reader."""
        value = self.values[tensor]
        params = self.params.tensors[tensor]
        uses = tuple(value.uses())
        scale, zero_point = self._parameters(self.plan.root(tensor), params)
        domain = _CONTRIB if self._needs_contrib([use.node for use in uses], params) else ""
        quantize = ir.node(
            "QuantizeLinear", [value, scale, zero_point], domain=domain, name=self._fresh(f"{tensor}_QuantizeLinear")
        )
        restore = ir.node(
            "DequantizeLinear",
            [quantize.outputs[0], scale, zero_point],
            domain=domain,
            name=self._fresh(f"{tensor}_DequantizeLinear"),
        )
        integers, floats = quantize.outputs[0], restore.outputs[0]
        # Types and shapes of the new tensors follow from the operators; writing them would double a small model's size.
        integers.name = self._fresh(f"{tensor}_QuantizeLinear_Output")
        floats.name = self._fresh(f"{tensor}_DequantizeLinear_Output")
        self._insert_behind(value, (quantize, restore))
        for use in uses:
            use.node.replace_input_with(use.idx, floats)
        if value.is_graph_output():
            self._hand_output_name_over(value, floats)

    def write_constant(self, name: str, users: frozenset[str] | None) -> None:
        """Store an initializer as integers and rewire its readers.

        Args:
            name: Name of the float initializer.
            users: Names of the nodes to rewire; None rewires all.
        """
        graph = self.model.graph
        value = graph.initializers[name]
        source = value.const_value
        assert source is not None
        params = self.params.tensors[name]
        # The plan speaks of the main graph; a reader inside a subgraph keeps the float constant.
        uses = [use for use in value.uses() if use.node.graph is graph and (users is None or use.node.name in users)]
        stored_name = self._fresh(f"{name}_quantized")

        def integers() -> ir.TensorProtocol:
            return as_tensor(quantize_array(source.numpy(), params), params.dtype, stored_name)

        # Lazy: of a model with many gigabytes of weights, only one tensor is in memory while it is written.
        lazy = ir.LazyTensor(integers, ONNX_TYPE[params.dtype], ir.Shape(source.shape.numpy()), name=stored_name)
        stored = self._initializer(lazy)
        scale, zero_point = self._parameters(name, params)
        attributes = {"axis": params.axis} if params.axis is not None else {}
        restore = ir.node(
            "DequantizeLinear",
            [stored, scale, zero_point],
            attributes=attributes,
            name=self._fresh(f"{name}_DequantizeLinear"),
        )
        restore.outputs[0].name = self._fresh(f"{name}_DequantizeLinear_Output")
        anchor = uses[0].node if len(uses) == 1 else graph[0]
        graph.insert_before(anchor, restore)
        for use in uses:
            use.node.replace_input_with(use.idx, restore.outputs[0])
        if not value.uses():
            del graph.initializers[name]

    def finish(self) -> None:
        """Import the domains that were used."""
        if any(node.domain == _CONTRIB for node in self.model.graph):
            self.model.opset_imports.setdefault(_CONTRIB, 1)

    def _parameters(self, root: str, params: TensorParams) -> tuple[ir.Value, ir.Value]:
        if root not in self.written:
            scale_name, zero_name = self._fresh(f"{root}_scale"), self._fresh(f"{root}_zero_point")
            scale = ir.Tensor(np.asarray(params.scale, np.float32), name=scale_name)
            zero_point = as_tensor(np.asarray(params.zero_point), params.dtype, zero_name)
            self.written[root] = (self._initializer(scale), self._initializer(zero_point))
        return self.written[root]

    def _initializer(self, tensor: ir.TensorProtocol) -> ir.Value:
        value = ir.Value(name=tensor.name, const_value=tensor)
        self.model.graph.register_initializer(value)
        return value

    def _needs_contrib(self, readers: Iterable[ir.Node], params: TensorParams) -> bool:
        if self.model.opset_imports[""] < _REWRITE_SINCE_OPSET or ONNX_TYPE[params.dtype] != ir.DataType.INT8:
            return False
        return any(node.op_type in _MOVED_BY_RUNTIME and node.name not in self.closed for node in readers)

    def _insert_behind(self, value: ir.Value, nodes: tuple[ir.Node, ...]) -> None:
        producer = value.producer()
        if producer is None:
            self.model.graph.insert_before(self.model.graph[0], nodes)
        else:
            self.model.graph.insert_after(producer, nodes)

    def _hand_output_name_over(self, value: ir.Value, floats: ir.Value) -> None:
        outputs = self.model.graph.outputs
        name = value.name
        value.name = self._fresh(f"{name}_QuantizeLinear_Input")
        floats.name, floats.type, floats.shape = name, value.type, value.shape
        for index, output in enumerate(outputs):
            if output is value:
                outputs[index] = floats

    def _fresh(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self.taken:
            count += 1
            name = f"{wanted}_{count}"
        self.taken.add(name)
        return name
