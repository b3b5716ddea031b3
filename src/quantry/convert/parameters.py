"""Brings scales and zero points of a foreign model into one form: constants, and none left out.

::

    x -> QuantizeLinear (scale) -> DequantizeLinear (scale)      x -> QuantizeLinear (scale, 0) -> DequantizeLinear ...
    x -> FixNeuron <pos = "4", bit_width = "8">                  x -> FixNeuron (2**-4, 0) <...>
"""

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from quantry.errors import ModelError
from quantry.graph.edit import FreshNames
from quantry.numerics.power_of_two import scale_at

_INTEGERS = {4: ir.DataType.INT4, 8: ir.DataType.INT8, 16: ir.DataType.INT16}


def lift_constants(model: ir.Model) -> None:
    """Make initializers of Constant nodes, in place: types of scales and zero points are known then."""
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)


def add_fix_neuron_parameters(model: ir.Model, node: ir.Node) -> None:
    """Give a FixNeuron whose position is in its attributes alone the scale and the zero point that these stand for.

    Args:
        model: The model, edited in place.
        node: The FixNeuron.

    Raises:
        ModelError: The attributes give no position, or a width that no type has.
    """
    if len(node.inputs) > 2 and node.inputs[1] is not None and node.inputs[2] is not None:
        return
    try:
        position = float(node.attributes.get_string("pos", ""))
        bits = int(node.attributes.get_string("bit_width", "8"))
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"a FixNeuron must have a scale and a zero point, or its position, got {error}; node {node.name!r}"
        ) from error
    if bits not in _INTEGERS:
        raise ModelError(f"a FixNeuron must have 4, 8 or 16 bits, got {bits}; node {node.name!r}")
    stem = node.name or node.outputs[0].name or ""
    node.resize_inputs(3)
    scale = np.array(scale_at(position), np.float32)
    node.replace_input_with(1, _constant(model, scale, ir.DataType.FLOAT, f"{stem}_scale"))
    node.replace_input_with(2, _zero(model, (), _INTEGERS[bits], stem))


def add_zero_points(model: ir.Model, pairs: list[ir.Node], quantizers: set[ir.Node]) -> None:
    """Write out zero points that were left out, which are 0: of a quantizer in uint8, else in the type of the integers.

    Args:
        model: The model, edited in place.
        pairs: Its quantizers and dequantizers, in the order of the graph.
        quantizers: Those that make integers.

    Raises:
        ModelError: A scale is computed at run time, so that nobody knows how many zero points there are.
    """
    for node in pairs:
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            continue
        scale, integers = node.inputs[1], node.inputs[0]
        if scale is None or scale.const_value is None:
            raise ModelError(f"a Q/DQ pair without zero point must have a constant scale; node {node.name!r}")
        before = None if integers is None else integers.producer()
        known = before.inputs[2] if before is not None and before in quantizers and len(before.inputs) > 2 else integers
        dtype = None if node in quantizers or known is None else known.dtype
        node.resize_inputs(3)
        shape = tuple(scale.const_value.shape.numpy())
        node.replace_input_with(2, _zero(model, shape, dtype or ir.DataType.UINT8, node.name or ""))


def _zero(model: ir.Model, shape: tuple[int, ...], dtype: ir.DataType, stem: str) -> ir.Value:
    return _constant(model, np.zeros(shape, dtype.numpy()), dtype, f"{stem}_zero_point")


def _constant(model: ir.Model, values: np.ndarray, dtype: ir.DataType, wanted: str) -> ir.Value:
    name = FreshNames(model).value(wanted)
    tensor = ir.Tensor(values, dtype, name=name)
    shape = ir.Shape(values.shape)
    value = ir.Value(name=name, type=ir.TensorType(dtype), shape=shape, const_value=tensor)
    model.graph.register_initializer(value)
    return value
