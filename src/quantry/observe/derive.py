"""Derive the statistics of ``f(x)`` from those of ``x`` by pushing the histogram through the function.

Observing a tensor copies and counts every value; deriving it evaluates ``f`` a few thousand times in total. Extremes
are exact to float32 rounding. A quantile is off by at most the image of one bin of ``x`` plus one bin of ``f(x)``.

`TensorTable` holds the statistics of all tensors and derives most of them on first access.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from quantry.numerics.histogram import NEGATIVE, Distribution, Histogram, TensorStats, add_histograms
from quantry.numerics.scalar_function import IDENTITY, Numbers, ScalarFunction
from quantry.observe.lineage import Lineage, Term

Extrema = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
"""Smallest and largest value of each sample, [n] each."""

MAX_PIECES = 64
"""A bin is cut into at most this many pieces if its image spans many bins."""


@dataclass(frozen=True, eq=False)
class RootStats:
    """Statistics of an observed tensor from which others are derived.

    Attributes:
        stats: Its statistics.
        near_turns: By position of a turning point: the nearest values at or below and at or above it in each sample,
            float32 [n] each; NaN if a sample has none, or if the turning point lies outside its range.
    """

    stats: TensorStats
    near_turns: dict[float, tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]]

    @cached_property
    def distribution(self) -> Distribution:
        """The distribution that every function of the tensor is derived from."""
        return self.stats.distribution()


def derived_histogram(source: Distribution, function: ScalarFunction) -> Histogram:
    """Return the histogram of ``function(x)``, with exactly as many values as ``x`` has."""
    pieces = _pieces(function, source)
    owner = np.repeat(np.arange(len(pieces)), pieces)
    # Piece p of n lies at (p + 1/2) / n of the bin's width.
    fraction = (np.arange(0.5, len(owner)) - (np.cumsum(pieces) - pieces)[owner]) / pieces[owner]
    middle = source.lower[owner] + (source.upper - source.lower)[owner] * fraction
    image = _rounded(function.evaluate(middle))
    return _whole_counts(_value_order(image), (source.counts / pieces)[owner])


def derived_extrema(root: RootStats, function: ScalarFunction) -> Extrema:
    """Return the smallest and largest ``function(x)`` of each sample."""
    candidates = [root.stats.batch_minima, root.stats.batch_maxima]
    candidates += [nearest for pair in root.near_turns.values() for nearest in pair]
    extremes = np.stack(candidates).astype(np.float64)
    values = function.evaluate(extremes.reshape(-1)).reshape(extremes.shape)
    return _rounded(np.fmin.reduce(values)), _rounded(np.fmax.reduce(values))


def combined_stats(histograms: Sequence[Histogram], extrema: Sequence[Extrema], repeats: Sequence[int]) -> TensorStats:
    """Return the statistics of concatenated tensors, each repeated a number of times."""
    scaled = [(codes, counts * repeat) for (codes, counts), repeat in zip(histograms, repeats, strict=True)]
    minima = np.min([low for low, _ in extrema], axis=0)
    maxima = np.max([high for _, high in extrema], axis=0)
    minimum, maximum = minima.min(initial=np.inf), maxima.max(initial=-np.inf)
    codes, counts = scaled[0] if len(scaled) == 1 else add_histograms(scaled)
    codes, counts = _with_value(_with_value((codes, counts), minimum), maximum)
    return TensorStats(
        minimum=float(minimum),
        maximum=float(maximum),
        count=int(counts.sum()),
        nan_count=0,
        inf_count=0,
        batch_minima=minima,
        batch_maxima=maxima,
        codes=codes,
        counts=counts,
    )


def _with_value(histogram: Histogram, value: np.float32) -> Histogram:
    """Return the histogram with a bin for a value that occurred, taking one count from the nearest bin if necessary.

    The pieces of a bin are represented by their middles, so the outermost piece can miss the bin of an extreme.
    """
    codes, counts = histogram
    code = np.array([value + np.float32(0.0)]).view(np.uint32) >> 16  # adding zero removes the sign of -0.0
    position = int(np.searchsorted(codes, code[0]))
    if len(codes) == 0 or (position < len(codes) and codes[position] == code[0]):
        return histogram
    distance = np.abs(_renumbered(codes.astype(np.int64)) - _renumbered(code.astype(np.int64)))
    lent = counts.copy()
    lent[np.argmin(distance)] -= 1
    codes, counts = np.insert(codes, position, code[0]), np.insert(lent, position, 1)
    return codes[counts > 0], counts[counts > 0]


def _pieces(function: ScalarFunction, source: Distribution) -> npt.NDArray[np.int64]:
    """Return the number of pieces to cut each bin into, so that no piece's image is wider than one bin."""
    ends = _rounded(function.evaluate(np.concatenate([source.lower, source.upper])))
    order = _value_order(ends)
    span: npt.NDArray[np.int64] = np.abs(order[: len(source.lower)] - order[len(source.lower) :])
    return np.minimum(span + 1, MAX_PIECES)


def _rounded(values: Numbers) -> npt.NDArray[np.float32]:
    """Return values as float32; values that are too large become infinite, which the caller checks."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _value_order(values: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Return the codes of values, renumbered in ascending order of the value: negative ones are mirrored below zero."""
    return _renumbered((values.view(np.uint32) >> 16).astype(np.int64))


def _renumbered(codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.where(codes >= NEGATIVE, NEGATIVE - 1 - codes, codes)


def _whole_counts(order: npt.NDArray[np.int64], mass: Numbers) -> Histogram:
    """Return the sum of the masses at each place as whole numbers; every cumulative count is off by at most 0.5."""
    first = int(order.min(initial=0))
    sums = np.bincount(order - first, mass)
    positions = np.flatnonzero(sums)
    counts = np.diff(np.rint(np.cumsum(sums[positions])), prepend=0.0).astype(np.int64)
    positions, counts = positions[counts > 0] + first, counts[counts > 0]
    negative = int(np.searchsorted(positions, 0))
    codes = np.concatenate([positions[negative:], NEGATIVE - 1 - positions[:negative][::-1]])
    return codes.astype(np.uint16), np.concatenate([counts[negative:], counts[:negative][::-1]])


class TensorTable(Mapping[str, TensorStats]):
    """Statistics by tensor name. Roots were observed; other tensors are derived on first access and then cached.

    Attributes:
        roots: The observed tensors.
        lineage: How each tensor is derived from roots, by tensor name.
    """

    def __init__(self, roots: Mapping[str, RootStats], lineage: Lineage) -> None:
        self.roots = roots
        self.lineage = {
            name: terms for name, terms in lineage.items() if all(term.root in self.roots for term in terms)
        }
        self._derived: dict[str, TensorStats] = {}

    @classmethod
    def of_roots(cls, tensors: Mapping[str, TensorStats]) -> "TensorTable":
        """Return a table in which nothing is derived."""
        roots = {name: RootStats(stats, {}) for name, stats in tensors.items()}
        return cls(roots, {name: (Term(name, IDENTITY),) for name in tensors})

    def __getitem__(self, name: str) -> TensorStats:
        terms = self.lineage[name]
        if terms == (Term(name, IDENTITY),):
            return self.roots[name].stats
        if name not in self._derived:
            self._derived[name] = combined_stats(
                [self._histogram(term.root, term.function) for term in terms],
                [self._extrema(term.root, term.function) for term in terms],
                [term.repeat for term in terms],
            )
        return self._derived[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.lineage)

    def __len__(self) -> int:
        return len(self.lineage)

    def is_derivable(self) -> bool:
        """Return whether every value is finite, so that deriving is valid; always true if nothing is derived."""
        if all(terms == (Term(name, IDENTITY),) for name, terms in self.lineage.items()):
            return True
        if any(root.stats.finite_count < root.stats.count for root in self.roots.values()):
            return False
        pairs = {(term.root, term.function) for terms in self.lineage.values() for term in terms}
        return all(np.isfinite(self._extrema(*pair)).all() for pair in pairs if self.roots[pair[0]].stats.count)

    def _histogram(self, root: str, function: ScalarFunction) -> Histogram:
        stats = self.roots[root].stats
        if function == IDENTITY:
            return stats.codes, stats.counts
        return derived_histogram(self.roots[root].distribution, function)

    def _extrema(self, root: str, function: ScalarFunction) -> Extrema:
        stats = self.roots[root].stats
        if function == IDENTITY:
            return stats.batch_minima, stats.batch_maxima
        return derived_extrema(self.roots[root], function)
