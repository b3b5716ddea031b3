"""Sums of 1, x and x**2 over the values between points, for mass spread evenly inside bins.

A bin [a, b] of mass c has density c / (b - a), so up to a point t inside it lie

::

    f = (t - a) / (b - a)      mass c f,    first moment c f (a + t) / 2,    second moment c f (a**2 + a t + t**2) / 3

and what lies between two points is a difference of two running sums. With them the quantization error over any grid
is exact and costs a few look-ups for each level of the grid, however many values or bins there are.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Sums(NamedTuple):
    """Sums over the values in intervals, one entry for each interval.

    Attributes:
        mass: Number of values.
        first: Sum of the values.
        second: Sum of their squares.
    """

    mass: Floats
    first: Floats
    second: Floats


class Moments:
    """Running sums over binned values.

    Attributes:
        lower: Left ends of the bins, ascending, [k]; k is at least 1.
        upper: Right ends, [k]; equal to `lower` for a point mass. Bins do not overlap.
        counts: Mass of each bin, [k].
        total: Mass of all bins.
    """

    def __init__(self, lower: Floats, upper: Floats, counts: Floats) -> None:
        self.lower = lower
        self.upper = upper
        self.counts = counts
        self.total = float(counts.sum())

    @cached_property
    def _middle(self) -> int:
        return int(np.searchsorted(self.lower, 0.0))

    @cached_property
    def _parts(self) -> tuple[Floats, Floats, Floats]:
        return _segment(self.counts, self.lower, self.upper)

    @cached_property
    def _totals(self) -> list[float]:
        return [float(part.sum()) for part in self._parts]

    @cached_property
    def _running(self) -> list[Floats]:
        # Counting from the nearer end keeps the digits: far from zero the sums are those of the few values beyond.
        return [_from_both_ends(part, self._middle) for part in self._parts]

    @cached_property
    def _density(self) -> Floats:
        width = self.upper - self.lower
        # Point masses are never cut, so their density is not used and must only not divide by zero.
        return self.counts / np.where(width > 0, width, 1.0)

    def between(self, points: Floats) -> Sums:
        """Return the sums over the values between neighbouring points.

        A value equal to a point belongs to the interval left of it.

        Args:
            points: Ascending along the last axis, [..., n + 1]; infinities are allowed.

        Returns:
            Sums of shape [..., n].
        """
        index = np.searchsorted(self.upper, points, side="right")
        bins = np.minimum(index, len(self.upper) - 1)
        start = self.lower[bins]
        # Only points strictly inside a bin cut it; at other points the segment is empty.
        end = np.where((index < len(self.upper)) & (start < points), points, start)
        cut = _segment(self._density[bins] * (end - start), start, end)
        from_right = index > self._middle
        crosses = from_right[..., 1:] & ~from_right[..., :-1]
        return Sums(
            *(
                np.diff(running[index] + part) + crosses * total
                for running, part, total in zip(self._running, cut, self._totals, strict=True)
            )
        )


def _segment(mass: Floats, start: Floats, end: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the moments of a mass that is spread evenly from start to end."""
    return mass, mass * (start + end) / 2, mass * (start * start + start * end + end * end) / 3


def _from_both_ends(parts: Floats, middle: int) -> Floats:
    """Return running sums before each part: from the left up to `middle`, minus those from the right beyond it."""
    left = np.concatenate([[0.0], np.cumsum(parts[:middle])])
    right = np.cumsum(parts[middle:][::-1])[::-1]
    return np.concatenate([left, -right[1:], [0.0]]) if len(right) else left
