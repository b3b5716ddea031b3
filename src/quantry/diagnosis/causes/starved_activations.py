"""Cause: activations with channels so small that the common scale of the tensor rounds them away."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.diagnosis.evidence import Evidence, Finding, counted
from quantry.diagnosis.fix import JOINT_FIX, Fix, wide_fix
from quantry.diagnosis.tensor_health import TensorHealth
from quantry.equalize.linear_layer import LinearLayer, array_of, linear_layer
from quantry.facts.operators import LINEAR
from quantry.recipe import Recipe, SmoothQuant

STARVED_SHARE = 0.1
"""Fraction of a layer's input that must come from such channels. Channels that no layer reads do no harm."""

_WIDENED = 3


@dataclass(frozen=True)
class _Starved:
    share: float
    channels: int
    layer: LinearLayer
    tensor: TensorHealth
    deviation: NDArray[np.float64]

    def __str__(self) -> str:
        live = self.deviation[self.deviation > 0]
        return (
            f"channels of {self.tensor.name} vary by {live.min():.2g} to {live.max():.2g}, and {self.channels} of "
            f"{len(self.deviation)} by less than its step of {self.tensor.scales[0]:.2g}"
        )


def starved_activations(evidence: Evidence) -> Iterator[Finding]:
    """Find activations of which a layer reads channels that vary by less than one step."""
    health = {tensor.name: tensor for tensor in evidence.activations}
    by_tensor: dict[str, _Starved] = {}
    for layer in _layers(evidence):
        source = layer.node.inputs[0]
        tensor = health.get(source.name or "") if source is not None else None
        starved = None if tensor is None else _starved(evidence, layer, tensor)
        if starved is not None and (
            starved.tensor.name not in by_tensor or by_tensor[starved.tensor.name].share < starved.share
        ):
            by_tensor[starved.tensor.name] = starved
    if not by_tensor:
        return
    worst_first = sorted(by_tensor.values(), key=lambda entry: -entry.share)
    yield Finding(
        f"one scale for channels of very different size in {counted(len(by_tensor), 'activation')}: {worst_first[0]}",
        tuple(entry.tensor.name for entry in worst_first),
        ", else ".join(_advice(evidence.recipe)),
        tuple(_fixes(evidence, tuple(entry.tensor.name for entry in worst_first))),
        rounded=tuple(dict.fromkeys(name for entry in worst_first for name in _of_these_channels(entry.layer))),
    )


def _advice(recipe: Recipe) -> Iterator[str]:
    if recipe.equalize.joint is None:
        yield "joint equalization (equalize.joint: {}), which gives every channel a factor"
    if recipe.equalize.smooth is None:
        yield (
            "SmoothQuant (equalize.smooth: {}), which moves the scale of large channels into the weights that read "
            "them, also through SiLU"
        )
    yield "16 bits for these layers (plan.layers, mixed precision)"


def _of_these_channels(layer: LinearLayer) -> Iterator[str]:
    """Yield the tensors in which the same channels have the same size, back to the layers that compute them.

    Rounding any of them alone loses the small channels, so only a run without all of them shows what they cost. These
    are also the tensors that SmoothQuant changes.
    """
    yield layer.weight.name or ""
    queue: list[ir.Value | None] = [layer.node.inputs[0]]
    met: set[ir.Value] = set()
    while queue:
        value = queue.pop()
        if value is None or value in met:
            continue
        met.add(value)
        yield value.name or ""
        producer = value.producer()
        if producer is not None:
            queue += producer.inputs[1:] if producer.op_type in LINEAR else producer.inputs


def _fixes(evidence: Evidence, tensors: tuple[str, ...]) -> Iterator[Fix]:
    if evidence.recipe.equalize.joint is None:
        yield JOINT_FIX
    if evidence.recipe.equalize.smooth is None:
        yield Fix("SmoothQuant", {"equalize.smooth": SmoothQuant()})
    yield wide_fix(tensors[:_WIDENED])


def _layers(evidence: Evidence) -> Iterator[LinearLayer]:
    for node in evidence.layers():
        layer = linear_layer(node)
        if isinstance(layer, LinearLayer):
            yield layer


def _starved(evidence: Evidence, layer: LinearLayer, tensor: TensorHealth) -> _Starved | None:
    error = evidence.errors.get(tensor.name)
    if error is None or len(error.deviation) != layer.layout.inputs or not _harms(evidence, layer.node):
        return None
    starved = error.deviation < tensor.scales[0]
    if starved.all():
        return None  # The range is too coarse for the whole tensor, which is another cause.
    share = float(_read_shares(layer, error.deviation)[starved].sum())
    return _Starved(share, int(starved.sum()), layer, tensor, error.deviation) if share > STARVED_SHARE else None


def _harms(evidence: Evidence, node: ir.Node) -> bool:
    return evidence.is_harmed(node.outputs[0].name)


def _read_shares(layer: LinearLayer, deviation: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the fraction of the variation of the outputs that each input channel causes; in total at most 1."""
    layout = layer.layout
    powers = np.square(layout.view(array_of(layer.weight).astype(np.float64))).sum(axis=3)
    drawn = powers * np.square(deviation).reshape(layout.groups, 1, -1)
    total = drawn.sum(axis=2, keepdims=True)
    shares = np.divide(drawn, total, out=np.zeros_like(drawn), where=total > 0)
    result: NDArray[np.float64] = shares.sum(axis=1).reshape(-1) / layout.outputs
    return result
