"""Writes Split as one Slice for each output."""

from collections.abc import Container

import numpy as np
import onnx_ir as ir

from quantry.graph.edit import FreshNames, constant_of, int_of, take_over
from quantry.graph.weights import new_initializer
from quantry.prepare.npu.nodes import convertible, listed


def split_to_slice(model: ir.Model, untouched: Container[str] = ()) -> tuple[str, ...]:
    """Replace every Split whose parts have known sizes by Slice nodes; the same values, moved the same way."""
    names = FreshNames(model)
    changed = []
    for node in convertible(model, untouched):
        sizes = _sizes(node) if node.op_type == "Split" and node.domain == "" else None
        if sizes is not None:
            _replace(node, sizes, names)
            changed.append(node.name or "")
    return (f"npu: wrote {len(changed)} Split nodes as Slice: {listed(changed)}",) if changed else ()


def _sizes(node: ir.Node) -> list[int] | None:
    """Return the sizes of the parts along the axis, or None where they are not known before the model runs."""
    given = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    if given is not None:
        return [int(size) for size in given]
    axis = int_of(node, "axis", 0)
    sizes = [None if output.shape is None else output.shape[axis] for output in node.outputs]
    known = [size for size in sizes if isinstance(size, int)]
    return known if len(known) == len(sizes) else None


def _replace(node: ir.Node, sizes: list[int], names: FreshNames) -> None:
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
        part = ir.node("Slice", [data, *constants], name=names.node(name))
        graph.insert_before(node, part)
        take_over(output, part.outputs[0], names)
    graph.remove(node, safe=True)
