"""Small edits of an onnx-ir graph: read attributes and constants, find free names, replace values, remove nodes."""

import gc
import math
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import onnx_ir as ir

from quantry.facts.operators import LINEAR
from quantry.graph.weights import new_initializer


def int_of(node: ir.Node, name: str, default: int) -> int:
    """Return an integer attribute, or the default if it is absent or refers to a parameter of a function."""
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.is_ref() else attribute.as_int()


def float_of(node: ir.Node, name: str, default: float) -> float:
    """Return a float attribute, or the default if it is absent or refers to a parameter of a function."""
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.is_ref() else attribute.as_float()


def string_of(node: ir.Node, name: str, default: str) -> str:
    """Return a string attribute, or the default if it is absent or refers to a parameter of a function."""
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.is_ref() else attribute.as_string()


def constant_of(value: ir.Value | None) -> np.ndarray | None:
    """Return the array of an initializer that no caller can override, else None."""
    if value is None or not value.is_initializer() or value.is_graph_input() or value.const_value is None:
        return None
    return value.const_value.numpy()


def producers_of(node: ir.Node) -> list[ir.Node]:
    """Return the nodes that compute the inputs of a node, in order; constants and inputs of the model have none."""
    return [producer for value in node.inputs if value is not None and (producer := value.producer()) is not None]


_TELLING = 4096


def is_learned(node: ir.Node) -> bool:
    """Return whether a node is a layer with learned weights, or multiplies two activations.

    Args:
        node: The node.
    """
    if node.op_type not in LINEAR:
        return False
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    constant = None if weight is None else weight.const_value
    if constant is None:
        return True
    values = constant.numpy().reshape(-1)
    # The first values nearly always tell, and a large weight takes long to read.
    return any(not np.array_equal(block, np.rint(block)) for block in (values[:_TELLING], values[_TELLING:]))


def is_channel_product(node: ir.Node) -> bool:
    """Return whether a node is the multiplication with one factor per channel that equalization inserts.

    Args:
        node: The node.
    """
    if node.op_type != "Mul" or len(node.inputs) != 2:
        return False
    value, factors = node.inputs
    return value is not None and factors is not None and (factors.name or "").startswith(f"{value.name}_factors")


def products_after(nodes: Iterable[ir.Node], names: Collection[str | None]) -> frozenset[str]:
    """Return the names of the multiplications that equalization inserted after some nodes; they stay float with these.

    Args:
        nodes: All nodes.
        names: Names of the nodes that they multiply the results of.
    """
    return frozenset(
        node.name or ""
        for node in nodes
        if is_channel_product(node) and any(producer.name in names for producer in producers_of(node))
    )


def bounds_of(node: ir.Node) -> tuple[float, float] | None:
    """Return the numbers between which a Relu or Clip keeps its input; None for other nodes and computed bounds.

    Args:
        node: Any node.
    """
    if node.domain != "" or node.op_type not in ("Relu", "Clip"):
        return None
    if node.op_type == "Relu":
        return 0.0, math.inf
    bounds = [-math.inf, math.inf]
    for index, value in enumerate(node.inputs[1:3]):
        constant = constant_of(value)
        if value is not None and (constant is None or constant.size != 1):
            return None
        if constant is not None:
            bounds[index] = float(constant.reshape(()))
    return bounds[0], bounds[1]


class FreshNames:
    """Creates names that are unique in the whole model, including subgraphs.

    The same model and the same sequence of requests give the same names.
    """

    def __init__(self, model: ir.Model) -> None:
        self._values = _value_names(model)
        self._nodes = {node.name for node in ir.traversal.RecursiveGraphIterator(model.graph) if node.name}

    def value(self, name: str) -> str:
        """Return ``name``, with a number appended if a tensor of that name exists."""
        return _claim(name, self._values)

    def node(self, name: str) -> str:
        """Return ``name``, with a number appended if a node of that name exists."""
        return _claim(name, self._nodes)


def _claim(stem: str, used: set[str]) -> str:
    name = stem
    number = 0
    while name in used:
        number += 1
        name = f"{stem}_{number}"
    used.add(name)
    return name


def _value_names(model: ir.Model) -> set[str]:
    names: set[str] = set()
    for graph in model.graphs():
        names.update(graph.initializers)
        names.update(value.name for value in graph.inputs if value.name)
        names.update(value.name for node in graph for value in node.outputs if value.name)
    return names


def bypass(node: ir.Node, replacement: ir.Value) -> bool:
    """Replace a node's first output by another value and remove the node.

    A graph output keeps its name: the replacement gets that name. This is impossible if the replacement must keep its
    own name (a graph input, an initializer, another graph output) or belongs to an outer graph; the node then stays.

    Returns:
        Whether the node was removed.
    """
    output = node.outputs[0]
    graph = node.graph
    assert graph is not None
    if output.is_graph_output():
        if not _can_be_renamed(replacement, output):
            return False
        _adopt_type(replacement, output)
        output.replace_all_uses_with(replacement, replace_graph_outputs=True)
        name, output.name = output.name, None
        replacement.name = name
    else:
        _adopt_type(replacement, output)
        output.replace_all_uses_with(replacement)
    graph.remove(node, safe=True)
    return True


def _can_be_renamed(value: ir.Value, output: ir.Value) -> bool:
    named_outside = value.is_graph_input() or value.is_initializer() or value.is_graph_output()
    return not named_outside and value.producer() is not None and value.graph is output.graph


def _adopt_type(value: ir.Value, output: ir.Value) -> None:
    """Copy type and shape from the removed output if the value has none."""
    if value.type is None:
        value.type = output.type
    if value.shape is None:
        value.shape = output.shape


_TO_THE_END = 10**9  # exporters write this or a larger number; no axis of a network is that long


def is_whole(start: int, end: int, step: int, length: int | None) -> bool:
    """Return whether a slice takes every element of an axis in order.

    Args:
        start: Index of the first element.
        end: Index after the last element.
        step: Distance between elements.
        length: Length of the axis, None if unknown.
    """
    from_first = start == 0 or (length is not None and start == -length)
    return from_first and step == 1 and end >= (_TO_THE_END if length is None else length)


def take_over(old: ir.Value, new: ir.Value, names: FreshNames) -> None:
    """Replace ``old`` by ``new`` for every reader, except the node that computes ``new`` from it.

    ``new`` gets type, shape and name of ``old``, so that graph outputs and tensors selected by name do not change;
    ``old`` is renamed.

    Args:
        old: The value to replace.
        new: An output of a node in the same graph.
        names: Creates free names.
    """
    new.type, new.shape = old.type, old.shape
    readers = [use for use in old.uses() if use.node is not new.producer()]
    for use in readers:
        use.node.replace_input_with(use.idx, new)
    graph = old.graph
    if graph is not None and old.is_graph_output():
        for index, output in enumerate(graph.outputs):
            if output is old:
                graph.outputs[index] = new
    name = old.name or ""
    old.name = names.value(f"{name}_before_npu")
    new.name = name


def multiply_result(node: ir.Node, factor: float, names: FreshNames) -> None:
    """Multiply the first output of a node by a constant, which an NPU does implicitly.

    ::

        before    node -> t -> readers
        after     node -> t_before_npu -> Mul(factor) -> t -> readers

    Args:
        node: The node.
        factor: The constant.
        names: Creates free names.
    """
    graph, output = node.graph, node.outputs[0]
    assert graph is not None
    dtype = np.dtype(np.float32) if output.dtype is None else output.dtype.numpy()
    constant = new_initializer(names.value(f"{node.name}_npu_factor"), np.asarray(factor, dtype))
    graph.register_initializer(constant)
    product = ir.node("Mul", [output, constant], name=names.node(f"{node.name}_npu_factor"))
    graph.insert_after(node, product)
    take_over(output, product.outputs[0], names)


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause Python's cycle collector inside the block; for blocks of well under a second.

    Values and nodes of a graph refer to each other. Creating ten thousand of them makes the collector walk over all
    objects of the process several times without finding anything, which makes writing a model 1.5 times slower.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
