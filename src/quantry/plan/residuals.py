r"""Finds the sums that normalizations read.

::

    MatMul -> f -> Add(bias) -> g -> Add(residual) -> h -> LayerNormalization -> y

In transformers a few channels of h are a hundred times as large as the others, and the normalization divides by the
deviation of all: what 8 bits leave of the small channels is noise. No kernel adds or normalizes such tensors in 8 bits
to advantage, so f, g and h stay float; y, whose channels are alike again, is quantized.
"""

from dataclasses import replace

import onnx_ir as ir

from quantry.plan.rules import Annotation, Declined

REASON = "a normalization reads its sum, in which outliers of few channels would cost all others their resolution"

_NORMALIZATIONS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})


def normalized_sums(graph: ir.Graph) -> frozenset[ir.Value]:
    """Return the sums that normalizations read, and the summands that nobody else reads.

    Args:
        graph: The sorted graph.
    """
    found: set[ir.Value] = set()
    waiting = [node.inputs[0] for node in graph if node.op_type in _NORMALIZATIONS]
    while waiting:
        value = waiting.pop()
        producer = None if value is None else value.producer()
        if value is None or producer is None or value in found:
            continue
        if producer.op_type == "Add":
            found.add(value)
            waiting += [operand for operand in producer.inputs if operand is not None and len(operand.uses()) == 1]
        elif any(use.node.op_type == "Add" and use.node.outputs[0] in found for use in value.uses()):
            found.add(value)
    return frozenset(found)


def keep_sums_float(node: ir.Node, annotation: Annotation, sums: frozenset[ir.Value]) -> Annotation | Declined:
    """Return what is left of an annotation when some tensors must stay float.

    Args:
        node: The node.
        annotation: What its rule says.
        sums: What `normalized_sums` returned.
    """
    read = tuple(index for index in annotation.activations if node.inputs[index] in sums)
    written = any(output in sums for output in node.outputs)
    if not read and not written:
        return annotation
    if node.op_type == "Add":
        return Declined(REASON)
    kept = tuple(index for index in annotation.activations if index not in read)
    return replace(annotation, activations=kept, output=None if written else annotation.output)
