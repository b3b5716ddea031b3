"""Relu and Clip on integers.

Rounding never changes the order of two numbers, so ``Q(clip(y, a, b)) = clip(Q(y), Q(a), Q(b))`` exactly, whatever the
scale and the zero point. Where the type itself ends at the bounds there is nothing left to do.
"""

import numpy as np
import onnx_ir as ir

from quantry.emit.integer.unit import BYTES, Side, Unit, array

Limits = tuple[int | None, int | None]


def bounds(unit: Unit) -> ir.Node | None:
    """Return Clip on the integers, for a Relu or Clip whose input and output have the same parameters."""
    source = unit.inputs[0]
    if source is None or not source.same_grid(unit.output) or source.dtype not in BYTES:
        return None
    return clip_node(unit, source.integers, limits_of(unit.node, unit.output))


def limits_of(node: ir.Node, side: Side) -> Limits:
    """Return the integers that a Relu or Clip bounds its output by; None where the type itself ends there.

    Args:
        node: The Relu or Clip.
        side: Its output in quantized form, with one scale.
    """
    low, high = (0.0, None) if node.op_type == "Relu" else (_bound(node, 1), _bound(node, 2))
    assert side.dtype is not None
    ends = np.iinfo(side.dtype.numpy())
    lowest, highest = _integer(low, side), _integer(high, side)
    return (
        None if lowest is None or lowest <= ends.min else lowest,
        None if highest is None or highest >= ends.max else highest,
    )


def clip_node(unit: Unit, integers: ir.Value, limits: Limits) -> ir.Node:
    """Return a Clip of integers.

    Args:
        unit: The unit it belongs to.
        integers: What it bounds.
        limits: Its bounds.
    """
    dtype = unit.output.dtype
    assert dtype is not None
    named = zip(("min", "max"), limits, strict=True)
    constants = [
        None
        if limit is None
        else unit.editor.constant(np.array(limit, dtype.numpy()), f"{unit.node.name}_quant_{name}")
        for name, limit in named
    ]
    return unit.make(("", "Clip"), (integers, *constants))


def _bound(node: ir.Node, index: int) -> float | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None else float(array(value))


def _integer(bound: float | None, side: Side) -> int | None:
    if bound is None:
        return None
    assert side.dtype is not None
    ends = np.iinfo(side.dtype.numpy())
    level = np.rint(np.float32(bound) / array(side.scale).astype(np.float32)) + int(array(side.zero_point))
    return int(np.clip(level, ends.min, ends.max))
