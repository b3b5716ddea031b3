"""Writes one convolution as several, each of a run of its output channels.

::

    x -> Conv -> Relu -> y        x -> Conv -> Relu -> Concat -> y          a depthwise one reads its part of a Split
                                  x -> Conv -> Relu -/

A function behind the convolution goes with the groups, so that a runtime can still compute both in one piece.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantry.equalize.channel_class import FUNCTIONS
from quantry.equalize.channel_layout import taken_bias
from quantry.equalize.linear_layer import LinearLayer, array_of
from quantry.graph.edit import FreshNames
from quantry.graph.weights import new_initializer

_SPLIT_BY_INPUT = 13
"""From this opset on, Split reads the lengths of its parts from an input."""


@dataclass(frozen=True, eq=False)
class _Group:
    """One group: its number, its channels and what names are free."""

    number: int
    channels: slice
    names: FreshNames

    @property
    def count(self) -> int:
        return int(self.channels.stop - self.channels.start)

    def value(self, like: ir.Value) -> ir.Value:
        lengths = None
        if like.shape is not None:
            lengths = ir.Shape([self.count if axis == 1 else length for axis, length in enumerate(like.shape)])
        return ir.Value(name=self.names.value(f"{like.name}_group{self.number}"), shape=lengths, type=like.type)

    def node(self, like: ir.Node, inputs: Sequence[ir.Value | None]) -> ir.Node:
        attributes = [attribute for attribute in like.attributes.values() if attribute.name != "group"]
        name = self.names.node(f"{like.name or like.op_type}_group{self.number}")
        return ir.Node("", like.op_type, inputs, attributes, outputs=[self.value(like.outputs[0])], name=name)


def split_convolution(layer: LinearLayer, ends: Sequence[int], names: FreshNames) -> None:
    """Replace a Conv, and the function behind it, by groups and a Concat.

    Args:
        layer: A Conv of one group, or a depthwise one.
        ends: Where the runs of output channels end.
        names: Names that are free.
    """
    graph = layer.node.graph
    source = layer.node.inputs[0]
    assert isinstance(graph, ir.Graph)
    assert source is not None
    starts = (0, *ends[:-1])
    groups = [
        _Group(number, slice(start, stop), names) for number, (start, stop) in enumerate(zip(starts, ends, strict=True))
    ]
    old = [layer.node, *_functions_behind(layer.node)]
    tail = old[-1].outputs[0]
    depthwise = layer.layout.groups > 1
    parts = _parts(graph, layer.node, source, groups) if depthwise else [source] * len(groups)
    joined = [_write(graph, layer, old, group, part) for group, part in zip(groups, parts, strict=True)]
    output = ir.Value(name=names.value(f"{tail.name}_joined"), shape=tail.shape, type=tail.type)
    concat = ir.Node("", "Concat", joined, [ir.AttrInt64("axis", 1)], outputs=[output])
    concat.name = names.node(f"{layer.node.name or 'Conv'}_join")
    graph.insert_before(layer.node, concat)
    for node, index in tuple(tail.uses()):
        node.replace_input_with(index, output)
    unused = [value for value in (layer.weight, layer.bias) if value is not None]
    graph.remove(list(reversed(old)), safe=True)
    for value in unused:
        graph.initializers.pop(value.name or "")
    # Readers of the result, and whoever names it in a recipe, find it under its old name.
    name, tail.name = tail.name, output.name
    output.name = name


def _functions_behind(node: ir.Node) -> list[ir.Node]:
    """Return the function that alone reads a node's result: one of `FUNCTIONS`, or ``x * sigmoid(x)`` as two nodes."""
    value = node.outputs[0]
    readers = list(dict.fromkeys(use.node for use in value.uses()))
    if len(readers) == 1 and readers[0].op_type in FUNCTIONS and readers[0].domain == "":
        first, *others = readers[0].inputs
        alone = all(other is None or other.is_initializer() for other in others)
        return readers if first is value and alone and readers[0].graph is node.graph else []
    if len(readers) != 2 or any(reader.graph is not node.graph or reader.domain != "" for reader in readers):
        return []
    product = next((reader for reader in readers if reader.op_type == "Mul"), None)
    gate = next((reader for reader in readers if reader.op_type in ("Sigmoid", "HardSigmoid")), None)
    if product is None or gate is None or [use.node for use in gate.outputs[0].uses()] != [product]:
        return []
    return [gate, product]


def _parts(graph: ir.Graph, node: ir.Node, source: ir.Value, groups: Sequence[_Group]) -> list[ir.Value]:
    """Split the input of a depthwise convolution."""
    names = groups[0].names
    lengths = np.array([group.count for group in groups], dtype=np.int64)
    outputs = [group.value(source) for group in groups]
    inputs: list[ir.Value] = [source]
    attributes = [ir.AttrInt64("axis", 1)]
    if graph.opset_imports.get("", _SPLIT_BY_INPUT) >= _SPLIT_BY_INPUT:
        inputs.append(new_initializer(names.value(f"{source.name}_lengths"), lengths))
        graph.register_initializer(inputs[1])
    else:
        attributes.append(ir.AttrInt64s("split", lengths.tolist()))
    split = ir.Node("", "Split", inputs, attributes, outputs=outputs, name=names.node(f"{node.name or 'Conv'}_split"))
    graph.insert_before(node, split)
    return outputs


def _write(graph: ir.Graph, layer: LinearLayer, old: Sequence[ir.Node], group: _Group, part: ir.Value) -> ir.Value:
    """Write one group of a convolution and the function behind it; return its result."""
    constants = [_initializer(graph, layer.weight, array_of(layer.weight)[group.channels], group)]
    if layer.bias is not None:
        order = np.arange(group.channels.start, group.channels.stop)
        bias = taken_bias(array_of(layer.bias), order, layer.layout.outputs)
        constants.append(_initializer(graph, layer.bias, bias, group))
    convolution = group.node(old[0], [part, *constants])
    if layer.layout.groups > 1:
        convolution.attributes["group"] = ir.AttrInt64("group", group.count)
    graph.insert_before(layer.node, convolution)
    made = {old[0].outputs[0]: convolution.outputs[0]}
    for function in old[1:]:
        inputs = [value if value is None else made.get(value, value) for value in function.inputs]
        written = group.node(function, inputs)
        graph.insert_before(layer.node, written)
        made[function.outputs[0]] = written.outputs[0]
    return made[old[-1].outputs[0]]


def _initializer(graph: ir.Graph, like: ir.Value, array: np.ndarray, group: _Group) -> ir.Value:
    value = new_initializer(group.names.value(f"{like.name}_group{group.number}"), np.ascontiguousarray(array))
    graph.register_initializer(value)
    return value
