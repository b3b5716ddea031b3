"""Follow the values of small integer tensors, such as shapes, through a graph."""

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from quantry.graph.edit import constant_of, int_of
from quantry.graph.shapes.size import Size

Sizes = tuple[Size, ...]

_EXACT_TYPES = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.DOUBLE, ir.DataType.FLOAT)  # represent all lengths

_MOST_ELEMENTS = 64  # shapes, pads and axes are short; longer integer tensors are data


class KnownValues:
    """Elements of integer tensors with at most one axis, as far as they follow from the inputs' shapes."""

    def __init__(self) -> None:
        self._sizes: dict[ir.Value, Sizes] = {}

    def of(self, value: ir.Value | None) -> Sizes | None:
        """Return the elements of a tensor, or None if unknown."""
        if value is None:
            return None
        if value in self._sizes:
            return self._sizes[value]
        array = constant_of(value) if _may_be_shape(value) else None
        return None if array is None else tuple(Size.of(int(element)) for element in array.reshape(-1))

    def follow(self, node: ir.Node) -> None:
        """Compute a node's first output, if its operator computes with shapes."""
        rule = _RULES.get(node.op_type) if node.domain == "" else None
        output = node.outputs[0]
        # The rules work on a flat list of elements, which is the whole tensor only for at most one axis.
        if rule is None or output.shape is None or len(output.shape) > 1:
            return
        result = rule(node, self)
        if result is not None and len(result) <= _MOST_ELEMENTS:
            self._sizes[output] = result


def axes_of(value: ir.Value | None) -> Sizes | None:
    """Return the lengths of a tensor's axes, or None if their number is unknown."""
    if value is None or value.shape is None:
        return None
    dims = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    return tuple(Size.open(str(value.name), axis) if dim is None else Size.of(dim) for axis, dim in enumerate(dims))


def numbers_of(sizes: Sizes | None) -> list[int] | None:
    """Return sizes as numbers if all of them are, else None."""
    numbers = [size.number for size in sizes or ()]
    return [number for number in numbers if number is not None] if numbers and None not in numbers else None


def _may_be_shape(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None or tensor.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
        return False
    return len(tensor.shape) <= 1 and math.prod(tensor.shape.numpy()) <= _MOST_ELEMENTS


def _shape(node: ir.Node, _known: KnownValues) -> Sizes | None:
    axes = axes_of(node.inputs[0])
    return None if axes is None else axes[int_of(node, "start", 0) : int_of(node, "end", len(axes))]


def _count(node: ir.Node, _known: KnownValues) -> Sizes | None:
    axes = axes_of(node.inputs[0])
    return None if axes is None else (math.prod(axes, start=Size.of(1)),)


def _pass_on(node: ir.Node, sizes: KnownValues) -> Sizes | None:
    return sizes.of(node.inputs[0])


def _cast(node: ir.Node, sizes: KnownValues) -> Sizes | None:
    return sizes.of(node.inputs[0]) if int_of(node, "to", 0) in _EXACT_TYPES else None


def _concat(node: ir.Node, sizes: KnownValues) -> Sizes | None:
    operands = [sizes.of(value) for value in node.inputs]
    return None if None in operands else tuple(size for operand in operands if operand is not None for size in operand)


def _gather(node: ir.Node, sizes: KnownValues) -> Sizes | None:
    elements, indices = sizes.of(node.inputs[0]), numbers_of(sizes.of(node.inputs[1]))
    if elements is None or indices is None or not all(-len(elements) <= index < len(elements) for index in indices):
        return None
    return tuple(elements[index] for index in indices)


def _slice(node: ir.Node, sizes: KnownValues) -> Sizes | None:
    elements = sizes.of(node.inputs[0])
    steps = numbers_of(sizes.of(node.inputs[4])) if len(node.inputs) > 4 else [1]
    starts, ends = numbers_of(sizes.of(node.inputs[1])), numbers_of(sizes.of(node.inputs[2]))
    if elements is None or starts is None or ends is None or steps is None:
        return None
    # A slice of a shape has one axis; ends beyond the tensor are clipped as in Python.
    end = None if steps[0] < 0 and ends[0] < -len(elements) else ends[0]
    return elements[starts[0] : end : steps[0]]


def _pairwise(combine: Callable[[Size, Size], Size | None]) -> Callable[[ir.Node, KnownValues], Sizes | None]:
    def rule(node: ir.Node, sizes: KnownValues) -> Sizes | None:
        first, second = sizes.of(node.inputs[0]), sizes.of(node.inputs[1])
        if first is None or second is None or (len(first) != len(second) and 1 not in (len(first), len(second))):
            return None
        pairs = np.broadcast(np.array(first, object), np.array(second, object))
        results = [combine(a, b) for a, b in pairs]
        return None if None in results else tuple(result for result in results if result is not None)

    return rule


def _product(node: ir.Node, sizes: KnownValues) -> Sizes | None:
    elements = sizes.of(node.inputs[0])
    return None if elements is None else (math.prod(elements, start=Size.of(1)),)


_RULES: dict[str, Callable[[ir.Node, KnownValues], Sizes | None]] = {
    "Shape": _shape,
    "Size": _count,
    "Cast": _cast,
    "Identity": _pass_on,
    "Reshape": _pass_on,
    "Squeeze": _pass_on,
    "Unsqueeze": _pass_on,
    "Concat": _concat,
    "Gather": _gather,
    "Slice": _slice,
    "Add": _pairwise(Size.__add__),
    "Sub": _pairwise(Size.__sub__),
    "Mul": _pairwise(Size.__mul__),
    "Div": _pairwise(Size.divided_by),
    "ReduceProd": _product,
}
