"""The stage "guard": one cheap comparison after every quantization, so that no collapse stays unnoticed.

Every rounded tensor loses a share of its power that is known from statistics, before anything runs. If all these shares
reached the outputs, their sum would be the noise there. Real networks do better: noise is averaged and partly cut off.
A bad result that is clearly worse than this pessimistic sum is broken by something that no statistics show, such as a
division by a rounded zero, and a result below the level `DIFFERENT` is of little use whatever the cause.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from quantry.data.calibration_data import CalibrationData
from quantry.evaluate.arithmetic import EXACT, Arithmetic
from quantry.evaluate.levels import BIT, CLOSE, DIFFERENT, HALF_BIT
from quantry.evaluate.measured_errors import measured_errors
from quantry.evaluate.stage import evaluate, machine_environment
from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import QuantPlan
from quantry.graph.quantized_model import QuantizedModel
from quantry.memo import Blob, stage
from quantry.notes import Note, NoteKind
from quantry.numerics.grid import Grid
from quantry.numerics.rounding import fake_quantize
from quantry.numerics.tensor_params import QuantParams
from quantry.observe import Statistics
from quantry.recipe import EvaluateOptions
from quantry.scale.values import BinnedValues

_CLEAN = 60.0
"""Ratios above this are as good as perfect."""


@dataclass(frozen=True, eq=False)
class GuardReport:
    """How a quantized model compares with the float one on a few samples.

    Attributes:
        sqnr: Signal-to-noise ratio of the outputs in dB; the worst output counts.
        expected: The least that rounding errors of single tensors explain, in dB.
        tensor: The tensor where the signal is lost; empty if the result is fine.
        notes: One line for the user if the result is broken.
    """

    sqnr: float
    expected: float
    tensor: str = ""
    notes: tuple[Note, ...] = field(default=(), compare=False)

    @property
    def is_broken(self) -> bool:
        """Whether the result is of little use, or worse than rounding explains."""
        return bool(self.notes)

    def to_blob(self) -> Blob:
        """Return the stored form."""
        meta = {"sqnr": repr(self.sqnr), "expected": repr(self.expected), "tensor": self.tensor}
        return Blob(meta=meta, notes=self.notes)

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return the value that `to_blob` was called on."""
        meta: Any = blob.meta
        return cls(float(meta["sqnr"]), float(meta["expected"]), meta["tensor"], blob.notes)


@stage(name="guard", version=2, environment=machine_environment)
def guard(
    models: tuple[FloatModel, FloatModel],
    quantized: QuantizedModel,
    planned: tuple[QuantPlan, QuantParams],
    statistics: Statistics,
    data: CalibrationData,
    arithmetic: Arithmetic = EXACT,
) -> GuardReport:
    """Compare a quantized model with the float model on a few samples.

    Args:
        models: The prepared float model, and the float model that was planned, with the names of the plan.
        quantized: The quantized model.
        planned: Which tensors are quantized, and with which scales and zero points.
        statistics: What was observed of the activations.
        data: A few samples.
        arithmetic: What computes the quantized model.
    """
    reference, rewritten = models
    compared = evaluate(reference, quantized, data, EvaluateOptions(metrics=("sqnr",)), arithmetic)
    scores = [row["sqnr"].value for row in compared.outputs.values()] or [math.inf]
    sqnr = min(-math.inf if math.isnan(score) else score for score in scores)
    expected = -10 * math.log10(max(sum(_lost_shares(rewritten, *planned, statistics)), 1e-12))
    # A model that is not close may be at most one bit below the pessimistic sum of all rounding errors.
    if sqnr >= min(CLOSE.decibels, max(DIFFERENT.decibels, expected - BIT)):
        return GuardReport(sqnr, expected)
    tensor = _where_lost(rewritten, quantized, planned[0], data, arithmetic)
    message = (
        "WARNING: the quantized model is far from the float model: {sqnr:.1f} dB on {samples} samples, where rounding "
        "alone explains {expected:.1f} dB"
    )
    note = Note.of(
        message + ("; the signal is lost at tensor {tensor!r}" if tensor else ""),
        NoteKind.BROKEN,
        sqnr=sqnr,
        samples=compared.samples,
        expected=expected,
        tensor=tensor,
    )
    return GuardReport(sqnr, expected, tensor, (note, *compared.notes[:1]))


def _lost_shares(model: FloatModel, plan: QuantPlan, params: QuantParams, statistics: Statistics) -> Iterator[float]:
    """Yield the share of its power that each tensor loses by rounding and clipping."""
    origin = np.zeros((1, 1))
    for name in plan.activations:
        stats, found = statistics.tensors.get(name), params.tensors.get(name)
        spec = plan.spec_of(name)
        if stats is None or found is None or spec is None or not stats.finite_count:
            continue
        values = BinnedValues(stats)
        power = float(values.clipping(origin, origin)[0, 0])
        step, zero = (np.full((1, 1), float(entry)) for entry in (found.scale, found.zero_point))
        error = float(values.error(step, zero, Grid.of(spec), 2)[0, 0])
        yield min(error / power, 1.0) if power > 0 else 0.0
    for name in plan.weights:
        constant = model.model.graph.initializers.get(name)
        if name in params.tensors and constant is not None and constant.const_value is not None:
            weight = constant.const_value.numpy().astype(np.float32)
            power = float(np.square(weight, dtype=np.float64).sum())
            error = float(np.square(weight - fake_quantize(weight, params.tensors[name]), dtype=np.float64).sum())
            yield min(error / power, 1.0) if power > 0 else 0.0


def _where_lost(
    model: FloatModel, quantized: QuantizedModel, plan: QuantPlan, data: CalibrationData, arithmetic: Arithmetic
) -> str:
    """Return the tensor whose ratio falls most compared with what it is computed from, in the order of the graph."""
    graph = model.model.graph
    names = [output.name or "" for node in graph for output in node.outputs if output.name]
    errors = measured_errors(model.model, quantized.model, names, data, 2, arithmetic.open)
    # The signal is lost where half a bit less is left than in everything that a tensor is computed from.
    worst, tensor = HALF_BIT, ""
    known: dict[str, float] = {}
    for node in graph:
        read = (value.name for value in node.inputs if value is not None)
        before = min((known[name] for name in read if name in known), default=_CLEAN)
        for name in (output.name for output in node.outputs if output.name):
            found = errors.get(name)
            # A quantized tensor without an error is NaN or infinite in one of the models.
            ratio = (-_CLEAN if name in plan.activations else before) if found is None else min(found.sqnr, _CLEAN)
            known[name] = ratio
            if before - ratio > worst:
                worst, tensor = before - ratio, name
    return tensor
