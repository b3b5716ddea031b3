"""The facts of a report as plain data: everything that the page shows, without HTML."""

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantry.diagnosis import Diagnosis
from quantry.observe import Statistics
from quantry.quantization import QuantizationResult
from quantry.recipe import to_yaml

Plain = dict[str, Any]

_SHAPES = 6
_BINS = 96


@dataclass(frozen=True)
class ReportFacts:
    """The content of a report.

    Attributes:
        title: The model's name.
        recipe_name: The recipe's label.
        recipe: The recipe as YAML, ready for ``quantry quantize --recipe``.
        scores: One entry per metric: name, value, interval (None for a single sample), higher_is_better.
        sizes: Bytes of the float and the quantized model.
        latency: Median milliseconds of both models and the ratio, or None.
        nodes: Number of nodes, and of those that compute on quantized tensors.
        findings: Known causes of loss: title, tensors, suggested fix.
        falls: Nodes that lose most: node, operator, before, after, lost.
        gathered: Tensor names and SQNR in dB along the graph.
        tensors: One entry per quantized tensor.
        shapes: Distributions of the worst activations, with the represented range.
        declined: Reasons with the nodes that stayed float.
        notes: Messages for the user.
        trace: Rows of the trace: stage, outcome, seconds.
    """

    title: str
    recipe_name: str
    recipe: str
    scores: tuple[Plain, ...]
    sizes: tuple[int, int]
    latency: Plain | None
    nodes: tuple[int, int]
    findings: tuple[Plain, ...]
    falls: tuple[Plain, ...]
    gathered: tuple[tuple[str, float], ...]
    tensors: tuple[Plain, ...]
    shapes: tuple[Plain, ...]
    declined: tuple[tuple[str, tuple[str, ...]], ...]
    notes: tuple[str, ...]
    trace: tuple[tuple[str, str, str], ...]


def collect_facts(result: QuantizationResult, diagnosis: Diagnosis, title: str) -> ReportFacts:
    """Return the facts of a result.

    Args:
        result: The result of `quantry.quantize`.
        diagnosis: The result of `quantry.diagnose`.
        title: The heading, usually the model's file name.
    """
    evaluation = result.evaluation
    latency = evaluation.latency
    statistics = Statistics({}, 0) if result.stages.statistics is None else result.stages.statistics.value
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for declined in result.declined:
        reasons[declined.reason].append(f"{declined.operator} {declined.node}")
    return ReportFacts(
        title=title,
        recipe_name=result.recipe.name,
        recipe=to_yaml(result.recipe),
        scores=tuple(
            {
                "name": score.name,
                "value": score.value,
                # One sample does not show the variation between samples.
                "interval": score.interval if evaluation.samples > 1 else None,
                "higher_is_better": score.higher_is_better,
            }
            for score in evaluation.metrics.values()
        ),
        sizes=(evaluation.float_bytes, evaluation.quantized_bytes),
        latency=None
        if latency is None
        else {"float_ms": latency.float_ms, "quantized_ms": latency.quantized_ms, "ratio": latency.ratio},
        nodes=(len(result.plan.quantized_nodes) + len(result.declined), len(result.plan.quantized_nodes)),
        findings=tuple(
            {"title": finding.title, "tensors": finding.tensors, "fix": finding.fix} for finding in diagnosis.findings
        ),
        falls=tuple(vars(fall) for fall in diagnosis.falls),
        gathered=tuple((name, value) for name, value in diagnosis.gathered.items()),
        tensors=tuple(vars(tensor) for tensor in sorted(diagnosis.tensors, key=lambda tensor: tensor.sqnr)),
        shapes=_shapes(diagnosis, statistics),
        declined=tuple((reason, tuple(nodes)) for reason, nodes in sorted(reasons.items(), key=_most_first)),
        notes=result.notes,
        trace=tuple((entry.stage, entry.outcome, f"{entry.seconds:.2f}") for entry in result.trace.entries),
    )


def _most_first(entry: tuple[str, list[str]]) -> int:
    return -len(entry[1])


def _shapes(diagnosis: Diagnosis, statistics: Statistics) -> tuple[Plain, ...]:
    """Return the distributions of the activations that lose most on their own."""
    worst = sorted((one for one in diagnosis.tensors if one.kind == "activation"), key=lambda one: one.sqnr)
    shapes = []
    for tensor in worst[:_SHAPES]:
        spread = statistics.tensors[tensor.name].distribution()
        low, high = min(tensor.seen[0], tensor.range[0]), max(tensor.seen[1], tensor.range[1])
        if not low < high:
            continue
        edges = np.linspace(low, high, _BINS + 1)
        middle = (spread.lower + spread.upper) / 2
        mass, _ = np.histogram(middle, bins=edges, weights=spread.counts)
        shapes.append(
            {
                "name": tensor.name,
                "low": low,
                "high": high,
                "range": tensor.range,
                "sqnr": tensor.sqnr,
                "dtype": tensor.dtype,
                # On a logarithmic scale, because the few values that stretch a range are of interest.
                "heights": [math.log10(1 + value) for value in mass.tolist()],
            }
        )
    return tuple(shapes)
