"""Factors for channels that are rounded with one step together, found by descent.

Where a weight has one scale, dividing channel c of a tensor by ``f_c`` changes what is lost in three places: in the
weights and the bias that make the channel, in the tensor, and in the weights that read it. Each of the first two, with
extents ``r_c`` and one step for all channels, leaves behind the reading layers

    noise * max over c of (r_c / f_c)**2 * sum over c of f_c**2 |W_c|**2

and each reading weight, with peaks ``p_c``,

    noise * max over c of (p_c f_c)**2 * sum over c of E[x_c**2] / f_c**2

Sums of such products are convex in ``log f``, so that going downhill finds the least one. Largest values are taken as
norms of a high order, which have a derivative everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_ORDER = 12.0
_STEPS = 150
_RATE = 0.15
_MEMORY = (0.8, 0.95)


@dataclass(frozen=True, eq=False)
class SharedStep:
    """Something whose channels are rounded with one step.

    Attributes:
        extent: (C,) largest magnitude of each channel; 0 where a channel is not part of it.
        noise: Mean square of the error in a channel for a largest extent of 1.
    """

    extent: np.ndarray
    noise: float

    def error(self, factors: np.ndarray, importance: np.ndarray) -> float:
        """Return what is left behind the reading layers.

        Args:
            factors: (C,) what the channels are divided by.
            importance: (C,) how much of a channel's mean square reaches the outputs.
        """
        member = self.extent > 0
        step = float((self.extent / factors).max(initial=0.0))
        return self.noise * step**2 * float((factors**2 * importance)[member].sum())


@dataclass(frozen=True, eq=False)
class ReadingWeight:
    """A weight with one scale that reads the tensor.

    Attributes:
        peak: (C,) largest magnitude among the weights that read a channel.
        noise: (C,) what a largest peak of 1 leaves behind the layer on account of each channel.
    """

    peak: np.ndarray
    noise: np.ndarray


def descended(
    start: np.ndarray, makers: Sequence[SharedStep], readers: Sequence[ReadingWeight], importance: np.ndarray
) -> np.ndarray:
    """Return the factors at the end of a walk downhill.

    Args:
        start: (C,) factors to begin with.
        makers: What makes the channels, and the tensor itself.
        readers: What reads them.
        importance: (C,) how much of a channel's mean square reaches the outputs.
    """
    position = np.log(start)
    mean, square = np.zeros_like(position), np.zeros_like(position)
    for step in range(1, _STEPS + 1):
        slope = _slope(position, makers, readers, importance)
        mean = _MEMORY[0] * mean + (1 - _MEMORY[0]) * slope
        square = _MEMORY[1] * square + (1 - _MEMORY[1]) * slope**2
        unbiased = mean / (1 - _MEMORY[0] ** step), square / (1 - _MEMORY[1] ** step)
        rate = _RATE * (1 - step / (_STEPS + 1))
        position = position - rate * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-12)
    result: np.ndarray = np.exp(position - np.median(position))
    return result


def _slope(
    position: np.ndarray, makers: Sequence[SharedStep], readers: Sequence[ReadingWeight], importance: np.ndarray
) -> np.ndarray:
    """Return the derivative of the logarithm of the error."""
    total, slope = 0.0, np.zeros_like(position)
    squares = np.exp(2 * position)
    for maker in makers:
        spread = squares * importance * (maker.extent > 0)
        parts = (maker.noise, maker.extent, -position, spread)
        value, derivative = _product(*parts, sign=1.0)
        total, slope = total + value, slope + derivative
    for reader in readers:
        value, derivative = _product(1.0, reader.peak, position, reader.noise / squares, sign=-1.0)
        total, slope = total + value, slope + derivative
    return slope / max(total, np.finfo(np.float64).tiny)


def _product(
    noise: float, extent: np.ndarray, exponent: np.ndarray, spread: np.ndarray, *, sign: float
) -> tuple[float, np.ndarray]:
    """Return ``noise * max(extent * exp(exponent))**2 * sum(spread)`` and its derivative by the position."""
    scaled = extent * np.exp(exponent)
    largest = float(scaled.max(initial=0.0))
    if largest == 0:
        return 0.0, np.zeros_like(exponent)
    powers = (scaled / largest) ** _ORDER
    norm = float(powers.sum())
    squared = (largest * norm ** (1 / _ORDER)) ** 2
    value = noise * squared * float(spread.sum())
    return value, 2 * sign * noise * squared * (spread - float(spread.sum()) * powers / norm)
