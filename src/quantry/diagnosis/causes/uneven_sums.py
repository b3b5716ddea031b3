"""Cause: sums in front of normalizations, in which a few large channels leave no levels for all others.

In transformers a few channels of the residual sum are a hundred times larger than the others. A normalization gives
all of them the same size again, so the small ones count as much as the large ones, with the rounding error of the
common scale.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.diagnosis.evidence import Evidence, Finding, counted
from quantry.diagnosis.fix import Fix, count_pieces, wide_fix
from quantry.diagnosis.tensor_health import TensorHealth
from quantry.facts.operators import facts
from quantry.plan.stay_float import normalized_sums
from quantry.recipe import Rotation

UNEVEN_SHARE = 0.1
"""Fraction of a normalized tensor that must come from channels that vary by less than one step."""

# A normalization gives every channel the same size, so that two steps are still too few; a layer adds many channels.
_STEPS = 2.0

_WIDENED = 3

_ROTATE = "rotate the residual streams (equalize.rotate: {}), which makes all channels alike; else "


@dataclass(frozen=True)
class _Uneven:
    share: float
    channels: int
    tensor: TensorHealth
    deviation: NDArray[np.float64]

    def __str__(self) -> str:
        live = self.deviation[self.deviation > 0]
        return (
            f"channels of {self.tensor.name} vary by {live.min():.2g} to {live.max():.2g}, {self.channels} of "
            f"{len(self.deviation)} of them by less than two steps of {self.tensor.scales[0]:.2g}"
        )


def uneven_sums(evidence: Evidence) -> Iterator[Finding]:
    """Find sums of which a normalization reads channels that vary by less than two steps."""
    health = {tensor.name: tensor for tensor in evidence.activations}
    sums = [
        uneven
        for node in evidence.model.graph
        if facts(node).across_channels and node.inputs[0] is not None
        if (tensor := health.get(node.inputs[0].name or "")) is not None
        if (uneven := _uneven(evidence, node, tensor)) is not None
    ]
    if not sums:
        return
    sums.sort(key=lambda entry: -entry.share)
    names = tuple(dict.fromkeys(entry.tensor.name for entry in sums))
    chain = {value.name for value in normalized_sums(evidence.model.graph)}
    yield Finding(
        f"one scale for channels of very different size in {counted(len(names), 'sum')} that a normalization reads: "
        f"{sums[0]}",
        names,
        f"{_ROTATE if evidence.recipe.equalize.rotate is None else ''}keep these sums in float (plan.float_residuals: "
        "true), which costs little time because no layer reads them; else 16 bits for them (plan.tensors)",
        (*_rotation_fixes(evidence), *float_sum_fixes(evidence), wide_fix(names[:_WIDENED])),
        # The operands of a sum have the same large channels, so a run without the sums alone shows half of the cost.
        rounded=tuple(dict.fromkeys((*names, *(name for name in evidence.plan.activations if name in chain)))),
    )


def _rotation_fixes(evidence: Evidence) -> tuple[Fix, ...]:
    if evidence.recipe.equalize.rotate is not None:
        return ()
    # Networks that add the result of a normalization to the next sum get a matrix product for each.
    return (Fix("rotation of residual streams", {"equalize.rotate": Rotation()}, is_costly=True),)


def float_sum_fixes(evidence: Evidence) -> tuple[Fix, ...]:
    """Return the fix that keeps the sums in front of normalizations in float, if any of them is quantized.

    Args:
        evidence: The evidence.
    """
    sums = {value.producer() for value in normalized_sums(evidence.model.graph)}
    nodes = {node.name for node in sums if node is not None and node.op_type == "Add"}
    quantized = set(evidence.plan.quantized_nodes)
    if evidence.recipe.plan.float_residuals or not nodes & quantized:
        return ()
    # A target whose rules ask for quantized sums would take the change back; its name is therefore omitted.
    fields = {"plan.float_residuals": True, **({"target": ""} if evidence.recipe.target else {})}
    pieces = count_pieces(evidence.model, quantized - nodes) - count_pieces(evidence.model, quantized)
    return (Fix("sums in front of normalizations in float", fields, is_costly=True, pieces=max(0, pieces)),)


def _uneven(evidence: Evidence, node: ir.Node, tensor: TensorHealth) -> _Uneven | None:
    error = evidence.errors.get(tensor.name)
    if error is None or not evidence.is_harmed(node.outputs[0].name):
        return None
    small = error.deviation < _STEPS * tensor.scales[0]
    read = np.square(_factors(node, len(small)) * error.deviation)
    share = float(read[small].sum() / read.sum()) if read.sum() > 0 else 0.0
    return _Uneven(share, int(small.sum()), tensor, error.deviation) if share > UNEVEN_SHARE else None


def _factors(node: ir.Node, channels: int) -> NDArray[np.float64]:
    """Return the factor that a normalization gives each channel; 1 if they are unknown."""
    scales = node.inputs[1] if len(node.inputs) > 1 else None
    constant = None if scales is None else scales.const_value
    factors = np.ones(0) if constant is None else constant.numpy().astype(np.float64).reshape(-1)
    return factors if len(factors) == channels else np.ones(channels)
