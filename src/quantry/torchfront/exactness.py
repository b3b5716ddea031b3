"""Which operators of an exported model torch and onnxruntime may round differently.

Both compute in float32. They agree in every bit where a result is correctly rounded, where values are only moved or
compared, and where sums are exact: products of integers on power-of-two grids are integers, and float32 adds those
below 2**24 without rounding, in any order. Functions such as Sigmoid of 8-bit tensors are tables of what onnxruntime
returns, and pictures are interpolated with onnxruntime's products and sums in its order.
"""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import onnx_ir as ir
import torch

from quantry.execute.graph_calls import TABULATED
from quantry.execute.interpreter.resize import resize
from quantry.execute.quantized_view import QuantizedView
from quantry.facts.operators import LINEAR, Family, facts, output_channel_axis
from quantry.numerics.tensor_params import TensorParams
from quantry.runtime.sessions import run_session, simulation_session

_MOVING = (
    *(Family.MOVEMENT, Family.LOOKUP, Family.JOIN, Family.PADDING, Family.SELECTION, Family.COMPARISON),
    *(Family.SHAPE, Family.INDEX, Family.RANDOM),
)
_AVERAGES = ("AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum")
_EXACT_SUM = 2.0**24
_FEW_BITS = 8


def rounded_operators(model: ir.Model, view: QuantizedView) -> tuple[str, ...]:
    """Return the operator types of a quantized graph whose results may differ in the last bit, in order of occurrence.

    Args:
        model: The float graph.
        view: What is quantized, and with which parameters.
    """
    return tuple(dict.fromkeys(node.op_type for node in model.graph.all_nodes() if not _is_exact(node, view)))


def _is_exact(node: ir.Node, view: QuantizedView) -> bool:
    row = facts(node)
    if row.family in _MOVING or row.exact or node.op_type == "If":
        return True
    if node.op_type in TABULATED:
        params = _grid(node, 0, view)
        return params is not None and params.axis is None and params.dtype.bits <= _FEW_BITS
    if node.op_type in LINEAR:
        return _sums_are_exact(node, view)
    if node.op_type in _AVERAGES:
        params = _grid(node, 0, view)
        pads = list(node.attributes.get_ints("pads", ()) or ())
        is_even = pads[: len(pads) // 2] == pads[len(pads) // 2 :]
        plain = _has_whole_windows(node) and is_even
        return params is not None and _is_dyadic(params) and params.dtype.bits <= _FEW_BITS and plain
    return row.family is Family.RESIZE and _interpolates_exactly(node)


def _sums_are_exact(node: ir.Node, view: QuantizedView) -> bool:
    """Return whether no partial sum of a product can leave the integers that float32 holds."""
    if any(node.attributes.get_float(name, 1.0) != 1.0 for name in ("alpha", "beta")):
        return False
    data, weight = _grid(node, 0, view), _grid(node, 1, view)
    if data is None or weight is None or not _is_dyadic(data) or not _is_dyadic(weight):
        return False
    unit = float(data.scale.min()) * float(weight.scale.min())
    largest = float(np.max(data.scale)) * _levels(data) * _weight_sum(node, weight)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None:
        params = _grid(node, 2, view)
        if params is None or bias.const_value is None or not _is_dyadic(params):
            return False
        unit = min(unit, float(params.scale.min()))
        largest += float(np.abs(bias.const_value.numpy()).max(initial=0.0)) + float(params.scale.max())
    return largest / unit < _EXACT_SUM


def _weight_sum(node: ir.Node, params: TensorParams) -> float:
    """Return the largest sum of absolute weights that one result can have."""
    weight = node.inputs[1]
    assert weight is not None
    step = float(params.scale.max())
    if weight.const_value is None:
        length = weight.shape[-2] if weight.shape is not None and len(weight.shape) > 1 else None
        return float(_levels(params) * step * length) if isinstance(length, int) else math.inf
    array = np.abs(weight.const_value.numpy())
    axis = output_channel_axis(node, array.ndim)
    reduced = tuple(at for at in range(array.ndim) if at != axis % array.ndim)
    # Rounding to the grid adds at most half a step to each weight.
    count = array.size / max(1, array.shape[axis])
    return float(array.sum(reduced).max(initial=0.0) + count * step / 2)


def _interpolates_exactly(node: ir.Node) -> bool:
    """Return whether a frozen module copies values, or computes the products and sums of onnxruntime in its order."""
    mode = node.attributes.get_string("mode", "nearest")
    if mode == "nearest":
        return True
    antialias = node.attributes.get_int("antialias", 0) != 0
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    settings = [value for value in node.inputs[2:4] if value is not None and value.name]
    if (
        mode != "linear"
        or antialias
        or shape is None
        or len(shape) != 4
        or any(v.const_value is None for v in settings)
    ):
        return False
    axes = node.attributes.get_ints("axes", (0, 1, 2, 3))
    return all(_keeps(settings, axes, axis, shape[axis]) for axis in (0, 1)) and _sums_in_order_here()


def _keeps(settings: list[ir.Value], axes: Sequence[int], axis: int, length: object) -> bool:
    """Return whether the factors or lengths of a Resize leave an axis as it is."""
    if axis not in axes and axis - 4 not in axes:
        return True
    index = list(axes).index(axis if axis in axes else axis - 4)
    for value in settings:
        assert value.const_value is not None
        numbers = value.const_value.numpy()
        if len(numbers) and numbers[index] != (1.0 if numbers.dtype.kind == "f" else length):
            return False
    return True


# Opening a session takes a millisecond, and the answer never changes while a process runs.
@cache
def _sums_in_order_here() -> bool:
    """Return whether onnxruntime on this machine rounds each product of an interpolation, and does not fuse it."""
    pixels = np.random.default_rng(0).integers(-128, 128, (1, 1, 16, 16)).astype(np.float32)
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(pixels.shape))
    factors = ir.Value(name="factors", const_value=ir.tensor(np.array([1, 1, 1.5, 1.7], np.float32), name="factors"))
    node = ir.node("Resize", [x, None, factors], attributes={"mode": "linear"})
    node.outputs[0].name, node.outputs[0].type = "y", x.type
    graph = ir.Graph([x], node.outputs, nodes=[node], initializers=[factors], opset_imports={"": 18}, name="probe")
    computed = run_session(simulation_session(ir.Model(graph, ir_version=8), threads=1), {"x": pixels})["y"]
    ours = resize(torch.from_numpy(pixels), scales=[1.0, 1.0, 1.5, 1.7], mode="linear", in_order=True)
    return bool(np.array_equal(computed, ours.numpy()))


def _grid(node: ir.Node, index: int, view: QuantizedView) -> TensorParams | None:
    """Return the parameters of an input as the node reads it, or None for a float input."""
    value = node.inputs[index] if index < len(node.inputs) else None
    path = view.path(value.name or "", node.name or "") if value is not None else ()
    return path[-1].params if path else None


def _is_dyadic(params: TensorParams) -> bool:
    return bool((np.frexp(params.scale)[0] == 0.5).all())


def _levels(params: TensorParams) -> float:
    ends = [np.abs(np.asarray(end, np.int64) - params.zero_point).max() for end in (params.lowest, params.highest)]
    return float(max(ends))


def _has_whole_windows(node: ir.Node) -> bool:
    """Return whether no window of a pool reaches beyond the padded input, where tools count elements differently."""
    if not node.attributes.get_int("ceil_mode", 0):
        return True
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    kernel = node.attributes.get_ints("kernel_shape", ())
    lengths = [] if shape is None else [length for length in list(shape)[2:] if isinstance(length, int)]
    if len(lengths) != len(kernel):
        return False
    ones, zeros = [1] * len(kernel), [0] * (2 * len(kernel))
    strides = node.attributes.get_ints("strides", ones)
    dilations = node.attributes.get_ints("dilations", ones)
    pads = node.attributes.get_ints("pads", zeros)
    return all(
        (length + pads[axis] + pads[axis + len(kernel)] - (kernel[axis] - 1) * dilations[axis] - 1) % strides[axis] == 0
        for axis, length in enumerate(lengths)
    )
