"""Replace single operators by what an integer NPU computes in their place.

==================  ==================================================================================================
Split               one Slice per output
BatchNormalization  a depthwise 1x1 Conv, if it could not be folded into another layer
Clip                bounds rounded to integers
LeakyRelu           slope rounded to a multiple of 1/256
Sigmoid             HardSigmoid
HardSwish           the product with HardSigmoid
HardSigmoid         multiplied by the error of the NPU's fixed-point slope
==================  ==================================================================================================
"""

from collections.abc import Container, Sequence

import numpy as np
import onnx_ir as ir

from quantry.graph.edit import FreshNames, constant_of, float_of, int_of, multiply_result, take_over
from quantry.graph.weights import new_initializer
from quantry.notes import Note, NoteKind, NoteValue
from quantry.prepare.hard_swish import ALPHA, BETA, write_hard_sigmoid

# Notes name at most this many nodes, so that they do not grow with the model.
_NAMED = 6


def convertible(model: ir.Model, untouched: Container[str]) -> tuple[ir.Node, ...]:
    """Return the nodes of the main graph that a conversion may change.

    Args:
        model: The model.
        untouched: Names of nodes that stay float, and so are not computed by the NPU.
    """
    return tuple(node for node in model.graph if node.name not in untouched)


def listed(names: Sequence[str]) -> str:
    """Return the first names and the number of the others.

    Example:
        >>> listed(["a", "b"])
        'a, b'
    """
    hidden = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {hidden} more" if hidden > 0 else "")


def note_on(
    nodes: Sequence[str], message: str, kind: NoteKind = NoteKind.DONE, /, **values: NoteValue
) -> tuple[Note, ...]:
    """Return a note on what happened to nodes, or nothing if there are none.

    Args:
        nodes: Their names; values ``count`` and ``nodes`` of the note.
        message: The message.
        kind: What the note is about.
        values: Its other values.
    """
    return (Note.of(message, kind, count=len(nodes), nodes=listed(nodes), **values),) if nodes else ()


def batch_norm_to_conv(model: ir.Model, untouched: Container[str] = ()) -> tuple[Note, ...]:
    """Replace every BatchNormalization of a tensor [N, C, H, W] with constant statistics by a depthwise Conv.

    ::

        y = (x - mean) * g + beta,  g = gamma / sqrt(var + epsilon)
          = Conv(x, W = g [C, 1, 1, 1], B = beta - mean * g, group = C)
    """
    names = FreshNames(model)
    converted = []
    for node in convertible(model, untouched):
        if node.op_type == "BatchNormalization" and node.domain == "" and _is_inference(node):
            constants = [constant_of(value) for value in node.inputs[1:5]]
            arrays = [array for array in constants if array is not None]
            if len(arrays) == 4:
                _write_conv(node, arrays, names)
                converted.append(node.name or "")
    return note_on(converted, "npu: replaced {count} BatchNormalization nodes by depthwise Conv: {nodes}")


def _is_inference(node: ir.Node) -> bool:
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    return shape is not None and len(shape) == 4 and len(node.outputs) == 1 and not int_of(node, "training_mode", 0)


def _write_conv(node: ir.Node, arrays: list[np.ndarray], names: FreshNames) -> None:
    gamma, beta, mean, variance = (array.astype(np.float64) for array in arrays)
    factor = gamma / np.sqrt(variance + float_of(node, "epsilon", 1e-5))
    dtype = arrays[0].dtype
    weight = new_initializer(names.value(f"{node.name}_weight"), factor.reshape(-1, 1, 1, 1).astype(dtype))
    bias = new_initializer(names.value(f"{node.name}_bias"), (beta - mean * factor).astype(dtype))
    graph = node.graph
    assert graph is not None
    node.op_type = "Conv"
    node.attributes.clear()
    node.attributes["group"] = ir.AttrInt64("group", len(factor))
    node.attributes["kernel_shape"] = ir.AttrInt64s("kernel_shape", [1, 1])
    node.resize_inputs(3)
    for index, constant in enumerate((weight, bias), start=1):
        graph.register_initializer(constant)
        node.replace_input_with(index, constant)


def split_to_slice(model: ir.Model, untouched: Container[str] = ()) -> tuple[Note, ...]:
    """Replace every Split whose parts have known sizes by Slice nodes."""
    names = FreshNames(model)
    converted = []
    for node in convertible(model, untouched):
        sizes = _sizes(node) if node.op_type == "Split" and node.domain == "" else None
        if sizes is not None:
            _write_slices(node, sizes, names)
            converted.append(node.name or "")
    return note_on(converted, "npu: replaced {count} Split nodes by Slice: {nodes}")


def _sizes(node: ir.Node) -> list[int] | None:
    """Return the sizes of the parts along the axis, or None if they depend on the input."""
    lengths = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    if lengths is not None:
        return [int(size) for size in lengths]
    axis = int_of(node, "axis", 0)
    sizes = [None if output.shape is None else output.shape[axis] for output in node.outputs]
    numbers = [size for size in sizes if isinstance(size, int)]
    return numbers if len(numbers) == len(sizes) else None


def _write_slices(node: ir.Node, sizes: list[int], names: FreshNames) -> None:
    graph, data = node.graph, node.inputs[0]
    assert graph is not None
    axis = int_of(node, "axis", 0)
    ends = np.cumsum(sizes)
    for index, (output, size, end) in enumerate(zip(node.outputs, sizes, ends, strict=True)):
        if not output.uses() and not output.is_graph_output():
            continue
        name = f"{node.name}_slice_{index}"
        bounds = {"starts": int(end) - size, "ends": int(end), "axes": axis}
        constants = [
            new_initializer(names.value(f"{name}_{key}"), np.array([value], np.int64)) for key, value in bounds.items()
        ]
        for constant in constants:
            graph.register_initializer(constant)
        slice_node = ir.node("Slice", [data, *constants], name=names.node(name))
        graph.insert_before(node, slice_node)
        take_over(output, slice_node.outputs[0], names)
    graph.remove(node, safe=True)


def clip(model: ir.Model, untouched: Container[str] = ()) -> tuple[Note, ...]:
    """Round constant bounds of every Clip to the nearest integers, unless they become equal."""
    names = FreshNames(model)
    converted = [
        node.name or ""
        for node in convertible(model, untouched)
        if node.op_type == "Clip" and node.domain == "" and _round_bounds(node, names)
    ]
    return note_on(converted, "npu: rounded the bounds of {count} Clip nodes to integers: {nodes}")


def _round_bounds(node: ir.Node, names: FreshNames) -> bool:
    bounds = {index: constant_of(value) for index, value in enumerate(node.inputs) if index in (1, 2)}
    rounded = {index: np.rint(bound) for index, bound in bounds.items() if bound is not None}
    if len(rounded) == 2 and not (rounded[1] < rounded[2]).all():
        return False
    moved_bounds = {index: value for index, value in rounded.items() if (value != bounds[index]).any()}
    for index, value in moved_bounds.items():
        constant = new_initializer(names.value(f"{node.name}_bound_{index}"), value)
        assert node.graph is not None
        node.graph.register_initializer(constant)
        node.replace_input_with(index, constant)
    return bool(moved_bounds)


# The NPU multiplies negative values by an 8-bit fixed-point number.
_STEPS = 256


def leaky_relu(model: ir.Model, untouched: Container[str] = ()) -> tuple[Note, ...]:
    """Round the slope of every LeakyRelu to a multiple of 1/256, such as 0.1 to 26/256."""
    converted = []
    for node in convertible(model, untouched):
        if node.op_type != "LeakyRelu" or node.domain != "":
            continue
        alpha = float_of(node, "alpha", 0.01)
        rounded = round(alpha * _STEPS) / _STEPS
        if rounded != alpha:
            node.attributes["alpha"] = ir.AttrFloat32("alpha", rounded)
            converted.append(f"{node.name} ({alpha:.6g} to {rounded:.6g})")
    return note_on(converted, "npu: rounded the slope of {count} LeakyRelu nodes to multiples of 1/256: {nodes}")


def hard_swish(model: ir.Model, untouched: Container[str] = ()) -> tuple[Note, ...]:
    """Replace every HardSwish by ``x * HardSigmoid(x)``, which is its definition."""
    names = FreshNames(model)
    converted = [node for node in convertible(model, untouched) if node.op_type == "HardSwish" and node.domain == ""]
    changed_names = [node.name or "" for node in converted]
    for node in converted:
        source = node.inputs[0]
        assert source is not None
        write_hard_sigmoid(source, node.outputs[0], names, product=True)
    return note_on(changed_names, "npu: replaced {count} HardSwish nodes by x * HardSigmoid(x): {nodes}")


def sigmoid_to_hard_sigmoid(model: ir.Model, untouched: Container[str] = ()) -> tuple[Note, ...]:
    """Replace every Sigmoid by ``HardSigmoid(x) = max(0, min(1, x / 6 + 1 / 2))``; the two differ by up to 0.0713."""
    converted = []
    for node in convertible(model, untouched):
        if node.op_type == "Sigmoid" and node.domain == "":
            node.op_type = "HardSigmoid"
            node.attributes["alpha"] = ir.AttrFloat32("alpha", ALPHA)
            node.attributes["beta"] = ir.AttrFloat32("beta", BETA)
            converted.append(node.name or "")
    message = (
        "npu: replaced {count} Sigmoid nodes by HardSigmoid(1/6, 0.5), which differs from them by up to 0.07 "
        "and can reduce accuracy a lot if the model was not trained with it; to keep Sigmoid, set "
        "prepare.npu.sigmoid_to_hard_sigmoid: false in the recipe: {nodes}"
    )
    return note_on(converted, message, NoteKind.IMPORTANT)


# The only HardSigmoid that the NPU has is that of HardSwish, whose slope 1/6 it stores as 2731 / 2**14.
FACTOR = (2731 / 16384) / ALPHA
_TOLERANCE = 1e-4  # exporters write 1/6 as 0.1666 to 0.16666667


def hard_sigmoid(model: ir.Model, untouched: Container[str] = ()) -> tuple[Note, ...]:
    """Multiply the result of every HardSigmoid(1/6, 0.5) by (2731/16384) / (1/6) = 1.000122.

    HardSigmoid with another slope does not run on the NPU and is not changed.
    """
    names = FreshNames(model)
    matching = [
        node
        for node in convertible(model, untouched)
        if node.op_type == "HardSigmoid" and node.domain == "" and _is_sixth(node)
    ]
    for node in matching:
        multiply_result(node, FACTOR, names)
    message = "npu: multiplied the results of {count} HardSigmoid nodes by {factor:.7g}: {nodes}"
    return note_on([node.name or "" for node in matching], message, NoteKind.GRAPH, factor=FACTOR)


def _is_sixth(node: ir.Node) -> bool:
    near_alpha = abs(float_of(node, "alpha", 0.2) - ALPHA) < _TOLERANCE
    return near_alpha and abs(float_of(node, "beta", 0.5) - BETA) < _TOLERANCE
