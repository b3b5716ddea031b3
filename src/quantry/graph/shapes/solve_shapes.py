"""Fill in axes that ONNX's shape inference leaves unknown, as expressions of named axes."""

import math
from collections.abc import Callable, Iterator, Sequence, Set

import onnx
import onnx_ir as ir

from quantry.graph.edit import int_of, is_whole
from quantry.graph.shapes.known_values import KnownValues, Sizes, axes_of, numbers_of
from quantry.graph.shapes.size import Size

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)

_SMALL_BYTES = 4096  # shapes, axes and the like, whose values determine the shape of a result


def inferred_shapes(node: ir.Node, opset: int) -> list[ir.Shape | None]:
    """Return the shapes of a standard node's outputs by ONNX's rules for that node alone; None if unknown."""
    nothing: list[ir.Shape | None] = [None] * len(node.outputs)
    if node.domain != "" or any(attribute.type in _GRAPHS for attribute in node.attributes.values()):
        return nothing
    inputs = [value for value in node.inputs if value is not None]
    if any(value.type is None or value.shape is None for value in inputs):
        return nothing
    try:
        types = onnx.shape_inference.infer_node_outputs(
            onnx.defs.get_schema(node.op_type, opset),
            ir.serde.serialize_node(node),
            {value.name: ir.serde.serialize_value(value).type for value in inputs},
            {
                value.name: ir.serde.serialize_tensor(tensor)
                for value in inputs
                if (tensor := _small_constant(value)) is not None
            },
            opset_imports=[onnx.helper.make_opsetid("", opset)],
        )
    except (onnx.shape_inference.InferenceError, onnx.defs.SchemaError, RuntimeError, ValueError):
        return nothing
    shapes = [types.get(output.name) for output in node.outputs]
    return [None if proto is None else ir.serde.deserialize_type_proto_for_shape(proto) for proto in shapes]


def _small_constant(value: ir.Value) -> ir.TensorProtocol | None:
    tensor = value.const_value if value.is_initializer() else None
    return tensor if tensor is not None and tensor.nbytes <= _SMALL_BYTES else None


def solve_shapes(model: ir.Model) -> frozenset[str]:
    """Set the shapes of outputs whose unknown axes can be expressed, and propagate them through later nodes.

    Returns:
        Names of the tensors whose shapes became more precise.
    """
    sizes = KnownValues()
    solved: set[str] = set()
    for graph in model.graphs():
        for node in graph:
            if not all(_is_complete(output.shape) for output in node.outputs):
                solved.update(_solve(node, sizes, solved, model.opset_imports[""]))
            sizes.follow(node)
    return frozenset(solved)


def _solve(node: ir.Node, known_sizes: KnownValues, solved: Set[str], opset: int) -> Iterator[str]:
    """Yield the names of a node's outputs whose shapes became more precise."""
    rule = _RULES.get(node.op_type) if node.domain == "" else None
    sizes = rule(node, known_sizes) if rule is not None else None
    shapes: Sequence[ir.Shape | None] = ()
    if sizes is not None:
        shapes = (ir.Shape([size.as_dim() for size in sizes]),)
    elif any(value is not None and value.name in solved for value in node.inputs):
        shapes = inferred_shapes(node, opset)
    for output, shape in zip(node.outputs, shapes, strict=False):
        filled = None if shape is None else _filled(output.shape, shape)
        if filled is not None and filled != output.shape and output.name:
            output.shape = filled
            yield output.name


def _is_complete(shape: ir.Shape | None) -> bool:
    return shape is not None and not any(isinstance(dim, ir.SymbolicDim) and dim.value is None for dim in shape)


def _filled(shape: ir.Shape | None, inferred: ir.Shape) -> ir.Shape | None:
    """Return a shape with its unknown axes filled in; None if the two contradict each other."""
    if shape is None:
        return inferred
    if len(shape) != len(inferred):
        return None
    pairs = zip(shape, inferred, strict=True)
    return ir.Shape([new if isinstance(old, ir.SymbolicDim) and old.value is None else old for old, new in pairs])


def _reshape(node: ir.Node, sizes: KnownValues) -> Sizes | None:
    target, source = sizes.of(node.inputs[1]), axes_of(node.inputs[0])
    if target is None:
        return None
    numbers = [size.number for size in target]
    if 0 in numbers and not int_of(node, "allowzero", 0):
        if source is None or len(source) < len(numbers) - numbers[::-1].index(0):
            return None
        target = tuple(source[index] if size.number == 0 else size for index, size in enumerate(target))
    if -1 not in numbers:
        return target
    if source is None:
        return None
    explicit = _product([size for size in target if size.number != -1])
    remainder = _product(source).divided_by(explicit) if explicit.terms else None
    return None if remainder is None else tuple(remainder if size.number == -1 else size for size in target)


def _constant_of_shape(node: ir.Node, sizes: KnownValues) -> Sizes | None:
    return sizes.of(node.inputs[0])


def _expand(node: ir.Node, known_sizes: KnownValues) -> Sizes | None:
    target, source = known_sizes.of(node.inputs[1]), axes_of(node.inputs[0])
    if target is None or source is None:
        return None
    rank = max(len(target), len(source))
    unit = Size.of(1)
    pairs = zip((unit,) * (rank - len(target)) + target, (unit,) * (rank - len(source)) + source, strict=True)
    sizes = [b if a in (unit, b) else a if b == unit else None for a, b in pairs]
    return None if None in sizes else tuple(size for size in sizes if size is not None)


def _tile(node: ir.Node, sizes: KnownValues) -> Sizes | None:
    repeats, source = sizes.of(node.inputs[1]), axes_of(node.inputs[0])
    if repeats is None or source is None or len(repeats) != len(source):
        return None
    return tuple(size * times for size, times in zip(source, repeats, strict=True))


def _range(node: ir.Node, sizes: KnownValues) -> Sizes | None:
    start, limit, delta = (sizes.of(value) for value in node.inputs)
    return (limit[0] - start[0],) if start and limit and delta == (Size.of(1),) else None


def _concat(node: ir.Node, _known: KnownValues) -> Sizes | None:
    operands = [axes_of(value) for value in node.inputs]
    complete = [operand for operand in operands if operand is not None]
    if not complete or len(complete) != len(operands):
        return None
    axis = int_of(node, "axis", 0) % len(complete[0])
    joined = sum((operand[axis] for operand in complete), start=Size.of(0))
    return (*complete[0][:axis], joined, *complete[0][axis + 1 :])


def _flatten(node: ir.Node, _known: KnownValues) -> Sizes | None:
    source = axes_of(node.inputs[0])
    if source is None:
        return None
    axis = int_of(node, "axis", 1)
    axis += len(source) if axis < 0 else 0
    return _product(source[:axis]), _product(source[axis:])


def _pad(node: ir.Node, sizes: KnownValues) -> Sizes | None:
    pads, source = sizes.of(node.inputs[1]), axes_of(node.inputs[0])
    if pads is None or source is None or len(pads) != 2 * len(source):
        return None
    return tuple(size + pads[axis] + pads[axis + len(source)] for axis, size in enumerate(source))


def _resize(node: ir.Node, sizes: KnownValues) -> Sizes | None:
    target = sizes.of(node.inputs[3]) if len(node.inputs) > 3 else None
    source = axes_of(node.inputs[0])
    # With a policy or with axes, the sizes are not the shape of the result.
    modified = "axes" in node.attributes or "keep_aspect_ratio_policy" in node.attributes
    if modified or source is None:
        return None
    if target is not None:
        return target if len(target) == len(source) else None
    return _scaled(node, source)


def _scaled(node: ir.Node, source: Sizes) -> Sizes | None:
    """Return the lengths after a Resize with constant scales; ONNX does not infer them for symbolic axes."""
    scales = node.inputs[2] if len(node.inputs) > 2 else None
    if scales is None or scales.const_value is None or scales.const_value.shape != (len(source),):
        return None
    factors = [float(factor) for factor in scales.const_value.numpy()]
    name = str(node.outputs[0].name)
    return tuple(
        size * Size.of(int(factor)) if factor.is_integer() and factor > 0 else Size.open(name, axis)
        for axis, (size, factor) in enumerate(zip(source, factors, strict=True))
    )


def _slice(node: ir.Node, sizes: KnownValues) -> Sizes | None:
    """Slices from the first to the last element keep the length; ONNX's rules handle the others."""
    source = axes_of(node.inputs[0])
    starts, ends = (numbers_of(sizes.of(value)) for value in node.inputs[1:3])
    if source is None or starts is None or ends is None:
        return None
    axes = (
        numbers_of(sizes.of(node.inputs[3]))
        if len(node.inputs) > 3 and node.inputs[3] is not None
        else range(len(starts))
    )
    steps = numbers_of(sizes.of(node.inputs[4])) if len(node.inputs) > 4 else [1] * len(starts)
    if axes is None or steps is None:
        return None
    cut = {
        axis % len(source)
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True)
        if not is_whole(start, end, step, source[axis % len(source)].number)
    }
    name = str(node.outputs[0].name)
    return tuple(Size.open(name, axis) if axis in cut else size for axis, size in enumerate(source))


def _product(sizes: Sizes | list[Size]) -> Size:
    return math.prod(sizes, start=Size.of(1))


_RULES: dict[str, Callable[[ir.Node, KnownValues], Sizes | None]] = {
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Flatten": _flatten,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
    "Tile": _tile,
}
