"""float16 and bfloat16: values are rounded to the narrow type, and computed in float32.

Standard ONNX has two casts for this; AMD Quark's dialect calls them ExtendedQuantizeLinear and
ExtendedDequantizeLinear, with scale 1 and a zero point whose type selects the number format::

    producer -> t -> t_QuantizeLinear (to float16) -> t_DequantizeLinear (to float32) -> consumers

Constants are stored in the narrow type. Rounding is half to even; values beyond the largest finite one become infinite,
as in IEEE 754, so a float16 tensor should stay within 65504.
"""

import ml_dtypes
import numpy as np
import onnx_ir as ir

from quantry.emit.graph_editor import ONNX_TYPE, GraphEditor, describe
from quantry.emit.local_functions import QUARK, FunctionCollector
from quantry.recipe import DataType

_CONTAINER = {DataType.FLOAT16: np.dtype(np.float16), DataType.BFLOAT16: np.dtype(ml_dtypes.bfloat16)}


class FloatWriter:
    """Writes the 16-bit float tensors of a plan, one call per tensor."""

    def __init__(self, editor: GraphEditor, dtype: DataType, *, extended: bool) -> None:
        self._editor = editor
        self._dtype = dtype
        self._extended = extended
        self._parameters: list[ir.Value] = []
        self._nodes: list[ir.Node] = []

    def write_pair(self, tensor: str) -> None:
        """Insert the two conversions after a tensor."""
        value = self._editor.values[tensor]
        narrow = self._node(value, f"{tensor}_QuantizeLinear", ONNX_TYPE[self._dtype], value.shape)
        wide = self._node(narrow.outputs[0], f"{tensor}_DequantizeLinear", ir.DataType.FLOAT, value.shape)
        self._editor.insert_after(tensor, (narrow, wide))

    def write_constant(self, name: str, users: frozenset[str] | None) -> None:
        """Store an initializer in the narrow type and rewire its readers.

        Args:
            name: Name of the float initializer.
            users: Names of the nodes to rewire; None rewires all.
        """

        def restore(value: ir.Value) -> tuple[ir.Node]:
            tensor = value.const_value
            assert tensor is not None
            container = _CONTAINER[self._dtype]

            def rounded(final: str) -> ir.TensorProtocol:
                with np.errstate(over="ignore"):  # values beyond the type become infinite
                    return ir.Tensor(tensor.numpy().astype(container), ONNX_TYPE[self._dtype], name=final)

            stored = self._editor.lazy(f"{name}_quantized", value, ONNX_TYPE[self._dtype], rounded)
            return (self._node(stored, f"{name}_DequantizeLinear", ir.DataType.FLOAT, value.shape),)

        self._editor.replace_constant(name, users, restore)

    def finish(self, functions: FunctionCollector) -> None:
        """Register the functions of AMD Quark's dialect.

        Args:
            functions: Collects the functions of the model.
        """
        for node in self._nodes:
            result_type = node.outputs[0].dtype
            assert result_type is not None
            cast = f"y = Cast <to = {result_type.value}> (x)"
            body = f"{node.op_type} <axis: int = 1> (x, scale, zero_point) => (y) {{ {cast} }}"
            functions.use(node, body, self._dtype.value)

    def _node(self, value: ir.Value, name: str, result_type: ir.DataType, shape: ir.Shape | None) -> ir.Node:
        if self._extended:
            operator = QUARK.dequantizer if result_type == ir.DataType.FLOAT else QUARK.quantizer
            node = self._editor.node(operator, [value, *self._scale_and_zero()], name)
            self._nodes.append(node)
        else:
            node = self._editor.node(("", "Cast"), [value], name, {"to": result_type.value})
        describe(node.outputs[0], result_type, shape)
        return node

    def _scale_and_zero(self) -> list[ir.Value]:
        if not self._parameters:
            zero = ir.Tensor(
                np.zeros((), _CONTAINER[self._dtype]),
                ONNX_TYPE[self._dtype],
                name=self._editor.fresh(f"{self._dtype.value}_zero_point"),
            )
            scale = self._editor.constant(np.ones((), np.float32), f"{self._dtype.value}_scale")
            self._parameters = [scale, self._editor.initializer(zero)]
        return self._parameters
