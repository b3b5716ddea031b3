"""Where a quantized model of any tool departs from its float model, and where a target departs from the simulation."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from quantry.diagnosis.diagnosis import find_falls
from quantry.diagnosis.evidence import Fall
from quantry.errors import DataError
from quantry.evaluate.levels import BIT, DIFFERENT, HALF_BIT
from quantry.evaluate.measured_errors import MeasuredError, measured_errors
from quantry.graph.load import ModelLike, read_model
from quantry.graph.passes.infer_shapes import infer_shapes
from quantry.graph.passes.tidy import name_nodes
from quantry.graph.qdq import is_dequantize, is_quantize
from quantry.graph.save import serialize
from quantry.targets import Backend, Target, find_target
from quantry.targets.arithmetic import RunnerSession, require_backend, simulated_model
from quantry.targets.compare import ModelComparison, compare_models, runnable

SAMPLES = 8
"""Samples that are run by default; errors of tensors vary little between them."""


@dataclass(frozen=True)
class PairDiagnosis:
    """How a quantized model differs from its float model, tensor by tensor.

    Attributes:
        outputs: The comparison of the outputs.
        gathered: By tensor that both models have, the signal-to-noise ratio in dB, with the error from before it;
            without the factors of an equalization that later layers undo.
        falls: The nodes that lose most, worst first.
        departures: The nodes where the target departs most from the simulation; None without a target.
        on_target: The comparison of the target with the simulation; None without a target.
        samples: Number of samples.
    """

    outputs: ModelComparison
    gathered: Mapping[str, float]
    falls: tuple[Fall, ...]
    samples: int
    departures: tuple[Fall, ...] | None = None
    on_target: ModelComparison | None = None


def diagnose_pair(
    reference: ModelLike,
    quantized: ModelLike,
    samples: Iterable[Mapping[str, NDArray[Any]]],
    target: Target | str | None = None,
    limit: int = SAMPLES,
) -> PairDiagnosis:
    """Find where a quantized model loses accuracy, whatever tool wrote it.

    Tensors are compared under the names that both models have. With a target, every tensor of the quantized model is
    also computed there, and compared with its simulation.

    Args:
        reference: The float model.
        quantized: The quantized model.
        samples: Inputs of both.
        target: A target with a backend.
        limit: Maximum number of samples.

    Raises:
        DataError: There are no samples, or a model cannot run on one.
        ModelError: A model cannot be loaded.
    """
    feeds = [dict(sample) for _, sample in zip(range(limit), samples, strict=False)]
    if not feeds:
        raise DataError("a diagnosis needs at least one sample, got none; in diagnose_pair")
    ours, theirs = _loaded(reference), _loaded(quantized)
    names = [value.name for node in ours.graph for value in node.outputs if value.name]
    errors = measured_errors(ours, theirs, names, feeds, limit)
    outputs = compare_models(reference, quantized, feeds)
    sqnr = outputs.metrics["sqnr"].value
    gathered = {name: _undisguised(error, sqnr) for name, error in errors.items()}
    falls = find_falls(ours, gathered)
    if target is None:
        return PairDiagnosis(outputs, gathered, falls, len(feeds))
    backend = require_backend(find_target(target))
    departures = _departures(theirs, feeds, find_target(target))
    on_target = compare_models(serialize(simulated_model(theirs, backend)), serialize(theirs), feeds, backend)
    return PairDiagnosis(outputs, gathered, falls, len(feeds), departures, on_target)


def _undisguised(error: MeasuredError, sqnr: float) -> float:
    """Return the error of a tensor without the factors by which a tool equalized its channels.

    They are no loss if later layers undo them: the outputs are then closer to the float model than the tensor itself.

    Args:
        error: The error of the tensor.
        sqnr: Signal-to-noise ratio of the outputs in dB.
    """
    is_equalized = error.rescaled > error.sqnr + BIT and sqnr > max(error.sqnr + HALF_BIT, DIFFERENT.decibels)
    return error.rescaled if is_equalized else error.sqnr


def _departures(model: ir.Model, feeds: list[dict[str, NDArray[Any]]], target: Target) -> tuple[Fall, ...]:
    backend = require_backend(target)
    # The dequantized tensors: showing what is inside of a unit would make the target compute it in another way.
    sources = {
        str(use.node.outputs[0].name): str(node.inputs[0].name)
        for node in model.graph
        if is_quantize(node) and node.inputs[0] is not None
        for use in node.outputs[0].uses()
        if is_dequantize(use.node)
    }
    simulated = simulated_model(model, backend)
    errors = measured_errors(simulated, model, [*sources], feeds, len(feeds), partial(_open_on, backend))
    return find_falls(model, {sources[name]: error.sqnr for name, error in errors.items()})


def _open_on(backend: Backend, model: ir.Model) -> RunnerSession:
    return RunnerSession(backend.open(serialize(model)), [str(value.name) for value in model.graph.outputs])


def _loaded(model: ModelLike) -> ir.Model:
    loaded = read_model(runnable(model))
    name_nodes(loaded)
    infer_shapes(loaded)
    return loaded
