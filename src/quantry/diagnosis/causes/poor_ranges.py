"""Cause: activations that lose much on their own, because of outliers or of a range that is too coarse."""

from collections.abc import Iterator

from quantry.diagnosis.evidence import POOR_SQNR, Evidence, Finding, counted, worst_first
from quantry.diagnosis.fix import Fix, float_fix, wide_fix
from quantry.diagnosis.tensor_health import TensorHealth
from quantry.graph.operators import operators_where
from quantry.recipe import MinMax, MinMSE, NonOverflow

OUTLIER_PEAK = 25.0
"""Largest magnitude divided by root mean square above which few values stretch the range of all."""

_SQUASHING = (*operators_where(lambda row: row.operands == 1 and row.homogeneous is False), "Clip")

_MORE_BITS = "16 bits for these layers (plan.layers, mixed precision)"


def outliers(evidence: Evidence) -> Iterator[Finding]:
    """Find activations in which few values stretch the range of all."""
    found = [tensor for tensor in _poor(evidence) if tensor.peak > OUTLIER_PEAK]
    if not found:
        return
    worst = min(found, key=lambda tensor: tensor.sqnr)
    cuts = not isinstance(evidence.recipe.scale.activation, MinMax | NonOverflow)
    better = "MinMSE" if cuts else "MinMSE or Percentile"
    known = isinstance(evidence.recipe.scale.activation, MinMSE)
    yield Finding(
        f"outliers in {counted(len(found), 'activation')}: the largest value of {worst.name} is {worst.peak:.0f} "
        "times its root mean square",
        worst_first(found),
        _MORE_BITS if known else f"a method that clips them (scale.activation: {better}), or {_MORE_BITS}",
        (*(() if known else (Fix("ranges by MinMSE", {"scale.activation": MinMSE()}),)), *_more(evidence, found)),
    )


def coarse_ranges(evidence: Evidence) -> Iterator[Finding]:
    """Find activations with low SQNR but without outliers."""
    found = [tensor for tensor in _poor(evidence) if tensor.peak <= OUTLIER_PEAK]
    if found:
        yield Finding(
            f"{counted(len(found), 'activation')} with less than {POOR_SQNR:.0f} dB, without any outlier",
            worst_first(found),
            "their range or type is the cause: a shared range, a power-of-two scale that just misses, or too few bits",
            _more(evidence, found),
        )


def _more(evidence: Evidence, found: list[TensorHealth]) -> tuple[Fix, ...]:
    """Return the fixes that give the worst activations more levels."""
    names = worst_first(found)
    nodes = evidence.producers(names)
    return (wide_fix(names[:3]), *((float_fix(nodes),) if nodes else ()))


def _poor(evidence: Evidence) -> list[TensorHealth]:
    squashed = _measured_after_functions(evidence)
    return [tensor for tensor in evidence.activations if tensor.sqnr < POOR_SQNR and tensor.name not in squashed]


def _measured_after_functions(evidence: Evidence) -> set[str]:
    """Return tensors whose range was selected for the functions that read them: the rest is clipped on purpose."""
    method = evidence.recipe.scale.activation
    if not isinstance(method, MinMSE) or not method.after_functions:
        return set()
    readers = (node for node in evidence.model.graph if node.op_type in _SQUASHING)
    return {value.name for node in readers for value in node.inputs[:1] if value is not None and value.name}
