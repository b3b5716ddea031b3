"""Cause: operators replaced for the target, which changes the float model before anything is rounded."""

from collections.abc import Iterator

from quantry.diagnosis.evidence import Evidence, Finding
from quantry.diagnosis.fix import Fix

CONVERSION_SQNR = 35.0
"""dB of the outputs below which conversions for the target alone reduce accuracy."""


def conversions(evidence: Evidence) -> Iterator[Finding]:
    """Find outputs that differ between the float model as given and as quantized."""
    poor = {name: value for name, value in evidence.converted.items() if value < CONVERSION_SQNR}
    if not poor:
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
