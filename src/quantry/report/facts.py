"""The facts of a report as plain data: everything that the page shows, without HTML."""

import contextlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantry.auto import AutoFacts, AutoResult, auto_facts, final_quality
from quantry.diagnosis import Diagnosis
from quantry.diagnosis.evidence import counted
from quantry.errors import QuantryError
from quantry.evaluate import Quality, quality
from quantry.notes import grouped_notes
from quantry.observe import Statistics
from quantry.quantization import QuantizationResult
from quantry.recipe import to_yaml
from quantry.targets import find_target, place

Plain = dict[str, Any]

# A page of the largest models stays below a megabyte with these.
_HISTOGRAMS = 400
_BINS = 64


@dataclass(frozen=True)
class ReportFacts:
    """The content of a report.

    Attributes:
        title: The model's name.
        float_file: Name of the float model's file; empty if it was given in memory.
        recipe_name: The recipe's label.
        recipe: The recipe as YAML, ready for ``quantry quantize --recipe``.
        scores: One entry per metric: name, value, interval (None for a single sample), higher_is_better.
        sizes: Bytes of the float and the quantized model.
        latency: Median milliseconds of both models and the ratio, or None.
        nodes: Number of nodes, and of those that compute on quantized tensors.
        findings: Known causes of loss: title, tensors, suggested fix.
        falls: Nodes that lose most: node, operator, before, after, lost, and the number of the finding that explains
            it, from 1; 0 if there is none.
        gathered: Tensor names and SQNR in dB along the graph.
        strip: One entry per layer, in graph order: its tensors and the SQNR in dB of the accumulated error, of its
            output alone and of its weight alone; None where unknown.
        tensors: One entry per quantized tensor.
        histograms: Values of the worst tensors, with the represented range.
        pictures: Images on which the models disagree most.
        placement: Where each node runs on a target; empty if there is none.
        declined: Reasons with the nodes that stayed float.
        notes: Messages for the user.
        trace: Rows of the trace: stage, outcome, seconds.
        auto: What the recipe "auto" tried, see `quantry.auto.auto_facts`; None for other recipes.
        calibration: What is known about the calibration data, one line each.
        rest: What the outputs would keep without the causes, in words; empty if unknown.
        quality: How close the model is to the float model.
        file: Name of the quantized model's file; empty if it was not saved.
        target: Name of the deployment target; empty if the recipe has none.
    """

    title: str
    float_file: str
    recipe_name: str
    recipe: str
    scores: tuple[Plain, ...]
    sizes: tuple[int, int]
    latency: Plain | None
    nodes: tuple[int, int]
    findings: tuple[Plain, ...]
    falls: tuple[Plain, ...]
    gathered: tuple[tuple[str, float], ...]
    strip: tuple[Plain, ...]
    tensors: tuple[Plain, ...]
    histograms: tuple[Plain, ...]
    declined: tuple[tuple[str, tuple[str, ...]], ...]
    notes: tuple[str, ...]
    trace: tuple[tuple[str, str, str], ...]
    quality: Quality
    pictures: tuple[Plain, ...] = ()
    placement: tuple[Plain, ...] = ()
    auto: AutoFacts | None = None
    calibration: str = ""
    rest: str = ""
    file: str = ""
    target: str = ""


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
    return ReportFacts(
        title=title,
        float_file="" if result.float_file is None else result.float_file.name,
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
        nodes=(len(result.plan.all_quantized) + len(result.plan.all_declined), len(result.plan.all_quantized)),
        findings=tuple(
            {
                "title": finding.title,
                "tensors": finding.tensors,
                "fix": finding.fix,
                "cost": finding.costs,
                "gain": "" if finding.gain is None else f"{finding.gain:+.1f} dB on held-out samples",
            }
            for finding in diagnosis.findings
        ),
        falls=tuple({**vars(fall), "cause": _cause(fall.tensor, fall.node, diagnosis)} for fall in diagnosis.falls),
        gathered=tuple((name, value) for name, value in diagnosis.gathered.items()),
        strip=_strip(result, diagnosis),
        tensors=tuple(vars(tensor) for tensor in sorted(diagnosis.tensors, key=lambda tensor: tensor.sqnr)),
        histograms=_histograms(result, diagnosis, statistics),
        declined=tuple(
            (reason, tuple(f"{node.operator} {node.node}" for node in nodes))
            for reason, nodes in result.plan.float_because.items()
        ),
        notes=grouped_notes(result.notes),
        trace=tuple((entry.stage, entry.outcome, f"{entry.seconds:.2f}") for entry in result.trace.entries),
        auto=auto_facts(result.auto) if isinstance(result, AutoResult) else None,
        calibration="" if diagnosis.calibration is None else "\n".join(diagnosis.calibration.lines()),
        rest="" if diagnosis.rest is None else str(diagnosis.rest),
        quality=_quality(result, diagnosis),
        file="" if result.saved_to is None else result.saved_to.name,
        target=result.recipe.target,
    )


def _quality(result: QuantizationResult, diagnosis: Diagnosis) -> Quality:
    """Return how close the outputs are, on held-out samples where there are some."""
    if isinstance(result, AutoResult):
        return final_quality(result.auto)
    similarity = diagnosis.closeness
    return quality(similarity.mean_decibels, similarity.mean_agreement, counted(len(similarity.decibels), "sample"))


def placement_facts(result: QuantizationResult) -> tuple[Plain, ...]:
    """Return where each node of the quantized model runs; empty if it cannot be run.

    That is on the recipe's target, or with onnxruntime's CPU kernels if it has none or it does not run here.

    Args:
        result: The result of `quantry.quantize`.
    """
    target = find_target(result.recipe.target) if result.recipe.target else None
    names = ["ort-cpu"] if target is None or not target.backend else [target.name, "ort-cpu"]
    feeds = next(iter(result.evaluation_data))
    for name in names:
        # A backend may be missing on this machine, or refuse a node.
        with contextlib.suppress(QuantryError):
            placed = place(result.to_bytes(), target if target and name == target.name else name, feeds)
            return tuple({"target": name, **row} for row in placed.rows)
    return ()


def _cause(tensor: str, node: str, diagnosis: Diagnosis) -> int:
    """Return the number of the finding that names a tensor or its node, from 1; 0 if there is none."""
    names = {entry.name for entry in diagnosis.tensors if node and entry.node == node} | {tensor}
    findings = enumerate(diagnosis.findings, start=1)
    return next((number for number, finding in findings if names & set(finding.tensors)), 0)


def _strip(result: QuantizationResult, diagnosis: Diagnosis) -> tuple[Plain, ...]:
    """Return the errors of each node whose output both models have, in graph order."""
    alone = {(error.kind, error.name): error.sqnr for error in diagnosis.tensors}
    weights = {error.node: error for error in diagnosis.tensors if error.kind == "weight"}
    layers = []
    for node in result.stages.equalized.value.model.graph:
        tensor = next((value.name for value in node.outputs if value.name in diagnosis.gathered), None)
        if tensor is None:
            continue
        weight = weights.get(node.name or "")
        layers.append(
            {
                "node": node.name or tensor,
                "operator": node.op_type,
                "tensor": tensor,
                "weight_name": "" if weight is None else weight.name,
                "gathered": _short(diagnosis.gathered[tensor]),
                "activation": _short(alone.get(("activation", tensor))),
                "weight": None if weight is None else _short(weight.sqnr),
            }
        )
    return tuple(layers)


def _short(decibel: float | None) -> float | None:
    return None if decibel is None else round(decibel, 2)


def _histograms(result: QuantizationResult, diagnosis: Diagnosis, statistics: Statistics) -> tuple[Plain, ...]:
    """Return the values of the tensors that lose most on their own, worst first."""
    initializers = result.stages.equalized.value.model.graph.initializers
    entries = []
    for tensor in sorted(diagnosis.tensors, key=lambda error: error.sqnr)[:_HISTOGRAMS]:
        low, high = min(tensor.seen[0], tensor.range[0]), max(tensor.seen[1], tensor.range[1])
        if not low < high or not math.isfinite(high - low):
            continue
        if tensor.kind == "activation":
            spread = statistics.tensors[tensor.name].distribution()
            middle: Any = (spread.lower + spread.upper) / 2
            counts, _ = np.histogram(middle, bins=_BINS, range=(low, high), weights=spread.counts)
        else:
            constant = initializers[tensor.name].const_value
            assert constant is not None
            counts, _ = np.histogram(constant.numpy().astype(np.float32), bins=_BINS, range=(low, high))
        entries.append(
            {
                "name": tensor.name,
                "kind": tensor.kind,
                "dtype": tensor.dtype,
                "low": low,
                "high": high,
                "range": tensor.range,
                "seen": tensor.seen,
                "sqnr": _short(tensor.sqnr),
                "counts": [int(count) for count in counts],
            }
        )
    return tuple(entries)
