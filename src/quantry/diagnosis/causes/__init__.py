"""Known causes of accuracy loss, one file each; each returns what was found and what helps.

To add one: a new file with a function from `Evidence` to findings, and a line in `CAUSES`.
"""

from collections.abc import Callable, Iterator

from quantry.diagnosis.causes.coarse_outputs import coarse_outputs
from quantry.diagnosis.causes.conversions import conversions
from quantry.diagnosis.causes.joined_ranges import joined_ranges
from quantry.diagnosis.causes.poor_ranges import coarse_ranges, outliers
from quantry.diagnosis.causes.shifted_means import shifted_means
from quantry.diagnosis.causes.starved_activations import starved_activations
from quantry.diagnosis.causes.starved_weights import starved_weights
from quantry.diagnosis.causes.unexplained import unexplained
from quantry.diagnosis.evidence import Evidence, Finding

CAUSES: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    conversions,
    coarse_outputs,
    starved_activations,
    shifted_means,
    starved_weights,
    outliers,
    joined_ranges,
    coarse_ranges,
)
"""Every known cause, most severe first."""


def find_causes(evidence: Evidence) -> tuple[Finding, ...]:
    """Return what the rules find, in their order; if none finds anything, the nodes that lose most."""
    found = tuple(finding for rule in CAUSES for finding in rule(evidence))
    return found or tuple(unexplained(evidence))


__all__ = ["CAUSES", "find_causes"]
