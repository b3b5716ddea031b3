"""Cause: outputs with so few levels that several classes share the highest score."""

from collections.abc import Iterator

from quantry.diagnosis.evidence import Evidence, Finding

NOTABLE_TIES = 0.01
"""Share of samples with equal highest scores, where the float model has one, above which outputs are too coarse."""


def coarse_outputs(evidence: Evidence) -> Iterator[Finding]:
    """Find class scores that are equal after rounding, so that the first class wins whatever the model computed."""
    if evidence.ties < NOTABLE_TIES:
        return
    outputs = tuple(value.name for value in evidence.model.graph.outputs if value.name)
    yield Finding(
        f"coarse outputs: several classes share the highest score in {evidence.ties:.0%} of the samples, where the "
        "float model has one winner",
        outputs,
        "keep the last nodes in float (plan.selection.exclude), or use more bits for these tensors (plan.tensors)",
    )
