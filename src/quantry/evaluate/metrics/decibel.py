"""Ratios on a logarithmic scale, with ends."""

import math

LIMIT_DB = 150.0
"""Decibels end here, on both sides.

Rounding to float32 alone leaves an output at about this ratio, so no quantized model is better, and a score of equal
outputs stays finite: one equal sample would otherwise make every mean infinite.
"""


def decibels(signal: float, noise: float) -> float:
    """Return ``10 log10(signal / noise)`` within the limits.

    Args:
        signal: Power of the signal, 0 or more.
        noise: Power of the error, 0 or more; 0 gives the upper limit whatever the signal.
    """
    if noise == 0:
        return LIMIT_DB
    if signal == 0:
        return -LIMIT_DB
    # A difference of logarithms, because the ratio itself may leave float64's range.
    return min(max(10 * (math.log10(signal) - math.log10(noise)), -LIMIT_DB), LIMIT_DB)


def unlimited_decibels(signal: float, noise: float) -> float:
    """Return ``10 log10(signal / noise)`` of one tensor: infinite where nothing is lost, which no mean has to survive.

    Args:
        signal: Power of the signal, 0 or more.
        noise: Power of the error, 0 or more.
    """
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf
