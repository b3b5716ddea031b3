"""Fixes that help many models whatever the cause: first layers, last nodes or the worst nodes in float."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from quantry.diagnosis.causes import worth
from quantry.diagnosis.causes.coarse_outputs import last_node_fixes
from quantry.diagnosis.causes.uneven_sums import float_sum_fixes
from quantry.diagnosis.causes.unexplained import fall_fixes
from quantry.diagnosis.counterfactual import Counterfactual
from quantry.diagnosis.evidence import Evidence
from quantry.diagnosis.fix import (
    Fix,
    count_pieces,
    first_layers,
    float_fix,
    freed_tensors,
    is_rounded_again,
    node_name,
)
from quantry.evaluate.levels import NOTABLE
from quantry.graph.edit import is_learned, products_after

# Layers at the beginning that stay float leave the rest of the model in one piece, which a layer in the middle does
# not. They are at most this share of all layers.
_FIRST_LAYERS = (1, 3, 5, 8)
_MOST_FIRST_LAYERS = 0.2
# The share of the gain of many nodes in float that few of them must have to be tried before.
_NEARLY = 0.8

# A model with more layers in float is a float model with some quantized parts.
_MOST_FLOAT_LAYERS = 0.25


def general_fixes(evidence: Evidence, counterfactual: Counterfactual) -> tuple[Fix, ...]:
    """Return the general fixes worth a trial, the most promising first where that can be simulated.

    Args:
        evidence: What is known about the quantized model.
        counterfactual: Runs variants of it.
    """
    return tuple(_promising(_with_expected(evidence, counterfactual, with_pieces(evidence, _all_fixes(evidence)))))


def with_pieces(evidence: Evidence, fixes: Iterable[Fix]) -> tuple[Fix, ...]:
    """Return fixes with the number of pieces that their float nodes cut the graph into.

    Those that would leave too few layers quantized are omitted, and those whose layers would not stay float.

    Args:
        evidence: What is known about the quantized model.
        fixes: The fixes.
    """
    quantized = set(evidence.plan.quantized_nodes)
    names = {node_name(node): node.name or "" for node in evidence.model.graph}
    pieces_now = count_pieces(evidence.model, quantized)
    layers = {node.name for node in evidence.model.graph if is_learned(node)}
    fewest = len(layers) * (1 - _MOST_FLOAT_LAYERS)

    def weighed() -> Iterator[Fix]:
        for fix in fixes:
            freed = {names.get(name, name) for name in fix.float_nodes}
            remaining = quantized - freed - products_after(evidence.model.graph, freed)
            if freed & layers and is_rounded_again(evidence.model, evidence.plan, fix.float_nodes):
                continue
            if not freed & layers or len(remaining & layers) >= fewest:
                yield (
                    replace(fix, pieces=max(0, count_pieces(evidence.model, remaining) - pieces_now)) if freed else fix
                )

    return tuple(weighed())


def _all_fixes(evidence: Evidence) -> Iterator[Fix]:
    yield from float_sum_fixes(evidence)
    yield from last_node_fixes(evidence)
    layers = len(list(evidence.layers()))
    for depth in _FIRST_LAYERS:
        if depth <= _MOST_FIRST_LAYERS * layers:
            first = first_layers(evidence.model, evidence.plan, depth)
            name = "the first layer" if depth == 1 else f"the first {depth} layers"
            yield replace(float_fix(first, name), depth=depth)
    yield from fall_fixes(evidence)


def _with_expected(evidence: Evidence, counterfactual: Counterfactual, fixes: Iterable[Fix]) -> Iterator[Fix]:
    """Yield fixes with what they gain in simulation, which takes a run and not a trial."""
    for fix in fixes:
        freed = freed_tensors(evidence.model, evidence.plan, fix.float_nodes) if fix.float_nodes else frozenset()
        gain = counterfactual.in_float(freed) if freed else None
        yield fix if gain is None else replace(fix, expected=worth(gain))


def _promising(fixes: Iterable[Fix]) -> Iterator[Fix]:
    """Yield the fixes worth a trial, the most promising ones first where that was measured.

    Few nodes come before more of them that gain little more; more of them that gain nothing more are omitted. Of the
    first layers, those come first after which more layers gain less per layer.
    """
    all_fixes = list(fixes)
    strongest = [fix for fix in all_fixes if not any(_suffices(rival, fix) for rival in all_fixes)]
    few = _elbow([fix for fix in strongest if fix.depth and fix.expected is not None])
    worthwhile = [
        fix
        for fix in strongest
        if fix.expected is None or (fix.expected >= NOTABLE and (not fix.depth or fix.depth >= few))
    ]

    def rank(fix: Fix) -> float:
        gain = fix.expected or 0.0
        more = [
            rival.expected or 0.0
            for rival in worthwhile
            if set(fix.float_nodes) < set(rival.float_nodes)
            if (fix.depth and fix.depth == few) or gain >= _NEARLY * (rival.expected or 0.0)
        ]
        return -max([gain, *more])

    yield from sorted(worthwhile, key=lambda fix: (rank(fix), len(fix.float_nodes)))


def _suffices(fewer: Fix, fix: Fix) -> bool:
    """Whether a fix with only some of the float nodes of another one is expected to gain as much."""
    if fewer.expected is None or fix.expected is None or not fewer.float_nodes:
        return False
    return set(fewer.float_nodes) < set(fix.float_nodes) and fix.expected < fewer.expected + NOTABLE


def _elbow(first: Sequence[Fix]) -> int:
    """Return how many first layers gain most compared with a gain in proportion to their number; 0 if none do."""
    if not first:
        return 0
    last = max(first, key=lambda fix: fix.depth)
    slope = (last.expected or 0.0) / last.depth
    return max(first, key=lambda fix: ((fix.expected or 0.0) - slope * fix.depth, -fix.depth)).depth
