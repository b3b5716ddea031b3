"""The error that rounding and clipping cause in each tensor alone, computed from existing statistics."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from quantry.evaluate.metrics.metric import unlimited_decibels
from quantry.execute.quantized_view import QuantizedView
from quantry.graph.quant_plan import QuantPlan
from quantry.numerics.grid import Grid
from quantry.numerics.histogram import Distribution, TensorStats
from quantry.numerics.tensor_params import QuantParams, TensorParams
from quantry.observe import Statistics
from quantry.scale import BinnedValues

Kind = Literal["activation", "weight"]


@dataclass(frozen=True)
class TensorHealth:
    """One quantized tensor.

    Attributes:
        name: The tensor.
        kind: Activation or weight.
        node: The node that computes an activation or reads a weight; empty for an input of the model.
        operator: Its operator type; ``Input`` for an input of the model.
        dtype: Its quantized type.
        scales: Smallest and largest scale; equal if there is one.
        range: Smallest and largest number that can be represented, over all channels.
        seen: Smallest and largest value that occurs.
        sqnr: Signal-to-quantization-noise ratio in dB, of this tensor alone; infinite if nothing is lost.
        clipped: Fraction of that noise, 0 to 1, that comes from values outside the range.
        peak: Largest magnitude divided by the root mean square: large if few values stretch the range.
        shared_with: The tensor whose range it must use, or empty.
        vanishing: Fraction of the values, 0 to 1, that are not zero but round to it.
    """

    name: str
    kind: Kind
    node: str
    operator: str
    dtype: str
    scales: tuple[float, float]
    range: tuple[float, float]
    seen: tuple[float, float]
    sqnr: float
    clipped: float
    peak: float
    shared_with: str = ""
    vanishing: float = 0.0


def tensor_health(
    model: ir.Model, statistics: Statistics, plan: QuantPlan, params: QuantParams
) -> tuple[TensorHealth, ...]:
    """Return the error of every activation and weight with integer parameters, in the order of the plan.

    Args:
        model: The float model that was quantized.
        statistics: Its statistics.
        plan: What is quantized.
        params: Scales and zero points.
    """
    view = QuantizedView(plan, params)
    return (*_activations(model, statistics, view), *_weights(model, view))


def _activations(model: ir.Model, statistics: Statistics, view: QuantizedView) -> Iterator[TensorHealth]:
    producers = {value.name: node for node in model.graph for value in node.outputs}
    for quantizer in view.activations:
        name, params = quantizer.name, quantizer.params
        stats = statistics.tensors.get(name)
        if stats is None or params is None or stats.finite_count == 0:
            continue
        node = producers.get(name)
        yield TensorHealth(
            name=name,
            kind="activation",
            node="" if node is None else node.name or "",
            operator="Input" if node is None else node.op_type,
            **_common(params),
            **_activation_noise(stats, params),
            shared_with="" if quantizer.source == name else quantizer.source,
        )


def _activation_noise(stats: TensorStats, params: TensorParams) -> dict[str, Any]:
    spread = stats.distribution()
    # The second moment of mass that is spread evenly from a to b.
    squares = (spread.lower**2 + spread.lower * spread.upper + spread.upper**2) / 3
    power = float(np.average(squares, weights=spread.counts))
    values = BinnedValues(stats)
    scale, zero_point = (array.astype(np.float64).reshape(1, 1) for array in (params.scale, params.zero_point))
    noise = float(values.error(scale, zero_point, Grid(params.dtype, symmetric=False), 2)[0, 0])
    low, high = _representable(params)
    clipping = float(values.clipping(np.array([[low]]), np.array([[high]]))[0, 0])
    return {
        "seen": (stats.minimum, stats.maximum),
        "sqnr": unlimited_decibels(power, noise),
        "clipped": min(clipping / noise, 1.0) if noise > 0 else 0.0,
        "peak": max(-stats.minimum, stats.maximum) / math.sqrt(power) if power > 0 else 0.0,
        "vanishing": _vanishing(spread, float(params.scale.max()) / 2),
    }


def _vanishing(spread: Distribution, half_step: float) -> float:
    inside = (spread.lower >= -half_step) & (spread.upper <= half_step) & ((spread.lower != 0) | (spread.upper != 0))
    return float(spread.counts[inside].sum()) / spread.total


def _weights(model: ir.Model, view: QuantizedView) -> Iterator[TensorHealth]:
    nodes = {node.name: node for node in model.graph}
    for quantizer in view.weights:
        name, params = quantizer.name, quantizer.params
        constant = model.graph.initializers[name].const_value
        if params is None or constant is None:
            continue
        weight = constant.numpy().astype(np.float32)
        error = (weight - quantizer.round(weight)).astype(np.float64)
        power = float(np.mean(np.square(weight, dtype=np.float64)))
        user = next(iter(view.plan.weights[name].users), "")
        yield TensorHealth(
            name=name,
            kind="weight",
            node=user,
            operator=nodes[user].op_type if user in nodes else "",
            **_common(params),
            seen=(float(weight.min()), float(weight.max())),
            sqnr=unlimited_decibels(power, float(np.mean(error**2))),
            clipped=0.0,
            peak=float(np.abs(weight).max()) / math.sqrt(power) if power > 0 else 0.0,
        )


def _common(params: TensorParams) -> dict[str, Any]:
    return {
        "dtype": params.dtype.value,
        "scales": (float(params.scale.min()), float(params.scale.max())),
        "range": _representable(params),
    }


def _representable(params: TensorParams) -> tuple[float, float]:
    low = (params.lowest - params.zero_point) * params.scale.astype(np.float64)
    high = (params.highest - params.zero_point) * params.scale.astype(np.float64)
    return float(low.min()), float(high.max())
