"""Checks that no weight is NaN, and that infinity stands only where it means something."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from quantry.errors import ModelError
from quantry.prepare.weights import release

_CHUNK = 1 << 20  # elements looked at together, so that the masks stay small beside a large weight

_LIMITS_AND_MASKS = frozenset(
    {
        "Add",
        "Clip",
        "Concat",
        "Expand",
        "Gather",
        "If",
        "Loop",
        "Max",
        "Min",
        "Pad",
        "Reshape",
        "Scan",
        "Slice",
        "Sub",
        "Tile",
        "Transpose",
        "Unsqueeze",
        "Where",
    }
)
"""Operators for which an infinite constant is a limit or an attention mask rather than a damaged weight."""


def check_finite_weights(model: ir.Model, label: str) -> tuple[str, ...]:
    """Check every float constant of the model; weights on disk are read one at a time and let go.

    Returns:
        A note for each constant that is infinite where that is usual, such as an attention mask.

    Raises:
        ModelError: If a constant contains NaN, or a weight contains infinity.
    """
    notes = []
    for value, tensor in _float_constants(model):
        nans, infinities = _count(tensor)
        release(tensor)
        if not nans and not infinities:
            continue
        masks = all(node.op_type in _LIMITS_AND_MASKS for node, _ in value.uses())
        if nans or not masks:
            raise ModelError(
                f"every weight must be finite, got {nans} NaN and {infinities} infinite of {tensor.size} values; "
                f"tensor {value.name!r} in {label}"
            )
        notes.append(f"constant {value.name} has {infinities} infinite values; it is taken for a limit or a mask")
    return tuple(notes)


def _float_constants(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None and value.const_value.dtype.is_floating_point():
                yield value, value.const_value
        for node in graph:
            attribute = node.attributes.get("value") if node.op_type == "Constant" else None
            if attribute is not None and not attribute.is_ref() and attribute.as_tensor().dtype.is_floating_point():
                yield node.outputs[0], attribute.as_tensor()


def _count(tensor: ir.TensorProtocol) -> tuple[int, int]:
    """Return how many elements are NaN and how many infinite."""
    flat = tensor.numpy().reshape(-1)
    chunks = [flat[start : start + _CHUNK] for start in range(0, flat.size, _CHUNK)]
    suspects = [chunk for chunk in chunks if not np.isfinite(chunk).all()]
    return sum(int(np.isnan(chunk).sum()) for chunk in suspects), sum(int(np.isinf(chunk).sum()) for chunk in suspects)
