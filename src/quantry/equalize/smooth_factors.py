"""The arithmetic of smoothing: which factors leave the least error behind the layers that read a tensor.

Channel c of a tensor, of range ``[low_c, high_c]``, is divided by ``s_c`` and the weights that read it are multiplied
by it. Rounding the tensor with a step ``d`` and the weights with steps ``e_o`` leaves behind a layer

    d**2 / 12 * sum over c of s_c**2 |W_c|**2   +   sum over o, c of e_o**2 / 12 * taps * E[x_c**2] / s_c**2

where ``d`` follows from the widest divided channel and ``e_o`` from the largest multiplied weight. The energy of a
channel is taken as its share of the whole tensor's in proportion to the square of its range.

SmoothQuant (Xiao et al. 2022, https://arxiv.org/abs/2211.10438) takes ``s = max|x|**a / max|w|**(1 - a)``; among these
and ``s = max|x|**a`` the least estimate wins. An asymmetric grid reaches further to one side, so ranges are measured
with the shorter side stretched by several amounts. Where weights have one scale for all channels, what makes the tensor
loses too, and factors are refined by descent, see `quantry.equalize.shared_step`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from quantry.equalize.shared_step import ReadingWeight, SharedStep, descended
from quantry.numerics.power_of_two import nearest_exponent

ALPHAS = tuple(step / 10 for step in range(1, 11))
_STRETCHES = (1.0, 2.0, 4.0, 8.0)
_FARTHEST = 1e4  # factors farther apart than this belong to channels that do nothing


@dataclass(frozen=True)
class Rounding:
    """How finely a tensor or a weight is rounded.

    Attributes:
        bits: Of its type.
        symmetric: Whether its grid is centred at zero.
        per_channel: Whether each output channel of a weight has a scale of its own.
    """

    bits: int
    symmetric: bool
    per_channel: bool = False

    @property
    def steps(self) -> float:
        """Steps between the ends of the grid."""
        return float(2**self.bits - (2 if self.symmetric else 1))


@dataclass(frozen=True, eq=False)
class ChannelRanges:
    """What is known of a tensor's channels, float64 [C] each.

    Attributes:
        low: Smallest values.
        high: Largest values.
        energy: Mean squares.
    """

    low: np.ndarray
    high: np.ndarray
    energy: np.ndarray

    @classmethod
    def of(cls, low: np.ndarray, high: np.ndarray, mean_square: float) -> "ChannelRanges":
        """Share the energy of the whole tensor among its channels.

        Args:
            low: Smallest value of each channel.
            high: Largest value of each channel.
            mean_square: Mean square of the whole tensor.
        """
        magnitude = np.maximum(np.abs(low), np.abs(high)).astype(np.float64)
        squares = magnitude**2
        share = squares / max(float(squares.mean()), np.finfo(np.float64).tiny)
        return cls(low.astype(np.float64), high.astype(np.float64), share * mean_square)


@dataclass(frozen=True, eq=False)
class ReadingLayer:
    """What the estimate needs of a layer that reads the tensor: its weight, grouped as the layer groups channels.

    Attributes:
        peak: (groups, outputs/groups, inputs/groups) largest ``|w|`` over the kernel.
        squares: Same shape; the sum of ``w**2`` over the kernel.
        taps: Weights of a kernel.
    """

    peak: np.ndarray
    squares: np.ndarray
    taps: int

    @classmethod
    def of(cls, channels: np.ndarray) -> "ReadingLayer":
        """Read a weight in the shape (groups, outputs/groups, inputs/groups, kernel)."""
        wide = channels.astype(np.float64)
        return cls(np.abs(wide).max(axis=-1), (wide * wide).sum(axis=-1), channels.shape[-1])

    @property
    def input_peak(self) -> np.ndarray:
        """Largest ``|w|`` that reads each input channel, [C]."""
        largest: np.ndarray = self.peak.max(axis=1).reshape(-1)
        return largest

    def signal(self, energy: np.ndarray) -> float:
        """Return the energy of the layer's output for the energy of its input channels, [C]."""
        groups, _, inputs = self.peak.shape
        return max(float((self.squares * energy.reshape(groups, 1, inputs)).sum()), np.finfo(np.float64).tiny)


def smooth_factors(ranges: ChannelRanges, layers: Sequence[ReadingLayer], alpha: float) -> np.ndarray:
    """Return SmoothQuant's factors for a fixed alpha, [C]; channels that do nothing keep 1.

    Args:
        ranges: Of the tensor.
        layers: All that read it.
        alpha: How much of the range moves into the weights.
    """
    return _factors(np.maximum(np.abs(ranges.low), np.abs(ranges.high)), _input_peak(layers), alpha, 1.0 - alpha)


def best_factors(
    ranges: ChannelRanges,
    layers: Sequence[ReadingLayer],
    activation: Rounding,
    weight: Rounding,
    makers: Sequence[SharedStep] = (),
) -> tuple[np.ndarray, float, float]:
    """Return the factors with the least estimated error, [C], and that error before and with them.

    Args:
        ranges: Of the tensor.
        layers: All that read it.
        activation: How the tensor is rounded.
        weight: How the weights are.
        makers: What makes the tensor and is rounded with one step for all channels.
    """
    before = estimated_error(ranges, layers, np.ones(len(ranges.low)), activation, weight, makers)
    best, least = np.ones(len(ranges.low)), before
    for factors in _candidates(ranges, layers, activation):
        error = estimated_error(ranges, layers, factors, activation, weight, makers)
        if error < least:
            best, least = factors, error
    if not weight.per_channel:
        refined = _refined(ranges, layers, best, activation, weight, makers)
        error = estimated_error(ranges, layers, refined, activation, weight, makers)
        if error < least:
            best, least = refined, error
    return best, before, least


def estimated_error(
    ranges: ChannelRanges,
    layers: Sequence[ReadingLayer],
    factors: np.ndarray,
    activation: Rounding,
    weight: Rounding,
    makers: Sequence[SharedStep] = (),
) -> float:
    """Return the estimate behind all layers, each in proportion to the energy of its output.

    Args:
        ranges: Of the tensor.
        layers: All that read it.
        factors: [C].
        activation: How the tensor is rounded.
        weight: How the weights are.
        makers: What makes the tensor and is rounded with one step for all channels.
    """
    low, high = float((ranges.low / factors).min()), float((ranges.high / factors).max())
    span = 2 * max(-low, high) if activation.symmetric else max(high, 0.0) - min(low, 0.0)
    step = span / activation.steps
    total = 0.0
    for layer in layers:
        groups, _, inputs = layer.peak.shape
        scale = factors.reshape(groups, 1, inputs)
        energy = ranges.energy.reshape(groups, 1, inputs)
        peak = (layer.peak * scale).max(axis=2)
        steps = (peak if weight.per_channel else np.full_like(peak, peak.max())) * (2 / weight.steps)
        of_tensor = step**2 / 12 * float((layer.squares * scale**2).sum())
        of_weight = float((steps[:, :, None] ** 2 / 12 * layer.taps * energy / scale**2).sum())
        total += (of_tensor + of_weight) / layer.signal(ranges.energy)
    importance = _importance(ranges, layers)
    return total + sum(maker.error(factors, importance) for maker in makers)


def powers_of_two(factors: np.ndarray, span: int) -> np.ndarray:
    """Return the nearest powers of two, the largest at most ``2**span`` times the smallest.

    As an operand of 8 bits such factors are exact; the smallest ones give way.

    Args:
        factors: [C].
        span: Largest ratio, as an exponent.
    """
    exponents = nearest_exponent(factors)
    result: np.ndarray = np.exp2(np.maximum(exponents, exponents.max() - span))
    return result


def _candidates(ranges: ChannelRanges, layers: Sequence[ReadingLayer], activation: Rounding) -> Iterator[np.ndarray]:
    peak = _input_peak(layers)
    stretches = (1.0,) if activation.symmetric else _STRETCHES
    for stretch in stretches:
        sides = [(stretch, 1.0)] if stretch == 1.0 else [(stretch, 1.0), (1.0, stretch)]
        for below, above in sides:
            extent = np.maximum(-ranges.low * below, ranges.high * above)
            for alpha in ALPHAS:
                yield _factors(extent, peak, alpha, 1.0 - alpha)
                yield _factors(extent, peak, alpha, 0.0)


def _refined(
    ranges: ChannelRanges,
    layers: Sequence[ReadingLayer],
    start: np.ndarray,
    activation: Rounding,
    weight: Rounding,
    makers: Sequence[SharedStep],
) -> np.ndarray:
    """Return factors near which no others are better, by an estimate with one step for each weight."""
    extent = np.maximum(np.abs(ranges.low), np.abs(ranges.high))
    tensor = SharedStep(extent, (2 if activation.symmetric else 1) ** 2 / activation.steps**2 / 12)
    weights = []
    for layer in layers:
        outputs = layer.peak.shape[1]
        noise = (2 / weight.steps) ** 2 / 12 * layer.taps * outputs * ranges.energy / layer.signal(ranges.energy)
        weights.append(ReadingWeight(layer.input_peak, noise))
    return descended(start, [tensor, *makers], weights, _importance(ranges, layers))


def _importance(ranges: ChannelRanges, layers: Sequence[ReadingLayer]) -> np.ndarray:
    """Return how much of each channel's mean square reaches the outputs, in proportion to their energy."""
    parts = [layer.squares.sum(axis=1).reshape(-1) / layer.signal(ranges.energy) for layer in layers]
    total: np.ndarray = np.sum(parts, axis=0)
    return total


def _input_peak(layers: Sequence[ReadingLayer]) -> np.ndarray:
    peak: np.ndarray = np.max([layer.input_peak for layer in layers], axis=0)
    return peak


def _factors(extent: np.ndarray, peak: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    active = (extent > 0) & (peak > 0)
    if not active.any():
        return np.ones(len(extent))
    raw = np.where(active, extent, 1.0) ** alpha / np.where(active, peak, 1.0) ** beta
    logarithm = np.log(raw)
    middle = float(np.median(logarithm[active]))
    reach = np.log(_FARTHEST) / 2
    result: np.ndarray = np.exp(np.where(active, np.clip(logarithm - middle, -reach, reach), 0.0))
    return result
