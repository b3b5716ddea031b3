"""Known causes of lost accuracy, looked for one by one; each says what was found and what helps."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantry.diagnosis.tensor_health import TensorHealth
from quantry.plan import QuantPlan

POOR_SQNR = 20.0
"""dB below which a tensor by itself is worth a word: an eighth of the usual 8-bit resolution is gone."""

OUTLIER_PEAK = 25.0
"""Largest magnitude over root mean square beyond which few values stretch the range of all."""

CHANNEL_SPREAD = 32.0
"""Ratio of the largest to the median channel range beyond which one scale starves most channels."""

CONVERSION_SQNR = 35.0
"""dB of the outputs below which conversions for the target cost accuracy by themselves."""

_NAMED = 5


@dataclass(frozen=True)
class Finding:
    """A cause of lost accuracy.

    Attributes:
        title: What was found, in one line.
        tensors: Where, worst first.
        remedy: What to change in the recipe, or where to read on.
    """

    title: str
    tensors: tuple[str, ...]
    remedy: str

    def __str__(self) -> str:
        where = ", ".join(self.tensors[:_NAMED]) + (", ..." if len(self.tensors) > _NAMED else "")
        return f"{self.title}{f' ({where})' if where else ''}: {self.remedy}"


@dataclass(frozen=True)
class Evidence:
    """What the rules look at.

    Attributes:
        model: The float model that was quantized.
        plan: What is quantized.
        tensors: Health of the quantized tensors.
        converted: Output SQNR in dB of the converted and equalized float model against the user's; by output.
    """

    model: ir.Model
    plan: QuantPlan
    tensors: Sequence[TensorHealth]
    converted: Mapping[str, float]


def find_causes(evidence: Evidence) -> tuple[Finding, ...]:
    """Return what the rules find, in their order."""
    return tuple(finding for rule in RULES for finding in rule(evidence))


def _conversions(evidence: Evidence) -> Iterator[Finding]:
    poor = {name: value for name, value in evidence.converted.items() if value < CONVERSION_SQNR}
    if poor:
        yield Finding(
            f"the float model is already changed before quantization: outputs keep {min(poor.values()):.0f} dB",
            tuple(sorted(poor, key=poor.__getitem__)),
            "conversions of prepare.npu cost this much; Sigmoid to HardSigmoid is the usual one: "
            "prepare.npu.sigmoid_to_hard_sigmoid: false keeps it where the target can",
        )


def _outliers(evidence: Evidence) -> Iterator[Finding]:
    found = [
        tensor
        for tensor in evidence.tensors
        if tensor.kind == "activation" and tensor.sqnr < POOR_SQNR and tensor.peak > OUTLIER_PEAK
    ]
    if found:
        worst = min(found, key=lambda tensor: tensor.sqnr)
        yield Finding(
            f"outliers in {_count(len(found), 'activation')}: the largest value of {worst.name} is {worst.peak:.0f} "
            "times its root mean square",
            _worst_first(found),
            "a method that cuts them off (scale.activation: MinMSE or Percentile), or 16 bits for these layers "
            "(plan.layers, mixed precision)",
        )


def _coarse(evidence: Evidence) -> Iterator[Finding]:
    found = [
        tensor
        for tensor in evidence.tensors
        if tensor.kind == "activation" and tensor.sqnr < POOR_SQNR and tensor.peak <= OUTLIER_PEAK
    ]
    if found:
        yield Finding(
            f"{_count(len(found), 'activation')} with less than {POOR_SQNR:.0f} dB, without any outlier",
            _worst_first(found),
            "their range or type is at fault: a shared range, a power-of-two scale that just misses, or too few bits",
        )


def _starved_channels(evidence: Evidence) -> Iterator[Finding]:
    spreads: dict[str, float] = {}
    readers = {node.name: node for node in evidence.model.graph}
    for tensor in evidence.tensors:
        planned = evidence.plan.weights.get(tensor.name) if tensor.kind == "weight" else None
        constant = evidence.model.graph.initializers[tensor.name].const_value if planned is not None else None
        if planned is None or planned.axis is not None or constant is None or len(constant.shape) < 2:
            continue
        axis = _output_axis(readers.get(tensor.node), len(constant.shape))
        ranges = np.abs(np.moveaxis(constant.numpy(), axis, 0)).reshape(constant.shape[axis], -1).max(axis=1)
        middle = float(np.median(ranges))
        spread = float(ranges.max()) / middle if middle > 0 else 0.0
        if spread > CHANNEL_SPREAD:
            spreads[tensor.name] = spread
    if spreads:
        yield Finding(
            f"one scale serves channels of very different size in {_count(len(spreads), 'weight')}, up to "
            f"{max(spreads.values()):.0f} times the median",
            tuple(sorted(spreads, key=spreads.__getitem__, reverse=True)),
            "one scale for each channel (plan.weight.granularity: PerChannel) where the target has them, else "
            "cross-layer equalization (equalize.cross_layer)",
        )


def _output_axis(node: ir.Node | None, rank: int) -> int:
    """Return the axis of a weight along which output channels lie."""
    if node is None or node.op_type == "Conv":
        return 0
    if node.op_type == "Gemm":
        return 0 if node.attributes.get_int("transB", 0) else 1
    return rank - 1 if node.op_type == "MatMul" else 1


def _ill_matched(evidence: Evidence) -> Iterator[Finding]:
    found = [tensor for tensor in evidence.tensors if tensor.shared_with and _used(tensor) < 1 / 8]
    if found:
        yield Finding(
            f"{_count(len(found), 'tensor')} with less than an eighth of a shared range in use",
            tuple(tensor.name for tensor in sorted(found, key=_used)),
            "what is joined there has different sizes: leave the join in float (plan.float_final_joins, "
            "plan.selection.exclude), or equalize it",
        )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _used(tensor: TensorHealth) -> float:
    return max(-tensor.seen[0], tensor.seen[1]) / max(-tensor.range[0], tensor.range[1])


def _worst_first(tensors: Sequence[TensorHealth]) -> tuple[str, ...]:
    return tuple(tensor.name for tensor in sorted(tensors, key=lambda tensor: tensor.sqnr))


RULES: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    _conversions,
    _starved_channels,
    _outliers,
    _ill_matched,
    _coarse,
)
"""Every known cause; the gravest first."""
