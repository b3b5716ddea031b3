"""The arithmetic of SmoothQuant: which factors leave the least error after the layers that read a tensor.

Channel c of a tensor, with range ``[low_c, high_c]``, is divided by ``s_c``, and the weights that read it are
multiplied by it. Rounding the tensor with a step ``d`` and the weights with steps ``e_o`` leaves after a layer an
error of

    d**2 / 12 * sum over c of s_c**2 |W_c|**2   +   sum over o, c of e_o**2 / 12 * taps * E[x_c**2] / s_c**2

where the widest divided channel determines ``d`` and the largest multiplied weight ``e_o``. The energy of a channel is
estimated as a share of the tensor's energy in proportion to its squared range.

SmoothQuant (Xiao et al. 2022, https://arxiv.org/abs/2211.10438) uses ``s = max|x|**a / max|w|**(1 - a)``. The factors
with the least estimated error among these and ``s = max|x|**a`` win. An asymmetric range may be longer on one side, so
ranges are also tried with the shorter side stretched by several amounts.

If weights have a single scale, the weights that compute the tensor lose precision too. The factors are then refined by
gradient descent. Dividing channel c by ``f_c`` changes the error in three places: in the weights and the bias that
compute the channel, in the tensor, and in the weights that read it. Each of the first two, with extents ``r_c`` and one
step for all channels, leaves after the reading layers

    noise * max over c of (r_c / f_c)**2 * sum over c of f_c**2 |W_c|**2

and each reading weight, with peaks ``p_c``,

    noise * max over c of (p_c f_c)**2 * sum over c of E[x_c**2] / f_c**2

Sums of such products are convex in ``log f``, so descent finds the minimum. Maxima are replaced by norms of a high
order, which have a derivative everywhere.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from quantry.numerics.power_of_two import nearest_exponent

_ORDER = 12  # of the norm that replaces a maximum: high enough that the largest channels dominate, and still smooth
_STEPS = 150
_RATE = 0.15  # of the logarithm of a factor, falling linearly to 0
_MEMORY = (0.8, 0.95)  # decay of mean and square in Adam; shorter than usual, because there are few steps


@dataclass(frozen=True, eq=False)
class SharedStep:
    """A tensor, weight or bias whose channels are rounded with one step.

    Attributes:
        extent: (C,) largest magnitude of each channel; 0 for a channel that is not part of it.
        noise: Mean squared error in a channel if the largest extent is 1.
    """

    extent: np.ndarray
    noise: float

    def error(self, factors: np.ndarray, importance: np.ndarray) -> float:
        """Return the error after the reading layers.

        Args:
            factors: (C,) divisors of the channels.
            importance: (C,) which part of a channel's mean square reaches the outputs.
        """
        member = self.extent > 0
        step = float((self.extent / factors).max(initial=0.0))
        return self.noise * step**2 * float((factors**2 * importance)[member].sum())


@dataclass(frozen=True, eq=False)
class ReadingWeight:
    """A weight with a single scale that reads the tensor.

    Attributes:
        peak: (C,) largest magnitude among the weights that read a channel.
        noise: (C,) error after the layer due to each channel if the largest peak is 1.
    """

    peak: np.ndarray
    noise: np.ndarray


def gradient_descent(
    start: np.ndarray, makers: Sequence[SharedStep], readers: Sequence[ReadingWeight], importance: np.ndarray
) -> np.ndarray:
    """Return the factors that gradient descent finds.

    Args:
        start: (C,) factors to start with.
        makers: Weights and biases that compute the channels, and the tensor itself.
        readers: Weights that read them.
        importance: (C,) which part of a channel's mean square reaches the outputs.
    """
    terms = _Terms.of(makers, readers, importance)
    position = np.log(start)
    mean, square = np.zeros_like(position), np.zeros_like(position)
    for step in range(1, _STEPS + 1):
        slope = terms.slope(position)
        mean = _MEMORY[0] * mean + (1 - _MEMORY[0]) * slope
        square = _MEMORY[1] * square + (1 - _MEMORY[1]) * slope**2
        unbiased = mean / (1 - _MEMORY[0] ** step), square / (1 - _MEMORY[1] ** step)
        rate = _RATE * (1 - step / (_STEPS + 1))
        # One step of Adam (Kingma and Ba 2014).
        position = position - rate * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-12)
    # A common factor of all channels changes nothing, so keep the factors around 1.
    result: np.ndarray = np.exp(position - np.median(position))
    return result


@dataclass(frozen=True, eq=False)
class _Terms:
    """The products whose sum is the error, one in each row, so that a step takes a few operations for all of them.

    A product is ``noise * max(extent / f**sign)**2 * sum(spread * f**(2 * sign))``.
    """

    extent: np.ndarray  # (T, C)
    spread: np.ndarray  # (T, C)
    noise: np.ndarray  # (T, 1)
    sign: np.ndarray  # (T, 1): 1 for a tensor or weight that is divided by the factors, -1 for one that is multiplied

    @classmethod
    def of(cls, makers: Sequence[SharedStep], readers: Sequence[ReadingWeight], importance: np.ndarray) -> "_Terms":
        extent = [*(maker.extent for maker in makers), *(reader.peak for reader in readers)]
        spread = [*(importance * (maker.extent > 0) for maker in makers), *(reader.noise for reader in readers)]
        noise = [*(maker.noise for maker in makers), *(1.0 for _ in readers)]
        sign = [*(1.0 for _ in makers), *(-1.0 for _ in readers)]
        columns = (np.array(column, np.float64)[:, None] for column in (noise, sign))
        return cls(np.array(extent, np.float64), np.array(spread, np.float64), *columns)

    def slope(self, position: np.ndarray) -> np.ndarray:
        """Return the gradient of the logarithm of the error at the logarithms of the factors, (C,)."""
        factors = np.exp(self.sign * position)
        scaled, spread = self.extent / factors, self.spread * factors * factors
        largest = scaled.max(axis=1, initial=0.0, keepdims=True)
        # Relative to the largest value, so that high powers do not overflow.
        squares = np.square(scaled / np.where(largest > 0, largest, 1.0))
        fourth = squares * squares
        powers = fourth * fourth * fourth
        norm = powers.sum(axis=1, keepdims=True)
        sums = spread.sum(axis=1, keepdims=True)
        squared = self.noise * np.square(largest * norm ** (1 / _ORDER))
        slopes = 2 * self.sign * squared * (spread - sums * powers / np.where(norm > 0, norm, 1.0))
        total = float((squared * sums).sum())
        slope: np.ndarray = slopes.sum(axis=0) / max(total, np.finfo(np.float64).tiny)
        return slope


# Candidates: the exponents that the SmoothQuant paper compares, and how much farther one side of a range may reach.
ALPHAS = tuple(step / 10 for step in range(1, 11))
_STRETCHES = (1.0, 2.0, 4.0, 8.0)
_FARTHEST = 1e4  # factors farther apart than this belong to unused channels


@dataclass(frozen=True)
class Rounding:
    """How a tensor or a weight is rounded.

    Attributes:
        bits: Bits of its type.
        symmetric: Whether its range is symmetric around zero.
        per_channel: Whether each output channel of a weight has a scale of its own.
        group: Number of inputs of an output channel that share a scale; None for all of them.
    """

    bits: int
    symmetric: bool
    per_channel: bool = False
    group: int | None = None

    @property
    def steps(self) -> float:
        """Number of steps in the range."""
        return float(2**self.bits - (2 if self.symmetric else 1))


@dataclass(frozen=True, eq=False)
class ChannelRanges:
    """Ranges and energies of a tensor's channels, float64 [C] each.

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
        """Distribute the energy of the whole tensor over its channels.

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
    """The weight of a layer that reads the tensor.

    Attributes:
        peak: (groups, outputs/groups, inputs/groups) largest ``|w|`` over the kernel.
        squares: Same shape; the sum of ``w**2`` over the kernel.
        taps: Number of weights in a kernel.
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
    """Return SmoothQuant's factors for a fixed alpha, [C]; unused channels keep 1.

    Args:
        ranges: Ranges of the tensor.
        layers: All layers that read it.
        alpha: How much of the range moves into the weights, 0 to 1.
    """
    return _factors(np.maximum(np.abs(ranges.low), np.abs(ranges.high)), _input_peak(layers), alpha, 1.0 - alpha)


def best_factors(
    ranges: ChannelRanges,
    layers: Sequence[ReadingLayer],
    activation: Rounding | None,
    weight: Rounding,
    makers: Sequence[SharedStep] = (),
    limited: Callable[[np.ndarray], np.ndarray] = lambda factors: factors,
) -> tuple[np.ndarray, float, float]:
    """Return the factors with the least estimated error, [C], and the errors without and with them.

    Args:
        ranges: Ranges of the tensor.
        layers: All layers that read it.
        activation: How the tensor is rounded; None if it stays float.
        weight: How the weights are rounded.
        makers: Weights and biases that compute the tensor, rounded with one step for all channels.
        limited: Returns the nearest allowed factors.
    """
    error_without = estimated_error(ranges, layers, np.ones(len(ranges.low)), activation, weight, makers)
    best, least = np.ones(len(ranges.low)), error_without
    for factors in map(limited, _candidates(ranges, layers, activation)):
        error = estimated_error(ranges, layers, factors, activation, weight, makers)
        if error < least:
            best, least = factors, error
    if not weight.per_channel and activation is not None:
        refined = limited(_refined(ranges, layers, best, activation, weight, makers))
        error = estimated_error(ranges, layers, refined, activation, weight, makers)
        if error < least:
            best, least = refined, error
    return best, error_without, least


def estimated_error(
    ranges: ChannelRanges,
    layers: Sequence[ReadingLayer],
    factors: np.ndarray,
    activation: Rounding | None,
    weight: Rounding,
    makers: Sequence[SharedStep] = (),
) -> float:
    """Return the estimated error after all layers, each relative to the energy of its output.

    Args:
        ranges: Ranges of the tensor.
        layers: All layers that read it.
        factors: Divisors of the channels, [C].
        activation: How the tensor is rounded; None if it stays float.
        weight: How the weights are rounded.
        makers: Weights and biases that compute the tensor, rounded with one step for all channels.
    """
    step = 0.0 if activation is None else _step_of_tensor(ranges, factors, activation)
    total = 0.0
    for layer in layers:
        groups, _, inputs = layer.peak.shape
        scale = factors.reshape(groups, 1, inputs)
        energy = ranges.energy.reshape(groups, 1, inputs)
        peak = _shared_peaks(layer.peak * scale, weight)
        steps = (peak if weight.per_channel else np.full_like(peak, peak.max())) * (2 / weight.steps)
        # Rounding with a step d adds uniform noise of variance d**2 / 12.
        of_tensor = step**2 / 12 * float((layer.squares * scale**2).sum())
        of_weight = float((steps**2 / 12 * layer.taps * energy / scale**2).sum())
        total += (of_tensor + of_weight) / layer.signal(ranges.energy)
    importance = _importance(ranges, layers)
    return total + sum(maker.error(factors, importance) for maker in makers)


def _step_of_tensor(ranges: ChannelRanges, factors: np.ndarray, activation: Rounding) -> float:
    low, high = float((ranges.low / factors).min()), float((ranges.high / factors).max())
    # An asymmetric range must contain zero.
    span = 2 * max(-low, high) if activation.symmetric else max(high, 0.0) - min(low, 0.0)
    return span / activation.steps


def _shared_peaks(peak: np.ndarray, weight: Rounding) -> np.ndarray:
    """Return for each weight the largest one that shares its scale within an output channel."""
    if weight.group is None:
        return np.asarray(peak.max(axis=2, keepdims=True))
    inputs = peak.shape[2]
    starts = np.arange(0, inputs, weight.group)
    return np.repeat(np.maximum.reduceat(peak, starts, axis=2), weight.group, axis=2)[:, :, :inputs]


_ROOM = 2.0
"""How far a channel may exceed its largest observed value before a Clip cuts it off."""


def within_bound(factors: np.ndarray, high: np.ndarray, bound: float) -> np.ndarray:
    """Return factors with which a Clip from 0 to a bound cuts off what it did before.

    Channels that reach the bound, or would with twice their largest value, keep their values. The others may grow until
    twice their largest value reaches the bound.

    Args:
        factors: The divisors of some channels.
        high: Their largest values after the Clip.
        bound: The upper bound.
    """
    lowest = _ROOM * high / bound
    is_unchanged = lowest >= 1
    # Only ratios matter, so start with the common factor that changes as little as possible.
    common = (
        np.median(factors[is_unchanged])
        if is_unchanged.any()
        else np.min(factors / np.maximum(lowest, np.finfo(np.float32).tiny))
    )
    result: np.ndarray = np.where(is_unchanged, 1.0, np.maximum(factors / common, lowest))
    return result


def powers_of_two(factors: np.ndarray, span: int) -> np.ndarray:
    """Return the nearest powers of two, the largest at most ``2**span`` times the smallest.

    8 bits represent such factors exactly. Factors below that range are raised.

    Args:
        factors: The factors, [C].
        span: Largest ratio, as an exponent.
    """
    exponents = nearest_exponent(factors)
    result: np.ndarray = np.exp2(np.maximum(exponents, exponents.max() - span))
    return result


def _candidates(
    ranges: ChannelRanges, layers: Sequence[ReadingLayer], activation: Rounding | None
) -> Iterator[np.ndarray]:
    peak = _input_peak(layers)
    stretches = (1.0,) if activation is None or activation.symmetric else _STRETCHES
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
    """Return locally optimal factors, by an estimate with one step per weight."""
    extent = np.maximum(np.abs(ranges.low), np.abs(ranges.high))
    tensor = SharedStep(extent, (2 if activation.symmetric else 1) ** 2 / activation.steps**2 / 12)
    weights = []
    for layer in layers:
        outputs = layer.peak.shape[1]
        noise = (2 / weight.steps) ** 2 / 12 * layer.taps * outputs * ranges.energy / layer.signal(ranges.energy)
        weights.append(ReadingWeight(layer.input_peak, noise))
    return gradient_descent(start, [tensor, *makers], weights, _importance(ranges, layers))


def _importance(ranges: ChannelRanges, layers: Sequence[ReadingLayer]) -> np.ndarray:
    """Return which part of each channel's mean square reaches the outputs, relative to their energy."""
    shares = [layer.squares.sum(axis=1).reshape(-1) / layer.signal(ranges.energy) for layer in layers]
    total: np.ndarray = np.sum(shares, axis=0)
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
    # Only ratios of factors matter, so keep them around 1.
    middle = float(np.median(logarithm[active]))
    reach = np.log(_FARTHEST) / 2
    result: np.ndarray = np.exp(np.where(active, np.clip(logarithm - middle, -reach, reach), 0.0))
    return result
