"""Positions that several tensors must share, chosen by what each of them loses.

The integers of a pooling or a Concat pass unchanged, so its inputs and its output have one position. With the position
of the widest tensor nothing is clipped, but the mean over a whole picture, which is far smaller than its largest pixel,
or a part of a Concat with small values, may be left with a handful of levels. A finer position clips a few large values
of the widest tensor instead. The sum of what all tensors lose, each relative to its own variance, decides.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from quantry.facts.operators import ALIGNED
from quantry.graph.quant_plan import QuantPlan
from quantry.numerics.grid import Grid
from quantry.numerics.histogram import TensorStats, variance
from quantry.numerics.power_of_two import scale_at
from quantry.numerics.tensor_params import QuantParams
from quantry.observe import Statistics
from quantry.recipe import NpuLimits
from quantry.scale.npu.unit import Unit
from quantry.scale.values import BinnedValues


def weighed_positions(
    units: Iterable[Unit], positions: Mapping[str, int], plan: QuantPlan, params: QuantParams, statistics: Statistics
) -> dict[str, int]:
    """Return new positions of tensors that must share one.

    Args:
        units: The units whose tensors must share a position.
        positions: Positions of all quantized tensors by key.
        plan: Their types.
        params: Their zero points.
        statistics: Their values; groups with a tensor that was not observed keep their positions.
    """
    weighed: dict[str, int] = {}
    for group in _groups(units):
        candidates = range(min(positions[key] for key in group), max(positions[key] for key in group) + 1)
        stats_of = [statistics.tensors.get(key) for key in group]
        stats = [entry for entry in stats_of if entry is not None and entry.finite_count]
        if len(candidates) < 2 or len(stats) < len(group):
            continue
        losses = sum(_losses(entry, candidates, key, plan, params) for key, entry in zip(group, stats, strict=True))
        weighed.update(dict.fromkeys(group, candidates[int(np.argmin(losses))]))
    return weighed


def tied_units(units: Iterable[Unit], options: NpuLimits) -> list[Unit]:
    """Return the units whose tensors must share a position, as far as the options enforce that."""
    operators = {name for switch, names in ALIGNED.items() if getattr(options, switch) for name in names}
    return [unit for unit in units if unit.operator in operators and unit.output is not None]


def _groups(units: Iterable[Unit]) -> list[list[str]]:
    """Return sets of tensors that are connected by such units, sorted."""
    groups: list[set[str]] = []
    for unit in units:
        tied = {*unit.inputs, unit.output or ""}
        touching = [group for group in groups if group & tied]
        groups = [group for group in groups if not group & tied] + [tied.union(*touching)]
    return [sorted(group) for group in groups]


def _losses(stats: TensorStats, positions: Sequence[int], key: str, plan: QuantPlan, params: QuantParams) -> np.ndarray:
    """Return the share of a tensor's variance that each position loses."""
    spec = plan.spec_of(key)
    assert spec is not None
    steps = np.array([[scale_at(position) for position in positions]])
    zero_points = np.full_like(steps, float(params.tensors[key].zero_point))
    errors: np.ndarray = BinnedValues(stats).error(steps, zero_points, Grid.of(spec), 2)[0]
    return errors / max(variance(stats), np.finfo(np.float64).tiny)
