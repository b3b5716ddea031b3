"""Cause: outputs with so few levels that several classes share the highest score."""

from collections.abc import Iterator
from dataclasses import replace

from quantry.diagnosis.causes.poor_ranges import stretched
from quantry.diagnosis.evidence import Evidence, Finding
from quantry.diagnosis.fix import Fix, float_fix, last_nodes, node_name

NOTABLE_TIES = 0.01
"""Share of samples with equal highest scores, where the float model has one, above which outputs are too coarse."""

# A detector has a few layers for each of its outputs; more than this is a large part of the model.
_MOST_LAYERS = 12


def coarse_outputs(evidence: Evidence) -> Iterator[Finding]:
    """Find class scores that are equal after rounding, so that the first class wins whatever the model computed."""
    if evidence.ties < NOTABLE_TIES:
        return
    outputs = tuple(value.name for value in evidence.model.graph.outputs if value.name)
    if any(tensor.name in outputs for tensor in stretched(evidence)):
        return  # The calibration data made them coarse, which is a finding of its own.
    yield Finding(
        f"coarse outputs: several classes share the highest score in {evidence.ties:.0%} of the samples, where the "
        "float model has one winner",
        outputs,
        "keep the last nodes in float (plan.selection.exclude), or use more bits for these tensors (plan.tensors)",
        last_node_fixes(evidence),
        rounded=_last_tensors(evidence),
    )


def _last_tensors(evidence: Evidence) -> tuple[str, ...]:
    """Return the outputs and what the last layers and the nodes after them compute and read as weights."""
    last, layers = last_nodes(evidence.model, evidence.plan)
    names = {value.name: None for value in evidence.model.graph.outputs if value.name}
    for node in evidence.model.graph:
        if node_name(node) in last or node_name(node) in layers:
            constants = [value for value in node.inputs if value is not None and value.const_value is not None]
            names |= {value.name: None for value in (*node.outputs, *constants) if value.name}
    return tuple(names)


def last_node_fixes(evidence: Evidence) -> tuple[Fix, ...]:
    """Return what gives outputs more levels: the nodes after the last layers in float, then these layers too.

    Args:
        evidence: The evidence.
    """
    last, layers = last_nodes(evidence.model, evidence.plan)
    fixes = [replace(float_fix(last, "the nodes after the last layers"), is_cheap=True)] if last else []
    if layers and len(layers) <= _MOST_LAYERS:
        fixes.append(float_fix((*last, *layers), "the last layers"))
    return tuple(fixes)
