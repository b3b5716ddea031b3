"""The stage "evaluate": compare the quantized model with the float model."""

from collections.abc import Mapping, Sequence
from typing import Any

from quantry.data.calibration_data import CalibrationData
from quantry.errors import InternalError, ModelError
from quantry.evaluate.arithmetic import EXACT, Arithmetic
from quantry.evaluate.comparison import Comparison, compare_sessions
from quantry.evaluate.evaluation import Evaluation, MetricScore
from quantry.evaluate.latency import Latency, measure_latency
from quantry.evaluate.metrics import Metric, find_metric
from quantry.graph.float_model import FloatModel
from quantry.graph.quantized_model import QuantizedModel
from quantry.memo import stage
from quantry.recipe import EvaluateOptions
from quantry.runtime.devices import machine_name
from quantry.runtime.environment import environment
from quantry.runtime.progress import progress
from quantry.runtime.sessions import LoadableModel, deployment_session, loadable


def machine_environment(_arguments: Mapping[str, Any]) -> Mapping[str, str]:
    """Return what scores and times depend on besides the arguments; times depend on the model of the processor."""
    return {**environment(libraries=("onnxruntime", "numpy")), "machine": machine_name()}


@stage(name="evaluate", version=3, environment=machine_environment)
def evaluate(
    reference: FloatModel,
    quantized: QuantizedModel,
    data: CalibrationData,
    options: EvaluateOptions,
    arithmetic: Arithmetic = EXACT,
) -> Evaluation:
    """Compare the quantized model with the float model.

    Times come from deployment sessions of both models, on the first sample.

    Args:
        reference: The prepared float model.
        quantized: The quantized model.
        data: Inputs of both models.
        options: Metrics and number of timed runs. Without metrics no sample is compared.
        arithmetic: What computes the quantized model for its scores.

    Returns:
        Scores, times and sizes.

    Raises:
        RecipeError: There is no such metric.
        ModelError: onnxruntime cannot load the float model.
        DataError: The float model cannot run on a sample.
        InternalError: The quantized model does not load, does not run, or has other outputs than the float model.

    Example:
        ::

            evaluation = evaluate(reference, quantized, data, EvaluateOptions(metrics=("sqnr",), latency_runs=50))
            evaluation.metrics["sqnr"].value, evaluation.latency.speedup
    """
    metrics = tuple({metric.name: metric for metric in map(find_metric, options.metrics)}.values())
    with loadable(reference.model) as ours, loadable(quantized) as theirs:
        comparison = _compare(ours, quantized, data, metrics, arithmetic) if metrics else None
        latency = _time(ours, theirs, data, options.latency_runs) if options.latency_runs else None
        float_bytes, quantized_bytes = ours.size, theirs.size
    rows = [] if comparison is None else _tabulate(comparison, metrics)
    return Evaluation(
        metrics=rows[0] if rows else {},
        outputs={} if comparison is None else dict(zip(comparison.output_names, rows[1:], strict=True)),
        samples=0 if comparison is None else len(comparison.scores),
        float_bytes=float_bytes,
        quantized_bytes=quantized_bytes,
        latency=latency,
        notes=comparison.notes if comparison is not None else (),
    )


def _compare(
    ours: LoadableModel,
    quantized: QuantizedModel,
    data: CalibrationData,
    metrics: Sequence[Metric],
    arithmetic: Arithmetic,
) -> Comparison:
    reference = deployment_session(ours.source, interleaved=True)
    try:
        session = arithmetic.open(quantized)
    except ModelError as error:
        if arithmetic is not EXACT:
            raise  # a device may refuse a valid model, and says why
        raise _unloadable(error) from error
    return compare_sessions(reference, session, progress(data, "evaluate", data.size), metrics)


def _time(ours: LoadableModel, theirs: LoadableModel, data: CalibrationData, runs: int) -> Latency:
    reference = deployment_session(ours.source, interleaved=True)
    try:
        quantized = deployment_session(theirs.source, interleaved=True)
    except ModelError as error:
        raise _unloadable(error) from error
    return measure_latency(reference, quantized, next(iter(data)), runs)


def _unloadable(error: ModelError) -> InternalError:
    return InternalError(f"onnxruntime must be able to load a model that quantry wrote, got {error}")


def _tabulate(comparison: Comparison, metrics: Sequence[Metric]) -> list[dict[str, MetricScore]]:
    """Return one table of scores for all outputs together, then one per output."""
    return [
        {
            metric.name: MetricScore.of_samples(metric, comparison.scores[:, row, column])
            for column, metric in enumerate(metrics)
        }
        for row in range(comparison.scores.shape[1])
    ]
