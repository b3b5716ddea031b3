"""Diagnose a quantized model: the error of each tensor alone, the accumulated error, and its causes."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from html import escape
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from quantry.diagnosis.calibration import CalibrationCheck, check_calibration
from quantry.diagnosis.causes import find_causes
from quantry.diagnosis.counterfactual import Counterfactual, Rest
from quantry.diagnosis.evidence import Evidence, Fall, Finding, counted, sentence
from quantry.diagnosis.fix import Fix
from quantry.diagnosis.general_fixes import general_fixes, with_pieces
from quantry.diagnosis.tensor_health import TensorHealth, tensor_health
from quantry.errors import RecipeError
from quantry.evaluate.decisions import output_decibels
from quantry.evaluate.levels import AS_GOOD
from quantry.evaluate.measured_errors import measured_errors
from quantry.evaluate.metrics.metric import Pair, pair_outputs
from quantry.evaluate.output_layout import OutputLayout, output_layout
from quantry.evaluate.tasks.float_agreement import MOST_DB, Closeness
from quantry.notebook import html_table
from quantry.observe import Statistics
from quantry.pipeline import Stages
from quantry.quantization import QuantizationResult
from quantry.runtime.sessions import run_session, simulation_session

_SHOWN_FALLS = 20
_TOLD_FALLS = 5

# Only outputs are compared on these, which is much cheaper than all tensors; ties of a few percent show up.
_COMPARED = 64

# Each cause is measured on these, by a run of the outputs without it.
_MEASURED = 8


@dataclass(frozen=True)
class Diagnosis:
    """Where the error of a quantized model comes from.

    Attributes:
        tensors: Each quantized tensor on its own.
        gathered: SQNR in dB of the tensors that both models have, in graph order.
        falls: The nodes that lose most, worst first.
        findings: Known causes, with suggested fixes.
        samples: Number of samples on which `gathered` was measured.
        closeness: How close the outputs are to the float model's, sample by sample: decibels, agreement of decisions,
            and the share of ties.
        calibration: The check of the calibration data; None if it was skipped or nothing was calibrated.
        rest: What the outputs would keep without any of the causes; None without causes, or if it cannot be measured.
    """

    tensors: tuple[TensorHealth, ...]
    gathered: Mapping[str, float]
    falls: tuple[Fall, ...]
    findings: tuple[Finding, ...]
    samples: int
    closeness: Closeness = field(repr=False)
    calibration: CalibrationCheck | None = field(default=None, repr=False)
    rest: Rest | None = field(default=None, repr=False)
    _general_fixes: Callable[[], tuple[Fix, ...]] = field(default=tuple, repr=False, compare=False)

    @cached_property
    def general_fixes(self) -> tuple[Fix, ...]:
        """What helps many models whatever the cause, the most promising first.

        The last nodes, the first layers or the nodes that lose most, in float or with more bits. What they gain is
        simulated when they are first asked for, because that takes up to a dozen runs.
        """
        return self._general_fixes()

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the causes with their fixes, and the nodes that lose most."""
        causes = [(finding.title, finding.fix, ", ".join(finding.tensors[:_TOLD_FALLS])) for finding in self.findings]
        falls = [(f"{fall.operator} {fall.node}", f"{fall.before:.1f}", f"{fall.after:.1f}") for fall in self.falls]
        why = (
            html_table(("cause", "what helps", "tensors"), causes, "Why accuracy is lost")
            if causes
            else "<p>No known cause of accuracy loss was found.</p>"
        )
        lossy_nodes = html_table(("node", "dB before", "dB after"), falls, "Where it is lost")
        return f"<p>{escape(sentence(outputs_line(self.closeness)))}.</p>{why}{lossy_nodes}"

    def __str__(self) -> str:
        lines = [outputs_line(self.closeness)]
        lines += [f"- {finding}" for finding in self.findings] or ["- no known cause of accuracy loss was found"]
        lines += [] if self.rest is None else [str(self.rest)]
        lines += [
            f"{fall.before:6.1f} dB before and {fall.after:6.1f} dB after {fall.operator} {fall.node}"
            for fall in self.falls[:_TOLD_FALLS]
        ]
        return "\n".join(lines)


def diagnose(
    result: QuantizationResult, samples: int = 4, *, calibration: bool = True, brief: bool = False
) -> Diagnosis:
    """Find out where a quantized model loses accuracy, and why.

    The error of each tensor alone follows from the statistics; the accumulated error is measured by running both.

    Args:
        result: The result of `quantry.quantize`.
        samples: Number of evaluation samples to run.
        calibration: Also check the calibration data; what is wrong with them is listed first, because it makes
            everything else uncertain.
        brief: Whether to leave out what takes longest: which tensors of a finding matter, what corrected biases gain,
            and what remains without all causes.

    Raises:
        RecipeError: ``samples`` is less than 1.

    Example:
        >>> print(quantry.diagnose(result))  # doctest: +SKIP
    """
    if samples < 1:
        raise RecipeError(f"samples must be at least 1, got {samples!r}; in diagnose")
    stages = result.stages
    model = stages.equalized.value.model
    statistics = Statistics({}, 0) if stages.statistics is None else stages.statistics.value
    health = tensor_health(model, statistics, result.plan, result.params)
    names = [value.name for node in model.graph for value in node.outputs if value.name]
    feeds = list(result.evaluation_data.take(samples))
    errors = measured_errors(model, result.model, names, feeds, samples)
    gathered = {name: error.sqnr for name, error in errors.items()}
    falls = find_falls(model, gathered)
    layout = output_layout(stages.prepared.value.model, feeds[0])
    closeness = _closeness(result, layout)
    held_out = result.evaluation_statistics
    evidence = Evidence(
        model,
        result.recipe,
        result.plan,
        health,
        errors,
        falls,
        _converted(stages, feeds),
        closeness.mean_ties or 0.0,
        result.params,
        () if held_out is None else tensor_health(model, held_out, result.plan, result.params),
    )
    counterfactual = Counterfactual(
        stages, list(result.evaluation_data.take(max(samples, _MEASURED))), closeness.decibels, layout
    )
    causes = find_causes(evidence, counterfactual, brief=brief)
    blamed = {name for finding in causes for name in finding.rounded or finding.tensors}
    rest = counterfactual.rest(blamed) if blamed and not brief else None
    checked = check_calibration(result) if calibration else None
    causes = (*(() if checked is None else checked.findings), *causes)
    findings = tuple(replace(finding, fixes=with_pieces(evidence, finding.fixes)) for finding in causes)
    general = partial(general_fixes, evidence, counterfactual)
    return Diagnosis(health, gathered, falls, findings, len(feeds), closeness, checked, rest, general)


def _closeness(result: QuantizationResult, layout: OutputLayout) -> Closeness:
    """Compare the outputs with those of the user's model."""
    reference = simulation_session(result.stages.prepared.value.model, interleaved=True)
    quantized = simulation_session(result.quantized, interleaved=True)

    def pairs() -> Iterator[dict[str, Pair | None]]:
        for feeds in result.evaluation_data.take(_COMPARED):
            ours, theirs = run_session(reference, feeds), run_session(quantized, feeds)
            yield {name: pair_outputs(ours[name], theirs[name]) for name in ours}

    return Closeness.of(pairs(), layout)


def _converted(stages: Stages, samples: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, float]:
    """Return how close the outputs are before and after conversions, in dB; empty if nothing was converted."""
    if stages.equalized.digest == stages.prepared.digest:
        return {}
    models = (stages.prepared.value.model, stages.equalized.value.model)
    ours, theirs = (simulation_session(model, interleaved=True) for model in models)
    ratios: dict[str, list[float]] = {}
    for feeds in samples:
        expected, actual = run_session(ours, feeds), run_session(theirs, feeds)
        for name in expected:
            pair = pair_outputs(expected[name], actual[name])
            if pair is not None:
                ratios.setdefault(name, []).append(min(output_decibels(pair), MOST_DB))
    return {name: sum(values) / len(values) for name, values in ratios.items()}


def outputs_line(closeness: Closeness) -> str:
    """Return how close the outputs are, in words."""
    line = f"the outputs keep {closeness.mean_decibels:.1f} dB on {counted(len(closeness.decibels), 'sample')}"
    if closeness.mean_agreement is not None:
        line += f"; {closeness.mean_agreement:.1%} of the decisions are those of the float model"
    if closeness.mean_ties:
        line += f"; equal highest scores in {closeness.mean_ties:.1%}"
    return line


def find_falls(model: ir.Model, gathered: Mapping[str, float]) -> tuple[Fall, ...]:
    """Return the nodes that lose most.

    Args:
        model: The float model.
        gathered: By tensor, its signal-to-noise ratio in dB.
    """
    falls = []
    # A tensor that is not in both models, such as one inside a fused activation, gets the worst value of its inputs.
    sqnr_by_tensor: dict[str, float] = {}
    for node in model.graph:
        sqnr_before = min(
            (sqnr_by_tensor[value.name] for value in node.inputs if value and value.name in sqnr_by_tensor),
            default=math.inf,
        )
        for output in node.outputs:
            if not output.name:
                continue
            sqnr_after = sqnr_by_tensor[output.name] = gathered.get(output.name, sqnr_before)
            lost = min(sqnr_before, AS_GOOD.decibels) - min(sqnr_after, AS_GOOD.decibels)
            if lost > 0 and output.name in gathered:
                falls.append(Fall(node.name or "", node.op_type, output.name, sqnr_before, sqnr_after, lost))
    return tuple(sorted(falls, key=lambda fall: -fall.lost)[:_SHOWN_FALLS])
