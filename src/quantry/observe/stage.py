"""Runs the float model once over the calibration data and keeps method-neutral statistics."""

import platform
from collections.abc import Mapping

import onnx_ir as ir

from quantry.errors import DataError, ModelError
from quantry.memo import stage
from quantry.observe.calibration_data import CalibrationData
from quantry.observe.needs import NO_NEEDS, Needs
from quantry.observe.statistics import Statistics
from quantry.observe.tensor_counter import TensorCounter
from quantry.prepare.float_model import FloatModel
from quantry.prepare.model_file import serialize
from quantry.recipe import ObserveOptions


def _environment() -> Mapping[str, str]:
    import onnxruntime

    return {"onnxruntime": onnxruntime.__version__, "machine": platform.machine()}


@stage(name="observe", version=1, environment=_environment)
def observe(model: FloatModel, data: CalibrationData, options: ObserveOptions, needs: Needs = NO_NEEDS) -> Statistics:
    """Return the statistics of every float32 activation of the main graph.

    Args:
        model: The float model.
        data: Samples to feed, one at a time.
        options: How many samples, and where to run.
        needs: Extra requests.
    """
    import onnxruntime

    if options.samples is not None:
        data = data.take(options.samples)
    names = observed_tensors(model.model)
    axes = dict(needs.channel_extrema)
    graph = model.model.clone()
    inputs = {value.name for value in graph.graph.inputs}
    existing = {value.name for value in graph.graph.outputs}
    values = {value.name: value for node in graph.graph for value in node.outputs}
    graph.graph.outputs.extend(values[name] for name in names if name not in existing and name not in inputs)
    session_options = onnxruntime.SessionOptions()
    session_options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session_options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(serialize(graph), session_options, providers=list(options.providers))
    except Exception as error:
        raise ModelError(f"onnxruntime must be able to load the model, got {error}; observe") from error
    counters = {name: TensorCounter(axes.get(name)) for name in names}
    outputs = [name for name in names if name not in inputs]
    samples = 0
    for sample in data:
        try:
            results = session.run(outputs, sample)
        except Exception as error:
            raise DataError(f"onnxruntime must be able to run the model, got {error}; sample {samples}") from error
        for name in names:
            if name in sample:
                counters[name].add(sample[name])
        for name, array in zip(outputs, results, strict=True):
            counters[name].add(array)
        samples += 1
    return Statistics({name: counter.freeze() for name, counter in counters.items()}, samples)


def observed_tensors(model: ir.Model) -> tuple[str, ...]:
    """Return the names of all float32 activations of the main graph: inputs first, then nodes' outputs in order."""
    candidates = [value for value in model.graph.inputs if value.name not in model.graph.initializers]
    candidates += [value for node in model.graph for value in node.outputs]
    return tuple(value.name for value in candidates if value.name and value.dtype == ir.DataType.FLOAT)
