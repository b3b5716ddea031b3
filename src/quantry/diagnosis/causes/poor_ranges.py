"""Activations that lose much by themselves: outliers stretch their range, or it is too coarse for other reasons."""

from collections.abc import Iterator

from quantry.diagnosis.evidence import POOR_SQNR, Evidence, Finding, counted, worst_first
from quantry.diagnosis.tensor_health import TensorHealth
from quantry.recipe import MinMax, MinMSE, NonOverflow

OUTLIER_PEAK = 25.0
"""Largest magnitude over root mean square beyond which few values stretch the range of all."""

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
        _MORE_BITS if known else f"a method that cuts them off (scale.activation: {better}), or {_MORE_BITS}",
    )


def coarse_ranges(evidence: Evidence) -> Iterator[Finding]:
    """Find activations that are poor without an outlier."""
    found = [tensor for tensor in _poor(evidence) if tensor.peak <= OUTLIER_PEAK]
    if found:
        yield Finding(
            f"{counted(len(found), 'activation')} with less than {POOR_SQNR:.0f} dB, without any outlier",
            worst_first(found),
            "their range or type is at fault: a shared range, a power-of-two scale that just misses, or too few bits",
        )


def _poor(evidence: Evidence) -> list[TensorHealth]:
    return [tensor for tensor in evidence.activations if tensor.sqnr < POOR_SQNR]
