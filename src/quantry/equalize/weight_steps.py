"""What is lost in a weight with one scale, and how few groups of channels lose least.

With peaks ``p_c`` of the channels, ``n`` weights in each, energies ``e_c`` of the channels and ``u_c`` the part of a
channel's mean square that reaches the layers behind, rounding with a step for each group ``g`` leaves, as a part of
what reaches them,

    sum over g of step(max over c in g of p_c)**2 / 12 * sum over c in g of n * u_c    /    sum over c of e_c * u_c

if inputs are white. Groups are runs of consecutive channels, so that the best ones are found by dynamic programming.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class WeightStep:
    """How a weight with one scale is rounded.

    Attributes:
        levels: Number of steps on each side of zero.
        power_of_two: Whether steps are powers of two.
    """

    levels: int
    power_of_two: bool

    def squared(self, peaks: np.ndarray) -> np.ndarray:
        """Return the mean squares of the error for largest magnitudes, same shape."""
        steps = np.asarray(peaks, dtype=np.float64) / self.levels
        if self.power_of_two:
            steps = np.where(steps > 0, 2.0 ** np.ceil(np.log2(np.where(steps > 0, steps, 1.0))), 0.0)
        result: np.ndarray = steps**2 / 12
        return result


@dataclass(frozen=True, eq=False)
class ChannelWeights:
    """What is known of the output channels of a layer.

    Attributes:
        peaks: (C,) largest magnitude of a weight.
        squares: (C,) sum of squares.
        count: Number of weights of a channel.
        reach: (C,) how much of a channel's mean square reaches the layers behind.
    """

    peaks: np.ndarray
    squares: np.ndarray
    count: int
    reach: np.ndarray

    def taken(self, order: np.ndarray) -> "ChannelWeights":
        """Return the same of the channels in another order."""
        return ChannelWeights(self.peaks[order], self.squares[order], self.count, self.reach[order])


def best_runs(weights: ChannelWeights, step: WeightStep, most: int) -> list[tuple[float, tuple[int, ...]]]:
    """Return, for 1 to ``most`` runs of consecutive channels, the least relative error and where the runs end.

    Args:
        weights: The channels, in the order in which they are to be cut.
        step: How they are rounded.
        most: The largest number of runs.
    """
    size = len(weights.peaks)
    energy = float(weights.squares @ weights.reach)
    if energy <= 0:
        return [(0.0, (size,))]
    costs = _run_costs(weights, step) / energy
    least, cuts = costs[0].copy(), np.zeros((most, size), dtype=np.int64)
    results: list[tuple[float, tuple[int, ...]]] = [(float(least[-1]), (size,))]
    for runs in range(1, min(most, size)):
        # Entry (i, j): the first i + 1 channels as before, the channels behind them up to j as one run.
        candidates = least[:-1, None] + costs[1:]
        cuts[runs] = candidates.argmin(axis=0) + 1
        least = candidates.min(axis=0)
        results.append((float(least[-1]), _ends(cuts, runs, size)))
    return results


def _run_costs(weights: ChannelWeights, step: WeightStep) -> np.ndarray:
    """Return the error of every run from channel i to channel j: (C, C), infinite where j < i."""
    size = len(weights.peaks)
    upper = np.triu(np.ones((size, size), dtype=bool))
    peaks = np.maximum.accumulate(np.where(upper, weights.peaks[None, :], 0.0), axis=1)
    reach = np.concatenate([[0.0], np.cumsum(weights.reach)]) * weights.count
    noise = reach[None, 1:] - reach[:-1, None]
    costs: np.ndarray = np.where(upper, step.squared(peaks) * noise, np.inf)
    return costs


def _ends(cuts: np.ndarray, runs: int, size: int) -> tuple[int, ...]:
    ends = [size]
    for number in range(runs, 0, -1):
        ends.append(int(cuts[number, ends[-1] - 1]))
    return tuple(reversed(ends))


def chosen_runs(weights: ChannelWeights, step: WeightStep, most: int, gain: float) -> tuple[float, tuple[int, ...]]:
    """Return by what factor the error falls and where the runs end; one run where it falls by less than ``gain``.

    The first number of runs that gains enough is taken, and one more as long as each gains as much again.
    """
    results = best_runs(weights, step, most)
    whole = results[0][0]
    chosen = results[0]
    for error, ends in results[1:]:
        if error * gain <= chosen[0]:
            chosen = (error, ends)
    factor = whole / chosen[0] if chosen[0] > 0 else 1.0
    return factor, chosen[1]
