"""Float layers between quantized tensors, whose weights onnxruntime rounds although nobody asked for it.

Its optimizer WeightBiasQuantization gives the float weights of a layer one 8-bit scale if the layer's input comes from
a DequantizeLinear and its result, perhaps after Relu or Clip, goes to a QuantizeLinear.
"""

from collections.abc import Collection, Iterable, Iterator

import onnx_ir as ir

from quantry.facts.operators import BIASED
from quantry.graph.edit import constant_of

WEIGHT_ROUNDING_OPTIMIZER = "WeightBiasQuantization"
"""The name under which a session can disable it."""

_MERGED = ("Relu", "Clip")


def lone_layers(nodes: Iterable[ir.Node], quantized: Collection[str], rounded: Collection[str]) -> Iterator[ir.Node]:
    """Yield the float layers whose weights onnxruntime rounds.

    Args:
        nodes: The nodes of the model.
        quantized: Names of the quantized nodes.
        rounded: Names of the activations with a QuantizeLinear and a DequantizeLinear.
    """
    for node in nodes:
        if node.op_type not in BIASED or node.name in quantized or constant_of(node.inputs[1]) is None:
            continue
        source = node.inputs[0]
        if source is not None and source.name in rounded and _result(node, quantized).name in rounded:
            yield node


def _result(layer: ir.Node, quantized: Collection[str]) -> ir.Value:
    """Return the result of a layer, or of the float function that is merged with it."""
    value = layer.outputs[0]
    readers = [use.node for use in value.uses()]
    if len(readers) != 1 or value.is_graph_output() or readers[0].op_type not in _MERGED:
        return value
    return value if readers[0].name in quantized else readers[0].outputs[0]
