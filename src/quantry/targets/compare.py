"""Compare any two models on the same data: outputs, decisions, size, and speed on a target."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantry.convert import QdqDialect, translate
from quantry.errors import DataError, ModelError
from quantry.evaluate import MetricScore, find_metric
from quantry.evaluate.metrics.metric import pair_outputs
from quantry.graph.load import ModelLike, model_source
from quantry.graph.save import serialize
from quantry.runtime.sessions import simulation_session
from quantry.targets.backends import Backend
from quantry.targets.backends.ort_cpu import SessionRunner

METRICS = ("sqnr", "cosine", "l2")


@dataclass(frozen=True)
class ModelComparison:
    """How the outputs of one model differ from another's.

    Attributes:
        metrics: By name, over all outputs.
        outputs: By output of the first model, the metrics of that output.
        samples: Number of samples.
        sizes: Bytes of both models.
        notes: What could not be compared.
    """

    metrics: Mapping[str, MetricScore]
    outputs: Mapping[str, Mapping[str, MetricScore]]
    samples: int
    sizes: tuple[int, int]
    notes: tuple[str, ...] = ()


def runnable(model: ModelLike) -> bytes:
    """Return a model that onnxruntime loads.

    Operators of AMD's tools that need a library are written as standard Q/DQ pairs.

    Args:
        model: A model of any tool.

    Raises:
        ModelError: onnxruntime does not load it either way.
    """
    source = model_source(model)
    content = serialize(source.load())
    try:
        simulation_session(content, threads=1)
    except ModelError as error:
        if not _lacks_operator(error):
            raise
        return serialize(translate(source.load(), QdqDialect.QDQ))
    return content


def _lacks_operator(refusal: ModelError) -> bool:
    """Whether onnxruntime refuses a model because of an operator that it does not have.

    Its exception has the same class for every reason, so its text is all there is.
    """
    return "not a registered function/op" in str(refusal.__cause__)


def compare_models(
    reference: ModelLike,
    model: ModelLike,
    samples: Iterable[Mapping[str, NDArray[Any]]],
    backend: Backend | None = None,
) -> ModelComparison:
    """Compare the outputs of two models, sample by sample.

    Outputs are paired by name; if names differ, as some tools rename them, by position.

    Args:
        reference: The model to compare with, such as the float model.
        model: The other one.
        samples: Inputs of both: input names to arrays.
        backend: Runs the second model; None simulates it.

    Raises:
        DataError: There is no sample, or a model cannot run on one.
        ModelError: A model cannot be loaded, or they have different numbers of inputs or outputs.
    """
    ours, theirs = runnable(reference), runnable(model)
    first = SessionRunner(simulation_session(ours, interleaved=True))
    second = SessionRunner(simulation_session(theirs, interleaved=True)) if backend is None else backend.open(theirs)
    renamed = _renamed_inputs(ours, theirs)
    metrics = [find_metric(name) for name in METRICS]
    rows: list[list[list[float]]] = []
    names: tuple[str, ...] = ()
    for feeds in samples:
        expected, got = first.run(feeds), second.run({renamed.get(name, name): array for name, array in feeds.items()})
        names = tuple(expected)
        pairs = [pair_outputs(expected[a], got[b]) for a, b in _paired(expected, got)]
        alone = [[metric.score_pair(pair) for metric in metrics] for pair in pairs]
        rows.append([alone[0] if len(pairs) == 1 else [metric.score_outputs(pairs) for metric in metrics], *alone])
    second.close()
    if not rows:
        raise DataError("a comparison needs at least one sample, got none")
    scores = np.array(rows, np.float64)
    tables = [
        {metric.name: MetricScore.of_samples(metric, scores[:, row, column]) for column, metric in enumerate(metrics)}
        for row in range(scores.shape[1])
    ]
    return ModelComparison(
        tables[0], dict(zip(names, tables[1:], strict=True)), len(rows), (_size(reference), _size(model))
    )


def _size(model: ModelLike) -> int:
    return len(serialize(model_source(model).load()))


def _renamed_inputs(ours: bytes, theirs: bytes) -> dict[str, str]:
    import onnx

    names = []
    for content in (ours, theirs):
        graph = onnx.load_from_string(content).graph
        constants = {entry.name for entry in graph.initializer}
        names.append([value.name for value in graph.input if value.name not in constants])
    first, second = names
    if len(first) != len(second):
        raise ModelError(f"models to compare must have the same inputs, got {first} and {second}")
    return {} if set(first) == set(second) else dict(zip(first, second, strict=True))


def _paired(expected: Mapping[str, Any], computed: Mapping[str, Any]) -> list[tuple[str, str]]:
    if expected.keys() == computed.keys():
        return [(name, name) for name in expected]
    if len(expected) != len(computed):
        raise ModelError(f"models to compare must have the same outputs, got {[*expected]} and {[*computed]}")
    return list(zip(expected, computed, strict=True))
