"""Adjust positions until the NPU's limits hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from quantry.errors import InternalError
from quantry.graph.quant_plan import DerivedBiasPlan, OwnBiasPlan, QuantPlan
from quantry.notes import Note, NoteKind
from quantry.numerics.bias import derived_bias_params
from quantry.numerics.tensor_params import QuantParams, TensorParams
from quantry.observe import Statistics
from quantry.recipe import NpuLimits
from quantry.scale.npu.limits import BIAS_SHIFT_HIGH, CUT_HIGH, LIMITS, Align, Limit
from quantry.scale.npu.unit import WEIGHTED, Unit, find_units
from quantry.scale.npu.weigh import tied_units, weighed_positions
from quantry.scale.weights import measure_constant


def refine_for_npu(
    model: ir.Model, plan: QuantPlan, params: QuantParams, options: NpuLimits, statistics: Statistics | None = None
) -> QuantParams:
    """Return parameters whose positions satisfy the NPU's limits.

    The limits apply to 8-bit products; units with a tensor of another width are not limited. Tensors that share
    parameters move together. A weight or bias of zeros is exact at any position, so it never moves others. Integers of
    weights and biases are computed when the model is written, so they follow the positions.

    Args:
        model: The float model that was planned.
        plan: Which tensors are quantized.
        params: Power-of-two parameters, one scale for each tensor.
        options: Which limits to enforce.
        statistics: What was observed of the activations, to weigh positions that they must share; None takes those of
            the widest tensor.

    Returns:
        New parameters, with notes on how many positions each limit moved and which limits could not be satisfied.
    """
    planned = _Planned(plan)
    quantized = frozenset(plan.quantized_nodes)
    # A node that was excluded but stands between pairs is seen as quantized: the pairs are all that the NPU sees.
    nodes = [node for node in model.graph if node.name in quantized or node.op_type not in WEIGHTED]
    limited_units = [
        unit for unit in find_units(nodes, planned) if unit.node in quantized or (unit.inputs and unit.output)
    ]
    units = [unit for unit in (planned.converted(unit) for unit in limited_units) if _computes_bytes(unit, params)]
    positions = {key: _position(key, params.tensors[key]) for key in planned.own_positions()}
    limits = [limit for limit in LIMITS if getattr(options, limit.name)]
    if statistics is not None:
        positions |= weighed_positions(tied_units(units, options), positions, plan, params, statistics)
    free = _FreeConstants(units, _zeros(model, plan))
    moved = _settle(units, positions, limits, options.max_rounds, free)
    tensors = {
        name: tensor.at_position(positions[planned.holder(name)]) if planned.holder(name) in positions else tensor
        for name, tensor in params.tensors.items()
    }
    for name, bias in plan.biases.items():
        if isinstance(bias, DerivedBiasPlan):
            tensors[name] = derived_bias_params(tensors[bias.input], tensors[bias.weight])
    return QuantParams(tensors, (*params.notes, *_notes(moved), *_broken(units, positions, limits, options.max_rounds)))


@dataclass(frozen=True)
class _Planned:
    """The quantized tensors of a float model, by their plan."""

    plan: QuantPlan

    def own_positions(self) -> tuple[str, ...]:
        own_biases = (name for name, bias in self.plan.biases.items() if isinstance(bias, OwnBiasPlan))
        roots = (name for name in self.plan.activations if self.plan.root(name) == name)
        return (*roots, *self.plan.conversions, *self.plan.weights, *own_biases)

    def converted(self, unit: Unit) -> Unit:
        """Return the unit with the conversions that its node reads instead of the tensors before them."""
        names = {
            self.holder(conversion.tensor): name
            for name, conversion in self.plan.conversions.items()
            if unit.node in conversion.readers
        }
        return replace(unit, inputs=tuple(names.get(key, key) for key in unit.inputs)) if names else unit

    def holder(self, tensor: str) -> str:
        return self.plan.root(tensor) if tensor in self.plan.activations else tensor

    def source(self, value: ir.Value) -> ir.Value:
        return value

    def key(self, value: ir.Value | None) -> str | None:
        if value is None or value.name is None:
            return None
        bias = self.plan.biases.get(value.name)
        has_range = value.name in self.plan.activations or value.name in self.plan.weights
        return self.holder(value.name) if has_range or isinstance(bias, OwnBiasPlan) else None


def _computes_bytes(unit: Unit, params: QuantParams) -> bool:
    keys = (*unit.inputs, unit.output, unit.weight, unit.bias)
    return all(params.tensors[key].dtype.bits == 8 for key in keys if key is not None)


def _position(name: str, params: TensorParams) -> int:
    position = params.position
    if position is None:
        raise InternalError(
            f"the NPU's limits need one power-of-two scale per tensor, got {params.scale} for {name!r}; in the scale "
            "stage"
        )
    return position


@dataclass(frozen=True)
class _FreeConstants:
    """Weights and biases that can move without loss, so that they must not limit the tensors next to them.

    Zeros are exact at any position. A bias that reaches more than twice as far as the result can be clipped: an
    activation function cuts off its channel in any case.

    Attributes:
        units: All units.
        zeros: Keys of the constants that are all zero.
    """

    units: Sequence[Unit]
    zeros: frozenset[str]

    def place(self, positions: dict[str, int]) -> None:
        """Move them to where the limits hold without moving anything else, if there is such a position."""
        self._place_weights(positions)
        shared: dict[str, list[int]] = {}
        for unit in self.units:
            if unit.bias in self.zeros and unit.weight is not None and unit.inputs:
                shared.setdefault(unit.bias or "", []).append(positions[unit.weight] + positions[unit.inputs[0]])
        # A bias that several layers read: at the coarsest accumulator, shifts are at least 0 for all of them.
        positions.update({bias: min(accumulators) for bias, accumulators in shared.items()})
        self._clip_biases(positions)

    def _clip_biases(self, positions: dict[str, int]) -> None:
        # Only where the limit would move the weight: there, all products together are smaller than such a bias, so the
        # bias does not cancel them.
        for unit in self.units:
            if unit.weight is None or unit.bias is None or unit.output is None or not unit.inputs or unit.leaky:
                continue
            shift = positions[unit.weight] + positions[unit.inputs[0]] - positions[unit.bias]
            if shift > BIAS_SHIFT_HIGH and unit.bias not in self.zeros:
                positions[unit.bias] = max(positions[unit.bias], positions[unit.output] - 1)

    def _place_weights(self, positions: dict[str, int]) -> None:
        needed: dict[str, list[int]] = {}
        for unit in self.units:
            if unit.weight in self.zeros and unit.output is not None and unit.inputs:
                finest = positions[unit.output]
                if unit.bias is not None and unit.bias not in self.zeros:
                    finest = max(finest, min(positions[unit.bias], finest + CUT_HIGH))
                needed.setdefault(unit.weight or "", []).append(finest - positions[unit.inputs[0]])
        positions.update({weight: max(minima) for weight, minima in needed.items()})


def _zeros(model: ir.Model, plan: QuantPlan) -> frozenset[str]:
    constants = (*plan.weights, *(name for name, bias in plan.biases.items() if isinstance(bias, OwnBiasPlan)))
    return frozenset(name for name in constants if measure_constant(model, name, lambda values: not values.any()))


def _settle(
    units: Sequence[Unit], positions: dict[str, int], limits: Sequence[Limit], rounds: int, free: _FreeConstants
) -> dict[str, set[str]]:
    """Apply all limits in turn until nothing changes; return the tensors that each of them moved."""
    moved: dict[str, set[str]] = {limit.name: set() for limit in limits}
    for _ in range(rounds):
        settled = True
        free.place(positions)
        for limit in limits:
            changes = _sweep(units, positions, limit)
            # A chain of joins is aligned one link at a time if the smallest position is at its end.
            while isinstance(limit, Align) and (more := _sweep(units, positions, limit)):
                changes |= more
            moved[limit.name] |= changes
            settled = settled and not changes
        if settled:
            break
    else:
        free.place(positions)
    return moved


def _sweep(units: Sequence[Unit], positions: dict[str, int], limit: Limit) -> set[str]:
    """Apply a limit to all units in turn; return the tensors that it moved."""
    moved: set[str] = set()
    for unit in units:
        violation = limit.find(unit, positions)
        if violation is not None:
            positions.update(violation.moves)
            moved.update(violation.moves)
    return moved


def _notes(moved: Mapping[str, set[str]]) -> tuple[Note, ...]:
    counts = [f"{name.replace('_', ' ')} {len(tensors)}" for name, tensors in moved.items() if tensors]
    message = "npu: positions moved to satisfy limits: {counts}"
    return (Note.of(message, NoteKind.GRAPH, counts=", ".join(counts)),) if counts else ()


def _broken(
    units: Sequence[Unit], positions: Mapping[str, int], limits: Sequence[Limit], rounds: int
) -> tuple[Note, ...]:
    checks = [(limit, unit, limit.find(unit, positions)) for limit in limits for unit in units]
    broken = [(limit, unit, violation) for limit, unit, violation in checks if violation is not None]
    if not broken:
        return ()
    limit, unit, violation = broken[0]
    note = Note.of(
        "npu: {count} limits do not hold after {rounds} rounds (scale.npu.max_rounds); first {limit} of {node}: "
        "{values}",
        count=len(broken),
        rounds=rounds,
        limit=limit.name.replace("_", " "),
        node=unit.node,
        values=str(violation.values),
    )
    return (note,)
