"""FixNeuron: one node per tensor; weights stay float, rounded to their levels, as vai_q_onnx writes them.

For a tensor ``t`` and a weight ``w``::

    producer -> t -> t_FixNeuron -> consumers          w (rounded float) -> w_FixNeuron -> consumers

A node reads the tensor, its scale and its zero point and has ``bit_width`` and ``pos`` as strings. Its function is a
Q/DQ pair, so onnxruntime fuses it like any other. It has only signed integers: an unsigned type with its zero point at
the centre represents the same numbers as the signed type with zero point 0, and is written as that.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from quantry.emit.graph_editor import FIRST_OPSET, GraphEditor, describe
from quantry.emit.local_functions import CONTRIB, add_function
from quantry.errors import RecipeError
from quantry.execute.quantized_view import QuantizedView
from quantry.graph.quant_plan import QuantPlan
from quantry.numerics.rounding import fake_quantize
from quantry.numerics.tensor_params import QuantParams, TensorParams
from quantry.recipe import DataType, Format

DOMAIN = "ai.onnx.contrib"
OPERATOR = "FixNeuron"
FIX_NEURON = (DOMAIN, OPERATOR)

_SIGNED = {DataType.UINT4: DataType.INT4, DataType.UINT8: DataType.INT8, DataType.UINT16: DataType.INT16}


def emit_fix_neuron(model: ir.Model, plan: QuantPlan, params: QuantParams, options: Format) -> None:  # noqa: ARG001
    """Insert FixNeuron nodes and round the weights, in place.

    Args:
        model: A copy of the float model that may be edited.
        plan: The tensors to quantize.
        params: Their scales and zero points.
        options: The format; it has no options.

    Raises:
        RecipeError: A tensor's scale is not a single power of two, or its zero point is not at the centre.
    """
    editor = GraphEditor(model)
    view = QuantizedView(plan, QuantParams({name: _signed(name, entry) for name, entry in params.tensors.items()}))
    writer = _Writer(editor, view)
    for quantizer in view.activations:
        writer.write_activation(quantizer.name)
    for quantizer in view.conversions:
        editor.branch(quantizer.name, quantizer.tensor, quantizer.readers or ())
        writer.write_activation(quantizer.name)
    for quantizer in view.constants:
        writer.write_constant(quantizer.name, quantizer.readers)
    writer.finish()


class _Writer:
    def __init__(self, editor: GraphEditor, view: QuantizedView) -> None:
        self._editor = editor
        self._view = view
        self._params = view.params.tensors
        self._body = ""

    def write_activation(self, tensor: str) -> None:
        value = self._editor.values[tensor]
        node = self._node(value, tensor, self._view.source(tensor))
        self._editor.insert_after(tensor, (node,))

    def write_constant(self, name: str, users: frozenset[str] | None) -> None:
        params = self._params[name]

        def restore(value: ir.Value) -> Sequence[ir.Node]:
            assert value.const_value is not None
            floats = value.const_value
            snapped = self._editor.lazy(
                f"{name}_snapped",
                value,
                ir.DataType.FLOAT,
                lambda final: ir.Tensor(fake_quantize(floats.numpy(), params), name=final),
            )
            # The function uses QuantizeLinear, which has no 32-bit type; a bias is already rounded and needs no node.
            if params.dtype == DataType.INT32:
                return (self._editor.node(("", "Identity"), [snapped], f"{name}_{OPERATOR}"),)
            return (self._node(snapped, name, name),)

        self._editor.replace_constant(name, users, restore)

    def finish(self) -> None:
        body = self._body
        add_function(
            self._editor.model,
            DOMAIN,
            f"{OPERATOR} <bit_width, pos> (x, scale, zero_point) => (y) {{ "
            f"q = {body}QuantizeLinear (x, scale, zero_point) y = {body}DequantizeLinear (q, scale, zero_point) }}",
        )

    def _node(self, value: ir.Value, name: str, root: str) -> ir.Node:
        params = self._params[root]
        if self._editor.model.opset_imports[""] < FIRST_OPSET.get(params.dtype, 0):
            self._body = f"{CONTRIB.domain}."
        attributes = {"bit_width": str(params.dtype.bits), "pos": str(params.position)}
        inputs = [value, *self._editor.parameters(root, params)]
        node = self._editor.node((DOMAIN, OPERATOR), inputs, f"{name}_{OPERATOR}", attributes)
        describe(node.outputs[0], ir.DataType.FLOAT, value.shape)
        return node


def _signed(name: str, params: TensorParams) -> TensorParams:
    """Return the parameters for the same numbers in a signed type."""
    shift = 0 if params.dtype.is_signed else 1 << (params.dtype.bits - 1)
    if params.position is None or np.any(params.zero_point != shift):
        raise RecipeError(
            "FixNeuron needs one power-of-two scale and a symmetric zero point per tensor, got scale "
            f"{params.scale} and zero point {params.zero_point} of {params.dtype.value} for {name!r}; use "
            "TensorSpec(symmetric=True, scale=PowerOfTwoScale()), or the format VitisQdq()"
        )
    limits = None if params.limits is None else (params.limits[0] - shift, params.limits[1] - shift)
    return TensorParams(
        _SIGNED.get(params.dtype, params.dtype), params.scale, params.zero_point - shift, params.axis, limits
    )
