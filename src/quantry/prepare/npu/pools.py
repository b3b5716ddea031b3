"""Average pools and means as an integer NPU computes them.

The NPU divides a sum by the kernel's size s with a fixed-point reciprocal ``k / 2**n``, so its mean is the true mean
times ``s * k / 2**n``. The float model is multiplied by that factor to match. Some kernel sizes have a fixed reciprocal
in hardware; for others the best reciprocal with few bits is used.

Means over height and width become GlobalAveragePool, and global pools that are too large for the NPU are split:

::

    x [N, C, a*c, b*d] -> GlobalAveragePool
    x [N, C, a*c, b*d] -> AveragePool(a, b), stride (a, b) -> [N, C, c, d] -> GlobalAveragePool

The mean of the means of equal parts is the mean of the whole.
"""

import math
from collections.abc import Container

import onnx_ir as ir

from quantry.graph.edit import FreshNames, constant_of, int_of, multiply_result
from quantry.notes import Note, NoteKind
from quantry.prepare.npu.operators import convertible, note_on

# Reciprocals k / 2**n that the hardware has for these sides of square kernels.
_FIXED = {3: (7, 64), 5: (10, 256), 6: (7, 256), 7: (21, 1024), 14: (21, 4096)}
_LARGEST_SIDE = 255


def pool_factor(height: int, width: int) -> float:
    """Return the factor between the true mean over a kernel and the NPU's.

    It is 1 except for square kernels with sides up to 255.

    Args:
        height: Height of the kernel.
        width: Its width.

    Example:
        >>> pool_factor(7, 7)
        1.0048828125
    """
    if height != width or height > _LARGEST_SIDE:
        return 1.0
    size = height * width
    if height in _FIXED:
        numerator, denominator = _FIXED[height]
        return size * numerator / denominator
    shifts = range(7 + math.ceil(math.log2(size)))
    candidates = [(round(2**shift / size), 2**shift) for shift in shifts]
    # min returns the first of equally good ones, which is the reciprocal with the fewest bits.
    numerator, denominator = min(candidates, key=lambda pair: abs(pair[0] / pair[1] - 1 / size))
    return float(size * numerator / denominator)


def spatial_size(value: ir.Value | None) -> tuple[int, int] | None:
    """Return height and width of a tensor [N, C, H, W], or None if they are unknown or the rank is not 4."""
    if value is None or value.shape is None or len(value.shape) != 4:
        return None
    height, width = value.shape[2], value.shape[3]
    return (height, width) if isinstance(height, int) and isinstance(width, int) else None


def average_pool(model: ir.Model, untouched: Container[str] = ()) -> tuple[Note, ...]:
    """Multiply the result of AveragePool and GlobalAveragePool by `pool_factor` of its kernel, unless that is 1."""
    names = FreshNames(model)
    converted = []
    for node in convertible(model, untouched):
        kernel = _kernel(node) if node.domain == "" else None
        factor = 1.0 if kernel is None else pool_factor(*kernel)
        if factor != 1.0:
            multiply_result(node, factor, names)
            converted.append(f"{node.name} ({factor:.7g})")
    return note_on(converted, "npu: multiplied the results of {count} average pools: {nodes}", NoteKind.GRAPH)


def _kernel(node: ir.Node) -> tuple[int, int] | None:
    if node.op_type == "GlobalAveragePool":
        return spatial_size(node.inputs[0])
    if node.op_type != "AveragePool":
        return None
    sides = node.attributes["kernel_shape"].as_ints()
    return (sides[0], sides[1]) if len(sides) == 2 else None


def is_spatial_mean(node: ir.Node) -> bool:
    """Whether a node is ReduceMean of a tensor [N, C, H, W] over exactly H and W.

    The axes are an attribute up to opset 17 and an input from opset 18 on.
    """
    if node.op_type != "ReduceMean" or node.domain != "":
        return False
    data = node.inputs[0]
    if data is None or data.shape is None or len(data.shape) != 4:
        return False
    attribute = node.attributes.get("axes")
    if attribute is not None:
        axes = list(attribute.as_ints())
    else:
        constant = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
        axes = [] if constant is None else [int(axis) for axis in constant.reshape(-1)]
    return sorted(axis % 4 for axis in axes) == [2, 3]


def reduce_mean(model: ir.Model, untouched: Container[str] = ()) -> tuple[Note, ...]:
    """Multiply the result of every ReduceMean over height and width by `pool_factor`, unless that is 1."""
    names = FreshNames(model)
    converted = []
    for node in convertible(model, untouched):
        size = spatial_size(node.inputs[0]) if is_spatial_mean(node) else None
        factor = 1.0 if size is None else pool_factor(*size)
        if factor != 1.0:
            multiply_result(node, factor, names)
            converted.append(f"{node.name} ({factor:.7g})")
    return note_on(converted, "npu: multiplied the results of {count} ReduceMean nodes: {nodes}", NoteKind.GRAPH)


def reduce_mean_to_pool(model: ir.Model, untouched: Container[str] = ()) -> tuple[Note, ...]:
    """Replace every ReduceMean over height and width that keeps its dimensions by GlobalAveragePool, which is equal."""
    converted = []
    for node in convertible(model, untouched):
        if is_spatial_mean(node) and int_of(node, "keepdims", 1):
            node.op_type = "GlobalAveragePool"
            node.attributes.clear()
            node.resize_inputs(1)
            converted.append(node.name or "")
    return note_on(converted, "npu: replaced {count} ReduceMean nodes by GlobalAveragePool: {nodes}")


# The largest number of values that one pool of the NPU averages.
LARGEST_KERNEL = 512


def split_large_pool(model: ir.Model, untouched: Container[str] = ()) -> tuple[Note, ...]:
    """Split every GlobalAveragePool over more than 512 values into AveragePool and GlobalAveragePool."""
    names = FreshNames(model)
    converted, too_large = [], []
    for node in convertible(model, untouched):
        size = spatial_size(node.inputs[0]) if node.op_type == "GlobalAveragePool" and node.domain == "" else None
        if size is None or size[0] * size[1] <= LARGEST_KERNEL:
            continue
        kernel = first_kernel(*size)
        if kernel is None:
            too_large.append(node.name or "")
        else:
            _insert(node, size, kernel, names)
            converted.append(node.name or "")
    return (
        *note_on(converted, "npu: split {count} large GlobalAveragePool nodes in two: {nodes}"),
        *note_on(
            too_large,
            "npu: kept {count} large GlobalAveragePool nodes: no divisors of height and width bring both parts to 512 "
            "values: {nodes}",
        ),
    )


def first_kernel(height: int, width: int) -> tuple[int, int] | None:
    """Return the kernel of the first of two pools that each average at most 512 values, or None if there is none.

    Prefers square kernels, because the NPU's error is known for them, then small ones.

    Args:
        height: Height of the pooled tensor.
        width: Its width.

    Example:
        >>> first_kernel(28, 28)
        (2, 2)
    """
    candidates = [
        (down, across)
        for down in range(1, height + 1)
        for across in range(1, width + 1)
        if height % down == 0 and width % across == 0
    ]
    fitting = [
        (down, across)
        for down, across in candidates
        if down * across <= LARGEST_KERNEL and (height // down) * (width // across) <= LARGEST_KERNEL
    ]
    return min(fitting, key=lambda kernel: (kernel[0] != kernel[1], kernel[0] * kernel[1], kernel), default=None)


def _insert(node: ir.Node, size: tuple[int, int], kernel: tuple[int, int], names: FreshNames) -> None:
    data, graph = node.inputs[0], node.graph
    assert data is not None
    assert data.shape is not None
    assert graph is not None
    attributes = {"kernel_shape": list(kernel), "strides": list(kernel)}
    pool = ir.node("AveragePool", [data], attributes=attributes, name=names.node(f"{node.name}_part"))
    result = pool.outputs[0]
    result.name = names.value(f"{node.name}_part")
    result.type = data.type
    result.shape = ir.Shape([*data.shape[:2], size[0] // kernel[0], size[1] // kernel[1]])
    graph.insert_before(node, pool)
    node.replace_input_with(0, result)
