"""Cause: weights with channels of very different size under one scale, and why equalization cannot fix it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantry.diagnosis.evidence import Evidence, Finding, counted
from quantry.diagnosis.fix import JOINT_FIX, Fix
from quantry.equalize.channels import ChannelAxis, propagate_factor
from quantry.facts.operators import LINEAR, output_channel_axis
from quantry.recipe import CrossLayer, PerChannel, PerTensor, Recipe, SmoothQuant

CHANNEL_SPREAD = 32.0
"""Ratio of the largest to the median channel range above which one scale is too coarse for most channels."""

LOW_SPREAD = 10.0
"""Ratio of the largest channel range to the 10th percentile; used if the layer's result has a large error."""

_DEAD = 1e-3
"""Channels with less than this fraction of the largest range were pruned by training and need no resolution."""


@dataclass(frozen=True)
class _Obstacle:
    """Why factors of channels cannot be moved out of a layer."""

    operator: str
    reason: str


@dataclass(frozen=True)
class _Spread:
    weight: str
    ratio: float
    obstacle: _Obstacle | None


def starved_weights(evidence: Evidence) -> Iterator[Finding]:
    """Find weights whose small channels get few steps of the common scale."""
    spreads = sorted(_spreads(evidence), key=lambda spread: -spread.ratio)
    if not spreads:
        return
    obstacles = Counter(spread.obstacle for spread in spreads if spread.obstacle is not None)
    obstacle = obstacles.most_common(1)[0][0] if obstacles else None
    why = "" if obstacle is None else f"; no equalization after {obstacles.total()} of them: {obstacle.reason}"
    yield Finding(
        f"one scale for channels of very different size in {counted(len(spreads), 'weight')}, the largest up to "
        f"{spreads[0].ratio:.0f} times the small ones{why if evidence.recipe.equalize.cross_layer else ''}",
        tuple(spread.weight for spread in spreads),
        _advice(evidence.recipe, obstacle),
        tuple(_fixes(evidence.recipe, obstacle)),
    )


def _is_clip(obstacle: _Obstacle | None) -> bool:
    return obstacle is not None and obstacle.operator == "Clip"


def _fixes(recipe: Recipe, obstacle: _Obstacle | None) -> Iterator[Fix]:
    if not isinstance(recipe.plan.weight.granularity, PerChannel):
        yield Fix("one scale per channel of weights", {"plan.weight.granularity": PerChannel()})
    if recipe.equalize.joint is None:
        yield JOINT_FIX
    if _is_clip(obstacle) and not recipe.prepare.clip6_to_relu:
        equalized = {} if recipe.equalize.cross_layer is not None else {"equalize.cross_layer": CrossLayer()}
        yield Fix("Relu instead of Clip(0, 6)", {"prepare.clip6_to_relu": True, **equalized})
    if recipe.equalize.smooth is None:
        yield Fix("SmoothQuant", {"equalize.smooth": SmoothQuant()})


def _advice(recipe: Recipe, obstacle: _Obstacle | None) -> str:
    options = []
    if recipe.scale.npu is None and not isinstance(recipe.plan.weight.granularity, PerChannel):
        options.append("one scale per channel (plan.weight.granularity: PerChannel) if the target supports it")
    if recipe.equalize.joint is None:
        options.append("joint equalization (equalize.joint: {})")
    if _is_clip(obstacle) and not recipe.prepare.clip6_to_relu:
        options.append(
            "Relu instead of Clip(0, 6) (prepare.clip6_to_relu: true), which allows cross-layer equalization"
            + ("" if recipe.equalize.cross_layer is not None else " (equalize.cross_layer: {})")
            + "; it changes the function slightly, so check the score"
        )
    if obstacle is not None and not _is_clip(obstacle) and recipe.equalize.smooth is None:
        options.append("SmoothQuant (equalize.smooth: {}), which works across gates such as SiLU")
    if not options:
        options.append("16 bits for these layers (plan.layers, mixed precision)")
    return ", else ".join(options)


def _spreads(evidence: Evidence) -> Iterator[_Spread]:
    outputs_harmed = any(evidence.is_harmed(value.name) for value in evidence.model.graph.outputs)
    for node in evidence.layers():
        for value in node.inputs[1:2]:
            planned = evidence.plan.weights.get(value.name or "") if value is not None else None
            constant = value.const_value if value is not None else None
            if planned is None or constant is None or len(constant.shape) < 2:
                continue
            if value is not None and value.name in evidence.harmless:
                continue
            if not isinstance(planned.spec.granularity, PerTensor):
                continue
            axis = output_channel_axis(node, len(constant.shape))
            ranges = np.abs(np.moveaxis(constant.numpy(), axis, 0)).reshape(constant.shape[axis], -1).max(axis=1)
            ratio = _ratio(ranges.astype(np.float64), outputs_harmed or evidence.is_harmed(node.outputs[0].name))
            if ratio is not None and value is not None:
                yield _Spread(value.name or "", ratio, _obstacle(node))


def _ratio(ranges: np.ndarray, harmed: bool) -> float | None:
    """Return the spread of channel ranges if it is too large, else None."""
    largest = float(ranges.max())
    live = ranges[ranges > _DEAD * largest]
    middle, low = (float(np.quantile(live, share)) for share in (0.5, 0.1)) if len(live) else (0.0, 0.0)
    if not low or not (largest > CHANNEL_SPREAD * middle or (harmed and largest > LOW_SPREAD * low)):
        return None
    return largest / low


def _obstacle(node: ir.Node) -> _Obstacle | None:
    """Return the first reader that no factor passes; None if factors of channels can be moved out of the layer."""
    for reader in (use.node for use in node.outputs[0].uses()):
        answer = "" if reader.op_type in LINEAR else propagate_factor(reader, ChannelAxis(1))
        if isinstance(answer, str) and answer:
            return _Obstacle(reader.op_type, answer)
    return None
