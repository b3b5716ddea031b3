"""Finds the layers that can be equalized together.

::

    Conv -> Relu -> Conv                                                 a pair, one link
    Conv -> Relu -> depthwise Conv -> Relu -> pointwise Conv             a triple, two links
    Conv -> Sigmoid                                                      no link: not homogeneous
    Conv -> Add <- Conv                                                  no link: two results are combined

A link joins a layer to the only reader of its result. A depthwise layer hands its channels on one by one, so the links
on both sides of it belong to one chain; every link is in exactly one chain.
"""

from collections import Counter
from dataclasses import dataclass

import onnx_ir as ir

from quantry.equalize.linear_layer import LinearLayer, linear_layer
from quantry.equalize.passage import Channels, not_homogeneous, passage
from quantry.graph.operators import LINEAR


@dataclass(frozen=True)
class Chains:
    """What can be equalized and what cannot.

    Attributes:
        layers: Every layer that is in some chain.
        chains: Indices into ``layers``: a first layer, depthwise ones in between, a last one.
        reasons: How many layers are not linked to their successor, by reason.
    """

    layers: tuple[LinearLayer, ...]
    chains: tuple[tuple[int, ...], ...]
    reasons: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class _Link:
    tail: LinearLayer
    flattened: bool


def find_chains(model: ir.Model) -> Chains:
    """Return the chains of a model, those with depthwise layers first, each kind in the order of the graph.

    Args:
        model: A topologically sorted graph; layers in subgraphs take part, links between graphs do not.
    """
    found = {
        node: linear_layer(node)
        for node in ir.traversal.RecursiveGraphIterator(model.graph)
        if node.op_type in LINEAR and node.domain == ""
    }
    links: dict[ir.Node, _Link] = {}
    reasons: Counter[str] = Counter()
    for node, layer in found.items():
        link = layer if isinstance(layer, str) else _follow(layer, found)
        if isinstance(link, str):
            reasons[link] += 1
        else:
            links[node] = link
    sequences = sorted(_sequences(found, links), key=lambda sequence: len(sequence) == 2)
    members = {layer.node: layer for sequence in sequences for layer in sequence}
    index = {node: position for position, node in enumerate(members)}
    chains = tuple(tuple(index[layer.node] for layer in sequence) for sequence in sequences)
    return Chains(tuple(members.values()), chains, tuple(sorted(reasons.items())))


def _follow(head: LinearLayer, found: dict[ir.Node, LinearLayer | str]) -> _Link | str:
    """Return the link from a layer to the next, or why there is none."""
    value, channels = head.output, Channels(head.output_axis)
    while True:
        readers = [usage.node for usage in value.uses()]
        if value.is_graph_output():
            return "its result is an output of the model"
        if len(readers) != 1:
            return next(filter(None, map(not_homogeneous, readers)), "several nodes read its result")
        reader = readers[0]
        if reader.graph is not head.node.graph:
            return "its result is read inside a subgraph"
        if reader.inputs[0] is not value:
            return f"{reader.op_type} combines or moves channels"
        tail = found.get(reader)
        if tail is not None:
            return _link(head, channels, tail)
        passed = passage(reader, channels)
        if isinstance(passed, str):
            return passed
        value, channels = reader.outputs[0], passed


def _link(head: LinearLayer, channels: Channels, tail: LinearLayer | str) -> _Link | str:
    if isinstance(tail, str):
        return f"of the layer behind it: {tail}"
    produced, read = head.layout.outputs, tail.layout.inputs
    fits = read % produced == 0 if channels.flattened else read == produced
    if channels.axis != tail.input_axis or not fits:
        return f"{tail.node.op_type} reads its result along another axis"
    return _Link(tail, channels.flattened)


def _sequences(found: dict[ir.Node, LinearLayer | str], links: dict[ir.Node, _Link]) -> list[list[LinearLayer]]:
    """Join links at depthwise layers."""
    handed_on = {link.tail.node for link in links.values() if _hands_on(link) and link.tail.node in links}
    sequences = []
    for node, link in links.items():
        if node in handed_on:
            continue
        head = found[node]
        assert isinstance(head, LinearLayer)
        sequence = [head, link.tail]
        while sequence[-1].node in handed_on:
            sequence.append(links[sequence[-1].node].tail)
        sequences.append(sequence)
    return sequences


def _hands_on(link: _Link) -> bool:
    return link.tail.layout.is_depthwise and not link.flattened
