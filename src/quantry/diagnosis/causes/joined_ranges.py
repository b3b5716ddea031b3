"""Cause: tensors that must use the range of a larger tensor, which they share or are aligned with."""

from collections.abc import Iterator

import onnx_ir as ir

from quantry.diagnosis.evidence import Evidence, Finding, counted
from quantry.diagnosis.fix import Fix, float_fix, wide_fix
from quantry.diagnosis.tensor_health import TensorHealth
from quantry.evaluate.levels import AS_GOOD
from quantry.facts.operators import ALIGNED
from quantry.recipe import Recipe

USED_SHARE = 0.5
"""Fraction of a range in use below which sharing it loses a bit or more."""

SMALL_SHARE = 0.125
"""Fraction of a range in use below which a tensor is always reported."""

_WIDENED = 3
_SWITCHES = {name: switch for switch, names in ALIGNED.items() for name in names}


def joined_ranges(evidence: Evidence) -> Iterator[Finding]:
    """Find tensors that use less than half of a range that another tensor needs."""
    health = {tensor.name: tensor for tensor in evidence.activations}
    partners = {
        tensor.name: partner
        for tensor in health.values()
        if _is_cause(evidence, tensor) and (partner := _partner(evidence.model, tensor, health)) is not None
    }
    if not partners:
        return
    # Tensors that copy values within the same range lose nothing more.
    joined = sorted((health[name] for name in partners if health[name].shared_with not in partners), key=_used)
    worst, (sharer, operator) = joined[0], partners[joined[0].name]
    yield Finding(
        f"{counted(len(joined), 'tensor')} with less than half of a shared range in use: {worst.name} has values "
        f"{_span(worst.seen)} and a range of {_span(worst.range)}, which {sharer.name} needs for {_span(sharer.seen)}",
        tuple(tensor.name for tensor in joined),
        _fix(evidence.recipe, operator),
        tuple(_fixes(evidence, operator, [tensor.name for tensor in joined])),
    )


def _is_cause(evidence: Evidence, tensor: TensorHealth) -> bool:
    """Whether a tensor loses accuracy because of its range, and more than was lost before it."""
    used = _used(tensor)
    if used < SMALL_SHARE and tensor.shared_with:
        return True
    error = evidence.errors.get(tensor.name)
    return used < USED_SHARE and tensor.sqnr < AS_GOOD.decibels and (error is None or error.sqnr > tensor.sqnr + 1)


def _partner(model: ir.Model, tensor: TensorHealth, health: dict[str, TensorHealth]) -> tuple[TensorHealth, str] | None:
    """Return the largest tensor with the same scale that is connected by copying nodes, and the first such node."""
    values = {value.name: value for node in model.graph for value in node.outputs}
    values |= {value.name: value for value in model.graph.inputs}
    start = values.get(tensor.name)
    queue = [] if start is None else [(value, node.op_type) for node, value in _neighbours(start)]
    met, best = {tensor.name}, None
    while queue:
        value, operator = queue.pop()
        near = health.get(value.name or "")
        if near is None or near.name in met or near.scales != tensor.scales:
            continue
        met.add(near.name)
        if _reach(near.seen) > _reach((best[0] if best else tensor).seen):
            best = near, operator
        queue += [(neighbour, operator) for _, neighbour in _neighbours(value)]
    return best


def _neighbours(value: ir.Value) -> Iterator[tuple[ir.Node, ir.Value]]:
    """Yield the values on the other side of the nodes that compute and read a value."""
    producer = value.producer()
    nodes = [use.node for use in value.uses()] + ([] if producer is None else [producer])
    for node in nodes:
        for neighbour in (*node.inputs, *node.outputs):
            if neighbour is not None and neighbour is not value and neighbour.const_value is None:
                yield node, neighbour


def _fixes(evidence: Evidence, operator: str, tensors: list[str]) -> Iterator[Fix]:
    switch = _SWITCHES.get(operator, "")
    if evidence.recipe.scale.npu is not None and switch and getattr(evidence.recipe.scale.npu, switch):
        yield Fix(f"no common range around {operator}", {f"scale.npu.{switch}": False})
    nodes = evidence.producers(tensors)
    if nodes:
        yield float_fix(nodes)
    yield wide_fix(tuple(tensors[:_WIDENED]))


def _fix(recipe: Recipe, operator: str) -> str:
    switch = _SWITCHES.get(operator, "")
    if recipe.scale.npu is not None and switch and getattr(recipe.scale.npu, switch):
        return (
            f"the NPU's limits require one range around {operator}: set scale.npu.{switch}: false if your target does "
            "not need it, else use more bits for these tensors (plan.tensors, mixed precision)"
        )
    if operator == "Concat":
        return "the joined tensors have different ranges: keep it in float (plan.selection.exclude), or equalize them"
    return f"keep {operator} in float (plan.selection.exclude), or use more bits for these tensors (plan.tensors)"


def _reach(ends: tuple[float, float]) -> float:
    return max(-ends[0], ends[1])


def _used(tensor: TensorHealth) -> float:
    return _reach(tensor.seen) / _reach(tensor.range)


def _span(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.3g} .. {ends[1]:.3g}"
