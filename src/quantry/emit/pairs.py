r"""Write Q/DQ pairs and integer weights in any dialect.

For a tensor ``t``::

    before    producer -> t -> consumers
    after     producer -> t -> t_QuantizeLinear -> t_DequantizeLinear -> consumers

For a weight ``w``, the integers are stored as ``w_quantized``, and ``w_DequantizeLinear`` feeds the consumers. The
names are those of onnxruntime and AMD Quark, so tools that look for them find them.

`dedicate_pairs` writes one Q/DQ pair per reader instead of one for all:

::

    t -> Q -> DQ -> a            t -> Q -> DQ -> a
               \-> b     becomes    \-> Q -> DQ -> b
"""

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from quantry.emit.graph_editor import (
    FIRST_OPSET,
    GROUPS_SINCE_OPSET,
    ONNX_TYPE,
    Attributes,
    GraphEditor,
    Origin,
    Part,
    as_tensor,
    describe,
)
from quantry.emit.local_functions import CONTRIB, STANDARD, Dialect, FunctionCollector, thin_function, wide_function
from quantry.execute.quantized_view import QuantizedView
from quantry.facts.operators import operators_where
from quantry.graph.quant_plan import QuantPlan
from quantry.numerics.power_of_two import position_of
from quantry.numerics.rounding import quantize_array
from quantry.numerics.tensor_params import TensorParams
from quantry.recipe import DataType

# onnxruntime 1.27 to 1.31 move an int8 DequantizeLinear through these operators and then reject the model if no
# quantizer follows (opset 21 and later). The com.microsoft versions of Q and DQ are not affected.
MOVED_BY_RUNTIME = operators_where(lambda row: row.moved_by_runtime)
REWRITE_SINCE_OPSET = 21


class PairWriter:
    """Writes the integer tensors of a plan, one call per tensor.

    Attributes:
        editor: The graph's editor.
        dialect: The names of the pairs.
        origins: By name of an initializer, the parameters its data was computed from.
    """

    def __init__(self, editor: GraphEditor, view: QuantizedView, dialect: Dialect) -> None:
        self.editor = editor
        self.dialect = dialect
        self.origins: dict[str, Origin] = {}
        self._view = view
        self._opset = editor.model.opset_imports[""]
        self._quantized = frozenset(view.plan.quantized_nodes)
        self._body = STANDARD
        self._nodes: list[tuple[ir.Node, DataType | None]] = []  # with the 32-bit type that has no native operator

    def write_pair(self, tensor: str) -> None:
        """Insert a pair after a tensor."""
        value = self.editor.values[tensor]
        params = self._params_of(tensor)
        scale, zero_point = self._parameters(self._view.source(tensor), tensor)
        dialect = self._dialect_for(params, (use.node for use in value.uses()))
        attributes = _attributes(params, dialect)
        quantize = self.editor.node(
            dialect.quantizer, [value, scale, zero_point], f"{tensor}_QuantizeLinear", attributes
        )
        integers = describe(quantize.outputs[0], ONNX_TYPE[params.dtype], value.shape)
        restore = self.editor.node(
            dialect.dequantizer, [integers, scale, zero_point], f"{tensor}_DequantizeLinear", attributes
        )
        describe(restore.outputs[0], ir.DataType.FLOAT, value.shape)
        wide = params.dtype if params.dtype.bits > 16 else None
        self._nodes += [(quantize, wide), (restore, wide)]
        self.editor.insert_after(tensor, (quantize, restore))

    def write_constant(self, name: str, users: frozenset[str] | None) -> None:
        """Store an initializer as integers and rewire its readers.

        Args:
            name: Name of the float initializer.
            users: Names of the nodes to rewire; None rewires all.
        """
        params = self._params_of(name)
        dialect = self._dialect_for(params, ())

        def restore(value: ir.Value) -> tuple[ir.Node]:
            stored = self.editor.lazy(
                f"{name}_quantized",
                value,
                ONNX_TYPE[params.dtype],
                lambda final: as_tensor(quantize_array(_floats(value), params), params.dtype, final),
            )
            self.origins[stored.name or ""] = Origin(Part.INTEGERS, name)
            inputs = [stored, *self._parameters(name, name)]
            attributes = _attributes(params, dialect)
            node = self.editor.node(dialect.dequantizer, inputs, f"{name}_DequantizeLinear", attributes)
            describe(node.outputs[0], ir.DataType.FLOAT, value.shape)
            # DequantizeLinear supports int32 for biases, with zero point 0.
            native = params.dtype.bits <= 16 or (params.dtype == DataType.INT32 and not params.zero_point.any())
            self._nodes.append((node, None if native else params.dtype))
            return (node,)

        self.editor.replace_constant(name, users, restore)

    def _params_of(self, name: str) -> TensorParams:
        return self._view.params.tensors[name]

    def _parameters(self, root: str, tensor: str) -> tuple[ir.Value, ir.Value]:
        scale, zero_point = self.editor.parameters(root, self._params_of(tensor))
        self.origins.setdefault(scale.name or "", Origin(Part.SCALE, tensor))
        self.origins.setdefault(zero_point.name or "", Origin(Part.ZERO_POINT, tensor))
        return scale, zero_point

    def finish(self, functions: FunctionCollector) -> None:
        """Import the domains that were used and register the functions of a vendor's dialect.

        Args:
            functions: Collects the functions of the model.
        """
        for node, wide in self._nodes:
            if node.domain == CONTRIB.domain:
                self.editor.model.opset_imports.setdefault(CONTRIB.domain, 1)
            elif node.domain:
                self._use_function(node, wide, functions)

    def _use_function(self, node: ir.Node, wide: DataType | None, functions: FunctionCollector) -> None:
        if wide is None:
            functions.use(node, thin_function(node.op_type, self.dialect, self._body))
        else:
            text = wide_function(node.op_type, wide, quantizes=node.op_type == self.dialect.quantize)
            functions.use(node, text, wide.value)

    def _dialect_for(self, params: TensorParams, readers: Iterable[ir.Node]) -> Dialect:
        if self._needs_contrib(params, readers):
            self._body = CONTRIB
            return CONTRIB if self.dialect is STANDARD else self.dialect
        return self.dialect

    def _needs_contrib(self, params: TensorParams, readers: Iterable[ir.Node]) -> bool:
        first = GROUPS_SINCE_OPSET if params.group is not None else FIRST_OPSET.get(params.dtype, 0)
        if self._opset < first:
            return True
        if self._opset < REWRITE_SINCE_OPSET or params.dtype != DataType.INT8:
            return False
        return any(
            (node.op_type in MOVED_BY_RUNTIME and not self._is_closed(node)) or self._becomes_gemm(node)
            for node in readers
        )

    def _is_closed(self, node: ir.Node) -> bool:
        """Whether a pair follows a node; a quantized one has none where only float nodes read its result."""
        paired = self._view.plan.activations
        return node.name in self._quantized and all(output.name in paired for output in node.outputs)

    def _becomes_gemm(self, node: ir.Node) -> bool:
        """Whether onnxruntime makes a Gemm of a product and a sum, with a Reshape that it moves the pair past."""
        result = node.outputs[0]
        if node.op_type != "MatMul" or result.name in self._view.plan.activations:
            return False
        return any(use.node.op_type == "Add" for use in result.uses())


def _attributes(params: TensorParams, dialect: Dialect) -> Attributes:
    attributes: dict[str, int | str] = {} if params.axis is None else {"axis": params.axis}
    if params.group is not None:
        attributes["block_size"] = params.group
    if dialect.has_position:
        attributes["bit_width"] = str(params.dtype.bits)
        position = params.position
        if position is not None:
            attributes["pos"] = str(position)
    return attributes


def position_attributes(node: ir.Node) -> dict[str, ir.Attr]:
    """Return ``bit_width`` and, for a single power-of-two scale, ``pos`` of a node that is converted between dialects.

    Args:
        node: A node with a constant scale and a typed zero point.
    """
    scale, zero_point = node.inputs[1], node.inputs[2]
    assert scale is not None
    assert zero_point is not None
    assert zero_point.dtype is not None
    attributes = {"bit_width": ir.AttrString("bit_width", str(round(zero_point.dtype.itemsize * 8)))}
    if scale.const_value is not None and scale.const_value.size == 1:
        position = position_of(scale.const_value.numpy().item())
        if position is not None:
            attributes["pos"] = ir.AttrString("pos", str(position))
    return attributes


def _floats(value: ir.Value) -> np.ndarray:
    assert value.const_value is not None
    return value.const_value.numpy()


def dedicate_pairs(editor: GraphEditor, plan: QuantPlan, originals: dict[str, ir.Value]) -> None:
    """Copy the pair after each activation for every reader except the first.

    Args:
        editor: Creates nodes; the pairs are already written.
        plan: The activations.
        originals: The activations before any edit, by name.
    """
    for tensor in plan.activations:
        chain = _chain(originals[tensor])
        restored = chain[-1].outputs[0] if chain else None
        if restored is None:
            continue
        for use in list(restored.uses())[0 if restored.is_graph_output() else 1 :]:
            copied = _copied(editor, chain)
            graph = chain[-1].graph
            assert graph is not None
            graph.insert_after(chain[-1], copied)
            use.node.replace_input_with(use.idx, copied[-1].outputs[0])


def _chain(value: ir.Value) -> list[ir.Node]:
    """Return the nodes of the pair after a tensor: one or two."""
    chain: list[ir.Node] = []
    for _ in range(2):
        readers = [use.node for use in value.uses() if "uantize" in use.node.op_type and use.idx == 0]
        if len(readers) != 1 or (chain and "Dequantize" not in readers[0].op_type):
            break
        chain.append(readers[0])
        value = readers[0].outputs[0]
    return chain


def _copied(editor: GraphEditor, chain: list[ir.Node]) -> list[ir.Node]:
    copies: list[ir.Node] = []
    for node in chain:
        inputs = list(node.inputs)
        if copies:
            inputs[0] = copies[-1].outputs[0]
        copy = editor.node((node.domain, node.op_type), inputs, node.name or "", None)
        copy.attributes.update(node.attributes)
        copy.overload = node.overload
        copy.outputs[0].type, copy.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
        copies.append(copy)
    return copies
