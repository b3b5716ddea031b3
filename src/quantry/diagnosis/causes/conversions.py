"""Operators replaced for the target, which changes the float model before anything is rounded."""

from collections.abc import Iterator

from quantry.diagnosis.evidence import Evidence, Finding

CONVERSION_SQNR = 35.0
"""dB of the outputs below which conversions for the target cost accuracy by themselves."""


def conversions(evidence: Evidence) -> Iterator[Finding]:
    """Find outputs that differ between the float model as it was given and as it is quantized."""
    poor = {name: value for name, value in evidence.converted.items() if value < CONVERSION_SQNR}
    if not poor:
        return
    npu = evidence.recipe.prepare.npu
    told = (
        "conversions of prepare.npu cost this much; Sigmoid to HardSigmoid is the usual one: "
        "prepare.npu.sigmoid_to_hard_sigmoid: false keeps it where the target can"
        if npu is not None and npu.sigmoid_to_hard_sigmoid
        else "conversions of prepare.npu cost this much; the notes count them, and each has a switch for targets that "
        "need it not"
    )
    yield Finding(
        f"the float model is already changed before quantization: outputs keep {min(poor.values()):.0f} dB",
        tuple(sorted(poor, key=poor.__getitem__)),
        told,
    )
