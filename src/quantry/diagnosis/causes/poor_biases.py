"""Cause: biases that their type cuts off or rounds too coarsely."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.diagnosis.evidence import Evidence, Finding
from quantry.diagnosis.fix import Fix, float_fix
from quantry.evaluate.levels import VERY_CLOSE
from quantry.evaluate.metrics.metric import unlimited_decibels
from quantry.execute.quantized_view import QuantizedView, Quantizer
from quantry.recipe import DerivedBias, FloatBias, OwnBias

_MOST_FLOAT = 3


@dataclass(frozen=True)
class _Poor:
    name: str
    layer: ir.Node
    sqnr: float
    dtype: str
    ends: tuple[float, float]
    limits: tuple[float, float]

    def __str__(self) -> str:
        values, limits = (f"{low:.3g} .. {high:.3g}" for low, high in (self.ends, self.limits))
        cut = self.ends[0] < self.limits[0] or self.ends[1] > self.limits[1]
        return f"{self.name} has values {values}, and {self.dtype} {'ends at' if cut else 'has a range of'} {limits}"


def poor_biases(evidence: Evidence) -> Iterator[Finding]:
    """Find biases that lose more than the results they are added to."""
    view = QuantizedView(evidence.plan, evidence.params)
    readers = {value.name: node for node in evidence.model.graph for value in node.inputs if value is not None}
    biases = [
        poor
        for quantizer in view.biases
        if quantizer.name not in evidence.harmless and quantizer.name in readers
        if (poor := _poor(evidence, quantizer, readers[quantizer.name])) is not None
    ]
    if not biases:
        return
    biases.sort(key=lambda bias: bias.sqnr)
    nodes = evidence.producers([bias.layer.outputs[0].name or "" for bias in biases], _MOST_FLOAT)
    derived = isinstance(evidence.recipe.plan.bias, DerivedBias)
    yield Finding(
        f"{'1 bias does' if len(biases) == 1 else f'{len(biases)} biases do'} not fit: {biases[0]}",
        tuple(bias.name for bias in biases),
        "the scale of such a bias is that of its input times that of its weight: give the layer's input a wider range "
        "or 16 bits (plan.layers), or keep the bias in float (plan.bias: FloatBias) if the target allows it"
        if derived
        else "a bias of 32 bits (plan.bias: DerivedBias) or in float (plan.bias: FloatBias) if the target allows it, "
        "else keep these layers in float (plan.selection.exclude)",
        tuple(_fixes(evidence, nodes)),
    )


def _fixes(evidence: Evidence, nodes: tuple[str, ...]) -> Iterator[Fix]:
    if evidence.recipe.scale.npu is None:
        if isinstance(evidence.recipe.plan.bias, OwnBias):
            yield Fix("biases of 32 bits", {"plan.bias": DerivedBias()})
        yield Fix("biases in float", {"plan.bias": FloatBias()})
    if nodes:
        yield float_fix(nodes)


def _poor(evidence: Evidence, quantizer: Quantizer, layer: ir.Node) -> _Poor | None:
    params = quantizer.params
    constant = evidence.model.graph.initializers[quantizer.tensor].const_value
    if params is None or constant is None:
        return None
    values = constant.numpy().astype(np.float64)
    noise = np.square(values - quantizer.round(values)).mean()
    sqnr = unlimited_decibels(_power_of_results(evidence, layer, values), float(noise))
    if sqnr >= VERY_CLOSE.decibels:
        return None
    scale = params.scale.astype(np.float64)
    low, high = ((end - params.zero_point) * scale for end in (params.lowest, params.highest))
    return _Poor(
        quantizer.name,
        layer,
        sqnr,
        params.dtype.value,
        (float(values.min()), float(values.max())),
        (float(low.min()), float(high.max())),
    )


def _power_of_results(evidence: Evidence, layer: ir.Node, values: NDArray[np.float64]) -> float:
    """Return the mean square by which a layer's results vary, or that of the bias if it is unknown.

    A bias near zero may be rounded away without harm, and one large value must not hide what the others lose: what
    counts is the size of the results they are added to.
    """
    error = evidence.errors.get(layer.outputs[0].name or "")
    deviation = np.zeros(0) if error is None else error.deviation
    return float(np.square(deviation if len(deviation) else values).mean())
