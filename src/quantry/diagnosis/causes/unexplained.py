"""Fallback: the nodes that lose most, if no rule knows the cause."""

import math
from collections.abc import Iterator

from quantry.diagnosis.evidence import Evidence, Fall, Finding
from quantry.diagnosis.fix import Fix, float_fix, wide_fix
from quantry.evaluate.levels import AS_GOOD, VERY_CLOSE
from quantry.recipe import AdaQuant, AdaRound, Brecq, Distill, Gptq, Tqt

NOTABLE_FALL = 6.0
"""dB lost in one node that are reported if nothing else explains the loss: half of the signal's resolution."""

_MORE_BITS = "more bits for these layers (plan.layers, mixed precision)"
_BETTER_ROUNDING = "better rounding of their weights (Gptq in tune.steps)"


def unexplained(evidence: Evidence) -> Iterator[Finding]:
    """Return the nodes that lose most: layers with weights themselves, others by their inputs."""
    outputs = [value.name or "" for value in evidence.model.graph.outputs]
    sqnr = min((evidence.errors[name].sqnr for name in outputs if name in evidence.errors), default=math.inf)
    if sqnr >= AS_GOOD.decibels:
        return
    worst = [fall for fall in evidence.falls if fall.lost > NOTABLE_FALL]
    if worst:
        yield _largest_fall(evidence, worst)
    elif sqnr < VERY_CLOSE.decibels:
        yield Finding(
            f"no single cause: the outputs keep {sqnr:.0f} dB, and no node loses more than {NOTABLE_FALL:.0f}",
            tuple(fall.tensor for fall in evidence.falls),
            _MORE_BITS if _is_tuned(evidence) else f"{_BETTER_ROUNDING}, or {_MORE_BITS}",
            fall_fixes(evidence),
        )


def _largest_fall(evidence: Evidence, worst: list[Fall]) -> Finding:
    layers = {node.name for node in evidence.layers()}
    first = worst[0]
    alike = [fall for fall in worst if (fall.node in layers) == (first.node in layers)]
    lost = f"leaves {first.after:.0f} dB of {min(first.before, AS_GOOD.decibels):.0f}"
    if first.node in layers:
        fix = _MORE_BITS if _is_tuned(evidence) else f"{_MORE_BITS}, or {_BETTER_ROUNDING}"
        return Finding(
            f"no known cause, but {first.operator} {first.node} {lost}",
            _outputs(alike),
            fix,
            fall_fixes(evidence),
            rounded=tuple(dict.fromkeys(name for fall in alike for name in (*_touched(evidence, fall), fall.tensor))),
        )
    return Finding(
        f"no known cause, but rounding the inputs of {first.operator} {first.node} {lost}",
        tuple(dict.fromkeys(name for fall in alike for name in _read(evidence, fall))) or _outputs(alike),
        "more bits for these tensors (plan.tensors, mixed precision)",
        fall_fixes(evidence),
    )


def fall_fixes(evidence: Evidence) -> tuple[Fix, ...]:
    """Return what helps the nodes that lose most: better rounding, 16 bits, float.

    Args:
        evidence: The evidence.
    """
    tensors = [fall.tensor for fall in evidence.falls]
    rounding = () if _is_tuned(evidence) else (Fix("GPTQ", steps=(Gptq(),)),)
    wide = tuple(name for name in tensors if name in evidence.plan.activations)[:3]
    nodes = evidence.producers(tensors)
    return (*rounding, *((wide_fix(wide),) if wide else ()), *((float_fix(nodes),) if nodes else ()))


def _is_tuned(evidence: Evidence) -> bool:
    return evidence.has_step(Gptq, AdaRound, AdaQuant, Brecq, Tqt, Distill)


def _outputs(falls: list[Fall]) -> tuple[str, ...]:
    return tuple(fall.tensor for fall in falls)


def _read(evidence: Evidence, fall: Fall) -> list[str]:
    return [name for name in _touched(evidence, fall) if name in evidence.plan.activations]


def _touched(evidence: Evidence, fall: Fall) -> list[str]:
    """Return what the node of a fall reads: activations, weights and biases."""
    node = next((node for node in evidence.model.graph if node.name == fall.node), None)
    inputs = () if node is None else node.inputs
    return [value.name for value in inputs if value is not None and value.name]
