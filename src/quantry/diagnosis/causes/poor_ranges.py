"""Cause: activations that lose much on their own: values cut off, outliers, or a range that is too coarse."""

from collections.abc import Iterator

from quantry.diagnosis.evidence import Evidence, Finding, counted, worst_first
from quantry.diagnosis.fix import Fix, float_fix, wide_fix
from quantry.diagnosis.tensor_health import TensorHealth
from quantry.evaluate.levels import CLOSE, HALF_BIT, VERY_CLOSE
from quantry.facts.operators import operators_where
from quantry.recipe import MinMax, MinMSE, NonOverflow

OUTLIER_PEAK = 25.0
"""Largest magnitude divided by root mean square above which few values stretch the range of all."""

CUT_OFF = 0.5
"""Fraction of a tensor's own error that comes from values outside of its range, above which the range is too small."""

# A range this many times as wide as the values of the evaluation data wastes two bits of eight.
_STRETCHED = 4.0

_SQUASHING = (*operators_where(lambda row: row.operands == 1 and row.homogeneous is False), "Clip")

_MORE_BITS = "16 bits for these layers (plan.layers, mixed precision)"


def saturated_ranges(evidence: Evidence) -> Iterator[Finding]:
    """Find activations whose range cuts off values, in the calibration data or only in the evaluation data."""
    saturated = {tensor.name: tensor for tensor in _poor(evidence) if tensor.clipped > CUT_OFF}
    new = {tensor.name: tensor for tensor in _cut_off_later(evidence)}
    tensors = saturated | new
    if not tensors:
        return
    names = worst_first(list(tensors.values()))
    worst = tensors[names[0]]
    origin = "of the evaluation data " if worst.name in new else ""
    yield Finding(
        f"values are cut off in {counted(len(tensors), 'activation')}: {worst.name} has values {origin}from "
        f"{worst.seen[0]:.3g} to {worst.seen[1]:.3g}, and its range ends at {worst.range[0]:.3g} and "
        f"{worst.range[1]:.3g}",
        names,
        "calibrate on more samples that resemble the evaluation data; `quantry diagnose --calibration` compares them"
        if worst.name in new
        else _keeping(evidence),
        _wider(evidence) + _more(evidence, list(tensors.values())),
    )


def _keeping(evidence: Evidence) -> str:
    method = evidence.recipe.scale.activation
    alternatives = [kind.__name__ for kind in (MinMSE, MinMax) if not isinstance(method, kind)]
    return f"a method that keeps them (scale.activation: {' or '.join(alternatives)}), or {_MORE_BITS}"


def _wider(evidence: Evidence) -> tuple[Fix, ...]:
    method = evidence.recipe.scale.activation
    widest = () if isinstance(method, MinMax) else (Fix("ranges by MinMax", {"scale.activation": MinMax()}),)
    return _by_mse(evidence) + widest


def _by_mse(evidence: Evidence) -> tuple[Fix, ...]:
    is_mse = isinstance(evidence.recipe.scale.activation, MinMSE)
    return () if is_mse else (Fix("ranges by MinMSE", {"scale.activation": MinMSE()}),)


def _cut_off_later(evidence: Evidence) -> Iterator[TensorHealth]:
    """Yield the activations that are cut off in the evaluation data, although they were not when calibrated."""
    calibrated = {tensor.name: tensor.sqnr for tensor in evidence.activations}
    squashed = _measured_after_functions(evidence)
    for tensor in evidence.held_out:
        sqnr = calibrated.get(tensor.name)
        if sqnr is None or tensor.clipped <= CUT_OFF or tensor.name in squashed or tensor.sqnr >= VERY_CLOSE.decibels:
            continue
        if sqnr - tensor.sqnr > HALF_BIT:
            yield tensor


def stretched(evidence: Evidence) -> list[TensorHealth]:
    """Return the activations whose range comes from calibration samples that the evaluation data do not resemble."""
    calibrated = {tensor.name: tensor for tensor in evidence.activations}
    return [
        tensor
        for tensor in evidence.held_out
        if (original := calibrated.get(tensor.name)) is not None
        and tensor.clipped <= CUT_OFF
        and tensor.sqnr < VERY_CLOSE.decibels
        and original.sqnr - tensor.sqnr > HALF_BIT
        and original.peak <= OUTLIER_PEAK
        and tensor.range[1] - tensor.range[0] > _STRETCHED * (tensor.seen[1] - tensor.seen[0])
    ]


def stretched_ranges(evidence: Evidence) -> Iterator[Finding]:
    """Find activations whose range few calibration samples stretched."""
    tensors = stretched(evidence)
    if not tensors:
        return
    names = worst_first(tensors)
    worst = next(tensor for tensor in tensors if tensor.name == names[0])
    yield Finding(
        f"calibration stretched the range of {counted(len(tensors), 'activation')}: {worst.name} has values of the "
        f"evaluation data from {worst.seen[0]:.3g} to {worst.seen[1]:.3g}, and its range ends at {worst.range[0]:.3g} "
        f"and {worst.range[1]:.3g}",
        names,
        "leave out the calibration samples that are unlike the evaluation data, or use a method that clips them "
        f"(scale.activation: {'' if not _by_mse(evidence) else 'MinMSE or '}Percentile)",
        _by_mse(evidence) + _more(evidence, tensors),
    )


def outliers(evidence: Evidence) -> Iterator[Finding]:
    """Find activations in which few values stretch the range of all."""
    tensors = [tensor for tensor in _poor(evidence) if tensor.peak > OUTLIER_PEAK and tensor.clipped <= CUT_OFF]
    if not tensors:
        return
    worst = min(tensors, key=lambda tensor: tensor.sqnr)
    cuts = not isinstance(evidence.recipe.scale.activation, MinMax | NonOverflow)
    better = "MinMSE" if cuts else "MinMSE or Percentile"
    is_mse = isinstance(evidence.recipe.scale.activation, MinMSE)
    yield Finding(
        f"outliers in {counted(len(tensors), 'activation')}: the largest value of {worst.name} is {worst.peak:.0f} "
        "times its root mean square",
        worst_first(tensors),
        _MORE_BITS if is_mse else f"a method that clips them (scale.activation: {better}), or {_MORE_BITS}",
        _by_mse(evidence) + _more(evidence, tensors),
    )


def coarse_ranges(evidence: Evidence) -> Iterator[Finding]:
    """Find activations with low SQNR but without outliers."""
    tensors = [tensor for tensor in _poor(evidence) if tensor.peak <= OUTLIER_PEAK and tensor.clipped <= CUT_OFF]
    if tensors:
        yield Finding(
            f"{counted(len(tensors), 'activation')} with less than {CLOSE.decibels:.0f} dB, without any outlier",
            worst_first(tensors),
            "their range or type is the cause: a shared range, a power-of-two scale that just misses, or too few bits",
            _more(evidence, tensors),
        )


def _more(evidence: Evidence, tensors: list[TensorHealth]) -> tuple[Fix, ...]:
    """Return the fixes that give the worst activations more levels."""
    names = worst_first(tensors)
    nodes = evidence.producers(names)
    return (wide_fix(names[:3]), *((float_fix(nodes),) if nodes else ()))


def _poor(evidence: Evidence) -> list[TensorHealth]:
    squashed = _measured_after_functions(evidence)
    return [tensor for tensor in evidence.activations if tensor.sqnr < CLOSE.decibels and tensor.name not in squashed]


def _measured_after_functions(evidence: Evidence) -> set[str]:
    """Return tensors whose range was selected for the functions that read them: the rest is clipped on purpose."""
    method = evidence.recipe.scale.activation
    if not isinstance(method, MinMSE) or not method.after_functions:
        return set()
    readers = (node for node in evidence.model.graph if node.op_type in _SQUASHING)
    return {value.name for node in readers for value in node.inputs[:1] if value is not None and value.name}
