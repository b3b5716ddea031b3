"""The statistics of all tensors, of which most are derived when somebody asks for them."""

from collections.abc import Iterator, Mapping
from functools import lru_cache

import numpy as np

from quantry.observe.derive import Extrema, RootStats, combined_stats, derived_extrema, derived_histogram
from quantry.observe.lineage import Lineage, Term
from quantry.observe.scalar_function import IDENTITY, ScalarFunction
from quantry.observe.tensor_stats import Histogram, TensorStats


class TensorTable(Mapping[str, TensorStats]):
    """Statistics by tensor name. Roots were observed; the others are derived on first access and then kept.

    Attributes:
        roots: What was observed.
        lineage: How each tensor follows from roots, by tensor name.
    """

    def __init__(self, roots: Mapping[str, RootStats], lineage: Lineage) -> None:
        self.roots = roots
        self.lineage = {
            name: terms for name, terms in lineage.items() if all(term.root in self.roots for term in terms)
        }
        self._derived: dict[str, TensorStats] = {}
        self._histogram = lru_cache(maxsize=None)(self._make_histogram)
        self._extrema = lru_cache(maxsize=None)(self._make_extrema)

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
        """Return whether every value is finite, so that what is derived is true; always so if nothing is derived."""
        if all(terms == (Term(name, IDENTITY),) for name, terms in self.lineage.items()):
            return True
        if any(root.stats.finite_count < root.stats.count for root in self.roots.values()):
            return False
        pairs = {(term.root, term.function) for terms in self.lineage.values() for term in terms}
        return all(np.isfinite(self._extrema(*pair)).all() for pair in pairs if self.roots[pair[0]].stats.count)

    def _make_histogram(self, root: str, function: ScalarFunction) -> Histogram:
        stats = self.roots[root].stats
        if function == IDENTITY:
            return stats.codes, stats.counts
        return derived_histogram(self.roots[root].distribution, function)

    def _make_extrema(self, root: str, function: ScalarFunction) -> Extrema:
        stats = self.roots[root].stats
        if function == IDENTITY:
            return stats.batch_minima, stats.batch_maxima
        return derived_extrema(self.roots[root], function)
