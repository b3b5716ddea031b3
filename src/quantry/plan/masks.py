"""Attention masks: constants that stand for infinity, and the tensors they reach.

::

    scores -> Add or Where -> t -> Softmax
                  ^
        -inf, -1e9 or -10000 where attention must not look

On a grid of a few bits that reaches to the mask, all scores round to one level; on one that does not, what was masked
becomes visible again. So the mask, whatever is added to it and whatever moves it stay float; Softmax reads the float
tensor, and only its result is quantized.
"""

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from quantry.plan.rules import Annotation, Declined

_FAR = 1e4
"""Exporters mask with -10000, the lowest float16, -1e9, the lowest float32 or -inf."""

# A limit, as in Max(x, -inf), is no carrier: its result is an ordinary number.
_CARRIERS = frozenset(
    {
        "Add",
        "Cast",
        "Concat",
        "Expand",
        "Flatten",
        "Gather",
        "Identity",
        "Mul",
        "Pad",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Sub",
        "Sum",
        "Tile",
        "Transpose",
        "Unsqueeze",
        "Where",
    }
)


def masked_tensors(graph: ir.Graph) -> frozenset[ir.Value]:
    """Return the constants that hold a mask, and the tensors that carry one on.

    Args:
        graph: The graph, sorted.
    """
    masked = {value for value in graph.initializers.values() if _is_mask(value)}
    for node in graph:
        if node.op_type in _CARRIERS and any(value in masked for value in node.inputs if value is not None):
            masked.update(node.outputs)
    return frozenset(masked)


def keep_masks_float(node: ir.Node, annotation: Annotation, masked: frozenset[ir.Value]) -> Annotation | Declined:
    """Return what is left of an annotation when tensors that hold a mask must stay float.

    Args:
        node: The node.
        annotation: What its rule says.
        masked: What `masked_tensors` returned.
    """
    reached = [node.inputs[index] for index in (*annotation.activations, *annotation.constants)]
    mask = next((value for value in reached if value in masked), None)
    if mask is None:
        return annotation
    if node.op_type == "Softmax":
        return replace(annotation, activations=())
    return Declined(f"its input {mask.name!r} holds a mask or a limit, beside which all else would round to zero")


def _is_mask(value: ir.Value) -> bool:
    if value.dtype != ir.DataType.FLOAT or value.const_value is None or not value.const_value.size:
        return False
    # Weights are looked at only where they are operands: the largest of a convolution says nothing.
    if not any(use.node.op_type in _CARRIERS or use.node.op_type in ("Max", "Min") for use in value.uses()):
        return False
    return not bool(np.abs(value.const_value.numpy()).max() < _FAR)
