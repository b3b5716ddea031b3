"""Fills in axes that ONNX's inference leaves open, as expressions of axes that have a name."""

import math
from collections.abc import Callable

import onnx_ir as ir

from quantry.prepare.graph.attribute_of import int_of
from quantry.prepare.symbolic.known_values import KnownValues, Sizes, sizes_of_shape
from quantry.prepare.symbolic.size import Size


def solve_shapes(model: ir.Model) -> frozenset[str]:
    """Set the shapes of outputs whose unknown axes can be expressed.

    Returns:
        Names of the tensors whose shape is now known and was not before.
    """
    known = KnownValues()
    solved: set[str] = set()
    for graph in model.graphs():
        for node in graph:
            known.follow(node)
            rule = _RULES.get(node.op_type) if node.domain == "" else None
            output = node.outputs[0]
            if rule is None or output.name is None or sizes_of_shape(output.shape) is not None:
                continue
            sizes = rule(node, known)
            if sizes is not None:
                output.shape = ir.Shape([size.as_dim() for size in sizes])
                solved.add(output.name)
    return frozenset(solved)


def _source_sizes(node: ir.Node) -> Sizes | None:
    source = node.inputs[0]
    return sizes_of_shape(source.shape) if source is not None else None


def _reshape(node: ir.Node, known: KnownValues) -> Sizes | None:
    target, source = known.of(node.inputs[1]), _source_sizes(node)
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
    others = _product([size for size in target if size.number != -1])
    rest = _product(source).divided_by(others) if others.terms else None
    return None if rest is None else tuple(rest if size.number == -1 else size for size in target)


def _constant_of_shape(node: ir.Node, known: KnownValues) -> Sizes | None:
    return known.of(node.inputs[0])


def _expand(node: ir.Node, known: KnownValues) -> Sizes | None:
    target, source = known.of(node.inputs[1]), _source_sizes(node)
    if target is None or source is None:
        return None
    rank = max(len(target), len(source))
    one = Size.of(1)
    pairs = zip((one,) * (rank - len(target)) + target, (one,) * (rank - len(source)) + source, strict=True)
    sizes = [b if a in (one, b) else a if b == one else None for a, b in pairs]
    return None if None in sizes else tuple(size for size in sizes if size is not None)


def _tile(node: ir.Node, known: KnownValues) -> Sizes | None:
    repeats, source = known.of(node.inputs[1]), _source_sizes(node)
    if repeats is None or source is None or len(repeats) != len(source):
        return None
    return tuple(size * times for size, times in zip(source, repeats, strict=True))


def _range(node: ir.Node, known: KnownValues) -> Sizes | None:
    start, limit, delta = (known.of(value) for value in node.inputs)
    return (limit[0] - start[0],) if start and limit and delta == (Size.of(1),) else None


def _concat(node: ir.Node, _known: KnownValues) -> Sizes | None:
    parts = [sizes_of_shape(value.shape) for value in node.inputs if value is not None]
    complete = [part for part in parts if part is not None]
    if not complete or len(complete) != len(parts):
        return None
    axis = int_of(node, "axis", 0) % len(complete[0])
    joined = sum((part[axis] for part in complete), start=Size.of(0))
    return (*complete[0][:axis], joined, *complete[0][axis + 1 :])


def _flatten(node: ir.Node, _known: KnownValues) -> Sizes | None:
    source = _source_sizes(node)
    if source is None:
        return None
    axis = int_of(node, "axis", 1)
    axis += len(source) if axis < 0 else 0
    return _product(source[:axis]), _product(source[axis:])


def _pad(node: ir.Node, known: KnownValues) -> Sizes | None:
    pads, source = known.of(node.inputs[1]), _source_sizes(node)
    if pads is None or source is None or len(pads) != 2 * len(source):
        return None
    return tuple(size + pads[axis] + pads[axis + len(source)] for axis, size in enumerate(source))


def _resize(node: ir.Node, known: KnownValues) -> Sizes | None:
    target = known.of(node.inputs[3]) if len(node.inputs) > 3 else None
    source = _source_sizes(node)
    # With a policy or with axes the sizes are not simply the shape of the result.
    return (
        None
        if source is None
        or target is None
        or len(target) != len(source)
        or "axes" in node.attributes
        or "keep_aspect_ratio_policy" in node.attributes
        else target
    )


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
    "Tile": _tile,
}
