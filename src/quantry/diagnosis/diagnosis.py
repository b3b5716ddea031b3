"""One look at a quantized model: each tensor by itself, the error as it gathers, and the causes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from quantry.diagnosis.causes import find_causes
from quantry.diagnosis.evidence import GOOD_SQNR, Evidence, Fall, Finding
from quantry.diagnosis.measured_errors import measured_errors
from quantry.diagnosis.tensor_health import TensorHealth, tensor_health
from quantry.errors import RecipeError
from quantry.observe import Statistics
from quantry.quantization import QuantizationResult

_SHOWN_FALLS = 20
_TOLD_FALLS = 5


@dataclass(frozen=True)
class Diagnosis:
    """Where the error comes from.

    Attributes:
        tensors: Each quantized tensor by itself.
        gathered: SQNR in dB of the tensors that both models have, in the order of the graph.
        falls: Where most is lost, worst first.
        findings: Known causes with their remedies.
        samples: How many samples `gathered` was measured on.
    """

    tensors: tuple[TensorHealth, ...]
    gathered: Mapping[str, float]
    falls: tuple[Fall, ...]
    findings: tuple[Finding, ...]
    samples: int

    def __str__(self) -> str:
        lines = [f"- {finding}" for finding in self.findings] or ["- no known cause of loss was found"]
        lines += [
            f"{fall.before:6.1f} dB before and {fall.after:6.1f} dB after {fall.operator} {fall.node}"
            for fall in self.falls[:_TOLD_FALLS]
        ]
        return "\n".join(lines)


def diagnose(result: QuantizationResult, samples: int = 4) -> Diagnosis:
    """Say where a quantized model loses accuracy, and why.

    Each tensor by itself follows from what was observed; how the error gathers is measured by running both models.

    Args:
        result: What `quantry.quantize` returned.
        samples: How many evaluation samples to run.

    Raises:
        RecipeError: ``samples`` is less than one.

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
    converted: dict[str, float] = {}
    if stages.equalized.digest != stages.prepared.digest:
        outputs = [value.name for value in model.graph.outputs if value.name]
        changed = measured_errors(stages.prepared.value.model, model, outputs, feeds, samples)
        converted = {name: error.sqnr for name, error in changed.items()}
    falls = _falls(model, gathered)
    causes = find_causes(Evidence(model, result.recipe, result.plan, health, errors, falls, converted))
    return Diagnosis(health, gathered, falls, causes, len(feeds))


def _falls(model: ir.Model, gathered: Mapping[str, float]) -> tuple[Fall, ...]:
    """Return the nodes that lose most."""
    falls = []
    # What is not in both models, such as a tensor inside a fused activation, has the worst of what it is made from.
    known: dict[str, float] = {}
    for node in model.graph:
        before = min((known[value.name] for value in node.inputs if value and value.name in known), default=math.inf)
        for output in node.outputs:
            if not output.name:
                continue
            after = known[output.name] = gathered.get(output.name, before)
            lost = min(before, GOOD_SQNR) - min(after, GOOD_SQNR)
            if lost > 0 and output.name in gathered:
                falls.append(Fall(node.name or "", node.op_type, output.name, before, after, lost))
    return tuple(sorted(falls, key=lambda fall: -fall.lost)[:_SHOWN_FALLS])
