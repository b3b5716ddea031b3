"""One scale for the inputs and outputs of operators that move or join values, so that integers pass unchanged."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from quantry.graph.quant_plan import QuantPlan, SharedRange
from quantry.numerics.affine import affine
from quantry.numerics.grid import Grid, Range
from quantry.numerics.tensor_params import TensorParams
from quantry.recipe import TensorSpec


def aligned(
    graph: ir.Graph,
    plan: QuantPlan,
    params: Mapping[str, TensorParams],
    operators: Sequence[str],
    together: Sequence[Sequence[str]] = (),
) -> dict[str, TensorParams]:
    """Return parameters that are equal around operators and in given groups, each range wide enough for all tensors.

    Tensors of different types, and tensors that one reader needs in another type, keep their own parameters.

    Args:
        graph: The float graph.
        plan: The plan of each activation, and which tensors share parameters.
        params: The parameters that each tensor would have on its own.
        operators: Operator types whose inputs and outputs get equal parameters.
        together: Groups of tensors that get equal parameters if their own scales are alike.
    """
    groups = _Groups(plan)
    for names in together:
        aligned_names = [name for name in names if name in params]
        groups.join([name for name in aligned_names if _alike(params[aligned_names[0]], params[name])])
    for node in graph:
        if node.op_type in operators and node.name in plan.quantized_nodes:
            groups.join([value.name for value in (*node.inputs, *node.outputs) if value is not None and value.name])
    widened = {root: _widened(members, plan, params) for root, members in groups.members(params).items()}
    result = dict(params)
    for tensor in plan.activations:
        root = groups.root(tensor)
        if tensor in params and root in widened:
            result[tensor] = widened[root]
    return result


class _Groups:
    """Sets of tensors with the same parameters."""

    def __init__(self, plan: QuantPlan) -> None:
        self._plan = plan
        self._parent: dict[str, str] = {}

    def root(self, tensor: str) -> str:
        root = self._plan.root(tensor)
        while root in self._parent:
            root = self._parent[root]
        return root

    def join(self, tensors: list[str]) -> None:
        roots = list(dict.fromkeys(self.root(tensor) for tensor in tensors if tensor in self._plan.activations))
        for root in roots[1:]:
            if self._spec(root) == self._spec(roots[0]):
                self._parent[root] = roots[0]

    def members(self, params: Mapping[str, TensorParams]) -> dict[str, list[str]]:
        """Return the roots of the plan in each group with several members."""
        groups: dict[str, list[str]] = {}
        for tensor, planned in self._plan.activations.items():
            if not isinstance(planned, SharedRange) and tensor in params:
                groups.setdefault(self.root(tensor), []).append(tensor)
        return {root: members for root, members in groups.items() if len(members) > 1}

    def _spec(self, root: str) -> TensorSpec:
        planned = self._plan.activations[root]
        assert not isinstance(planned, SharedRange)
        return planned.spec


def _widened(members: list[str], plan: QuantPlan, params: Mapping[str, TensorParams]) -> TensorParams:
    """Return parameters whose range includes the ranges of all members."""
    first = params[members[0]]
    if all(_same(first, params[name]) for name in members):
        return first
    planned = plan.activations[members[0]]
    assert not isinstance(planned, SharedRange)
    grid = Grid.of(planned.spec)
    if grid.symmetric:
        # The coarsest of them unchanged, so that a power of two stays one.
        return max((params[name] for name in members), key=lambda entry: float(entry.scale))
    lows = [
        (entry.lowest - entry.zero_point) * entry.scale.astype(np.float64)
        for entry in map(params.get, members)
        if entry
    ]
    highs = [
        (entry.highest - entry.zero_point) * entry.scale.astype(np.float64)
        for entry in map(params.get, members)
        if entry
    ]
    scales = affine(Range(np.array([min(lows)]), np.array([max(highs)])), grid)
    return TensorParams(first.dtype, scales.scale[0], scales.zero_point[0])


def _alike(first: TensorParams, second: TensorParams) -> bool:
    # A scale that is twice as wide loses more than is gained: the narrow tensor would have half of its levels.
    low, high = sorted((float(np.max(first.scale)), float(np.max(second.scale))))
    return high < 2 * low


def _same(first: TensorParams, second: TensorParams) -> bool:
    return np.array_equal(first.scale, second.scale) and np.array_equal(first.zero_point, second.zero_point)
