"""Causes that change the model before its main graph is rounded: operators replaced for the target, and bodies."""

from collections.abc import Iterator

from quantry.diagnosis.evidence import Evidence, Finding
from quantry.diagnosis.fix import Fix
from quantry.evaluate.levels import AS_GOOD, VERY_CLOSE


def conversions(evidence: Evidence) -> Iterator[Finding]:
    """Find outputs that differ between the float model as given and as quantized."""
    inside = bool(evidence.plan.inside)
    limit = VERY_CLOSE.decibels if inside else AS_GOOD.decibels
    poor = {name: value for name, value in evidence.converted.items() if value < limit}
    if not poor:
        return
    if inside:
        yield Finding(
            f"rounding inside the bodies of control flow leaves the outputs {min(poor.values()):.0f} dB",
            tuple(sorted(poor, key=poor.__getitem__)),
            "plan.body_activations: false keeps activations there in float, and --exclude names single nodes",
            (Fix("activations inside bodies in float", {"plan.body_activations": False}, is_costly=True),),
        )
        return
    npu = evidence.recipe.prepare.npu
    advice = (
        "conversions of prepare.npu cause this loss, usually Sigmoid to HardSigmoid: set "
        "prepare.npu.sigmoid_to_hard_sigmoid: false to keep Sigmoid if the target supports it"
        if npu is not None and npu.sigmoid_to_hard_sigmoid
        else "conversions of prepare.npu cause this loss; the notes count them, and each can be switched off if the "
        "target does not need it"
    )
    yield Finding(
        f"the float model already changes before quantization: its outputs keep {min(poor.values()):.0f} dB",
        tuple(sorted(poor, key=poor.__getitem__)),
        advice,
        (Fix("Sigmoid is kept", {"prepare.npu.sigmoid_to_hard_sigmoid": False}),)
        if npu is not None and npu.sigmoid_to_hard_sigmoid
        else (),
    )
