"""Cause: layers whose results are shifted as a whole by rounded weights and biases, which a bias can correct."""

from collections.abc import Iterator

import onnx_ir as ir

from quantry.diagnosis.evidence import Evidence, Finding
from quantry.diagnosis.fix import Fix
from quantry.equalize.linear_layer import LinearLayer, linear_layer
from quantry.recipe import BiasCorrection

SHIFTED_SHARE = 0.3
"""Fraction of a layer's noise that must be a shift of means; removing it gains 1.5 dB."""


_LAYERS_SHARE = 0.1


def shifted_means(evidence: Evidence) -> Iterator[Finding]:
    """Find layers in which a large part of the error is the same in every sample."""
    layers = [node.outputs[0].name or "" for node in evidence.layers() if _has_bias(node)]
    shares = {
        name: evidence.errors[name].shifted
        for name in layers
        if evidence.is_harmed(name) and evidence.errors[name].shifted > SHIFTED_SHARE
    }
    if not shares or len(shares) < _LAYERS_SHARE * len(layers):
        return
    worst = max(shares, key=shares.__getitem__)
    fix = (
        "the recipe already corrects biases: calibrate on more samples that resemble the real inputs"
        if evidence.has_step(BiasCorrection)
        else "bias correction (tune.steps: [BiasCorrection], after any other step): cheap, and often the largest gain"
    )
    yield Finding(
        f"rounding shifts the mean of the results of {len(shares)} of {len(layers)} layers: "
        f"{100 * shares[worst]:.0f} % of the error of {worst} is the same in every sample",
        tuple(sorted(shares, key=shares.__getitem__, reverse=True)),
        fix,
        () if evidence.has_step(BiasCorrection) else (Fix("bias correction", steps=(BiasCorrection(),)),),
    )


def _has_bias(node: ir.Node) -> bool:
    """Whether a layer has a bias that can correct a shift."""
    layer = linear_layer(node)
    return isinstance(layer, LinearLayer) and layer.bias is not None
