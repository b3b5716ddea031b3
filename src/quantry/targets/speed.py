"""Latency on a target's backend, interleaved with the float model, and what a quantized model must gain."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from quantry.errors import RecipeError
from quantry.evaluate.latency import Latency, summarize_pairs
from quantry.graph.load import read_model
from quantry.graph.passes.infer_shapes import infer_shapes
from quantry.graph.qdq import is_pair_operator
from quantry.graph.save import serialize
from quantry.runtime.sessions import SessionModel
from quantry.targets.arithmetic import require_backend
from quantry.targets.backends import PlacedNode
from quantry.targets.backends.backend import Arrays
from quantry.targets.registry import find_target
from quantry.targets.rules import StaticShapes
from quantry.targets.target import Target

LEAST_SPEEDUP = 1.02
"""A quantized model that gains less than this is not worth its error, unless its size was the goal."""

_WARM_UP_RUNS = 3
_NAMED_NODES = 4


def measure_on_target(
    target: Target | str, reference: SessionModel, quantized: SessionModel, feeds: Arrays, runs: int
) -> Latency:
    """Time a float and a quantized model on a target, alternately.

    Args:
        target: The target or its name; it must have a backend.
        reference: The float model.
        quantized: The quantized model.
        feeds: One sample.
        runs: Number of timed pairs.

    Raises:
        RecipeError: Only the rules of the target are known, or its device is emulated.
        ModelError: The backend refuses a model.
    """
    backend = require_backend(target)
    static = any(isinstance(rule, StaticShapes) for rule in find_target(target).rules)
    if backend.emulated:
        raise RecipeError(
            f"latency must be measured on the device, got {backend.product}, which emulates {backend.device} here: its "
            "results are right and its times mean nothing"
        )
    # Static shapes change what is fused, so models keep theirs wherever the target takes dynamic ones.
    models = (_sized(model, feeds) if static else model for model in (reference, quantized))
    ours, theirs = (backend.open(model, threads=1) for model in models)
    pairs = []
    for index in range(_WARM_UP_RUNS + runs):
        # The order alternates, because the first run of a pair finds colder caches.
        order = (ours, theirs) if index % 2 == 0 else (theirs, ours)
        times = {runner: runner.milliseconds(feeds) for runner in order}
        pairs.append((times[ours], times[theirs]))
    for runner in (ours, theirs):
        runner.close()
    return summarize_pairs(np.array(pairs[_WARM_UP_RUNS:]))


def _sized(model: SessionModel, feeds: Arrays) -> SessionModel:
    """Return a model whose inputs have the shapes of a sample, for targets that take no dynamic ones."""
    if not isinstance(model, bytes | str | Path | ir.Model):
        return model
    copy = model.clone() if isinstance(model, ir.Model) else read_model(model)
    dynamic = [value for value in copy.graph.inputs if value.shape is not None and value.shape.is_dynamic()]
    if not dynamic:
        return model
    for value in dynamic:
        value.shape = ir.Shape(feeds[value.name or ""].shape)
    infer_shapes(copy)
    return serialize(copy)


def slow_because(
    latency: Latency, placement: Sequence[PlacedNode], name: str, reference: Sequence[PlacedNode] = ()
) -> str | None:
    """Return the sentence for a quantized model that is not faster than the float model; None if it is.

    Args:
        latency: The times of both.
        placement: What became of the nodes of the quantized model.
        name: The target.
        reference: What became of the nodes of the float model; without it, only conversions and fallbacks are named.
    """
    if latency.speedup >= LEAST_SPEEDUP:
        return None
    float_ms, quantized_ms = latency.float_ms, latency.quantized_ms
    text = (
        f"int8 does not win on {name}: {latency.speedup:.2f}x the speed of float "
        f"({quantized_ms:.2f} ms, float {float_ms:.2f} ms)"
    )
    costly = costly_nodes(placement, reference)
    if not costly:
        return text
    listed = ", ".join(
        f"{entry.node} ({entry.kernel}{'' if entry.milliseconds is None else f', {entry.milliseconds:.2f} ms'})"
        for entry in costly
    )
    return f"{text}; it costs most in {listed}"


def costly_nodes(placement: Sequence[PlacedNode], reference: Sequence[PlacedNode] = ()) -> tuple[PlacedNode, ...]:
    """Return the nodes that cost a quantized model its speed: conversions, and what is slower than in the float model.

    Args:
        placement: What became of every node.
        reference: The same of the float model; without it, nodes that run in float or elsewhere are returned.
    """
    before = {entry.node: entry.milliseconds for entry in reference if entry.milliseconds is not None}
    lost = {
        entry.node: (entry.milliseconds or 0.0) - before.get(entry.node, 0.0)
        for entry in placement
        if is_pair_operator(entry.operator) or entry.node in before or (entry.why and entry.kernel)
    }
    suspects = [entry for entry in placement if lost.get(entry.node, -1.0) >= 0]
    suspects = suspects or [entry for entry in placement if entry.milliseconds]
    ranked = sorted(suspects, key=lambda entry: -lost.get(entry.node, entry.milliseconds or 0.0))
    return tuple(ranked[:_NAMED_NODES])
