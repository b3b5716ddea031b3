"""What was observed of tensors, in step with what they have been divided by since."""

import numpy as np

from quantry.equalize.smooth_factors import ChannelRanges
from quantry.numerics.histogram import TensorStats
from quantry.observe import Statistics


class SeenChannels:
    """Ranges and energies of tensors whose channels are divided one tensor after the other.

    Args:
        statistics: What was observed before anything was divided.
    """

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics
        self._ranges: dict[str, ChannelRanges] = {}

    def ranges(self, name: str) -> ChannelRanges | None:
        """Return what is known of a tensor's channels, or None where they were not observed."""
        if name not in self._ranges:
            stats = self._statistics.tensors.get(name)
            if stats is None or stats.channel_minima is None or stats.channel_maxima is None or not stats.finite_count:
                return None
            self._ranges[name] = ChannelRanges.of(stats.channel_minima, stats.channel_maxima, _mean_square(stats))
        return self._ranges[name]

    def mean_square(self, name: str) -> float:
        """Return the mean square of a tensor, 0 where nothing was observed of it."""
        ranges = self.ranges(name)
        if ranges is not None:
            return float(ranges.energy.mean())
        stats = self._statistics.tensors.get(name)
        return 0.0 if stats is None else _mean_square(stats)

    def divide(self, name: str, factors: np.ndarray) -> None:
        """Take note that a tensor's channels were divided."""
        old = self._ranges[name]
        self._ranges[name] = ChannelRanges(old.low / factors, old.high / factors, old.energy / factors**2)


def _mean_square(stats: TensorStats) -> float:
    distribution = stats.distribution()
    middle = (distribution.lower + distribution.upper) / 2
    return float(distribution.counts @ (middle * middle) / max(distribution.total, 1.0))
