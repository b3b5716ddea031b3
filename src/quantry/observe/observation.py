"""One pass over the data: roots are counted, and everything else is derived from them."""

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import onnx_ir as ir

from quantry.observe.calibration_data import CalibrationData
from quantry.observe.derive import Extrema, Histogram, RootStats, combined_stats, derived_extrema, derived_histogram
from quantry.observe.float_pass import Shape, float_pass
from quantry.observe.lineage import Lineage, Term
from quantry.observe.observation_session import open_session
from quantry.observe.progress import progress
from quantry.observe.scalar_function import IDENTITY, ScalarFunction
from quantry.observe.tensor_counter import CountingSpace, TensorCounter
from quantry.observe.tensor_stats import TensorStats
from quantry.observe.turning_points import TurningPoint, turning_points

Roots = Mapping[str, RootStats]


def observe_roots(
    model: ir.Model, data: CalibrationData, providers: Iterable[str], lineage: Lineage, axes: Mapping[str, int]
) -> tuple[dict[str, RootStats], int]:
    """Run the model over the data and count the roots' values.

    Args:
        model: The float model.
        data: Samples to feed.
        providers: Execution providers, first choice first.
        lineage: Says which tensors are roots, and what will be derived from them.
        axes: Tensors whose channel extrema are wanted, with the channels' axis.

    Returns:
        What was observed of each root, and the number of samples. Roots that turn out not to be float32 are left out.
    """
    turns = _turns_by_root(lineage)
    inputs = {signature.name for signature in data.inputs}
    session = open_session(model, [name for name in turns if name not in inputs], tuple(providers))
    shown = [output.name for output in session.get_outputs() if output.type == "tensor(float)"]
    names = [name for name in turns if name in inputs] + shown
    space = CountingSpace()
    counters = {name: TensorCounter(space, turns[name], axes.get(name)) for name in names}
    samples = 0
    with closing(float_pass(session, _shapes(model), data)) as results:
        for sample, outputs in progress(results, "observing", data.size):
            for name, counter in counters.items():
                counter.add(sample[name] if name in sample else outputs[name])
            samples += 1
    return {name: counter.freeze() for name, counter in counters.items()}, samples


def derive_all(lineage: Lineage, roots: Roots) -> dict[str, TensorStats] | None:
    """Return the statistics of all tensors; None if some values are not finite, so that nothing can be derived."""
    if not _only_roots(lineage) and any(root.stats.finite_count < root.stats.count for root in roots.values()):
        return None
    tensors = {}
    piece = lru_cache(maxsize=None)(partial(_piece, roots))
    for name, terms in lineage.items():
        if any(term.root not in roots for term in terms):
            continue
        if terms == (Term(name, IDENTITY),):
            tensors[name] = roots[name].stats
            continue
        parts = [piece(term.root, term.function) for term in terms]
        stats = combined_stats([p.histogram for p in parts], [p.extrema for p in parts], [t.repeat for t in terms])
        if not np.isfinite([stats.minimum, stats.maximum]).all():
            return None
        tensors[name] = stats
    return tensors


@dataclass(frozen=True, eq=False)
class _Piece:
    """What one function makes of one root: the histogram, and smallest and largest value of each sample."""

    histogram: Histogram
    extrema: Extrema


def _piece(roots: Roots, name: str, function: ScalarFunction) -> _Piece:
    root = roots[name]
    if function == IDENTITY:
        histogram = root.stats.codes, root.stats.counts
        return _Piece(histogram, (root.stats.batch_minima, root.stats.batch_maxima))
    # Overflow is no error here: it shows as an infinite extreme.
    with np.errstate(all="ignore"):
        return _Piece(derived_histogram(root.distribution, function), derived_extrema(root, function))


def _only_roots(lineage: Lineage) -> bool:
    return all(terms == (Term(name, IDENTITY),) for name, terms in lineage.items())


def _turns_by_root(lineage: Lineage) -> dict[str, tuple[TurningPoint, ...]]:
    """Return the roots in order, each with the turning points of all functions derived from it."""
    turns: dict[str, dict[TurningPoint, None]] = {}
    for terms in lineage.values():
        for term in terms:
            turns.setdefault(term.root, {}).update(dict.fromkeys(turning_points(term.function) or ()))
    return {root: tuple(points) for root, points in turns.items()}


def _shapes(model: ir.Model) -> dict[str, Shape]:
    return {
        value.name: tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
        for node in model.graph
        for value in node.outputs
        if value.name and value.shape is not None
    }
