"""Goes through the layers of a model with an algorithm for one layer."""

import logging
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from quantry.memo import checkpoint
from quantry.recipe import LayerTuning
from quantry.tune.end_to_end import EndToEnd
from quantry.tune.layer import Layer, SkippedLayer, find_layers
from quantry.tune.layer_constants import LayerConstants
from quantry.tune.task import TuneTask
from quantry.tune.tuned import Tuned
from quantry.tune.walker import LayerVisit, LayerWalker

_LOG = logging.getLogger("quantry.tune")


def tune_layers(
    task: TuneTask, options: LayerTuning, title: str, algorithm: Callable[[LayerVisit], LayerConstants]
) -> Tuned:
    """Return what an algorithm makes of all layers of a model.

    Each layer's result is a part of its own in the store, so a run that was interrupted or killed goes on after the
    last layer that was finished.

    Args:
        task: What is tuned.
        options: Which layers, samples and devices.
        title: The algorithm's name.
        algorithm: From a layer with its inputs and targets to its new constants.
    """
    layers, skipped = find_layers(task.model.model, task.plan, options.operators)
    if not layers:
        return Tuned({}, task.params, (f"{title}: no layer could be tuned", *_skips(title, skipped)))
    walker = LayerWalker(task, layers, options)
    judge = EndToEnd(task, options) if options.selective else None
    weights: dict[str, np.ndarray] = {}
    results: list[LayerConstants] = []
    for visit in walker.visits(f"tune: {title}"):
        result = checkpoint(f"layer {visit.number} {visit.layer.name}", LayerConstants, partial(algorithm, visit))
        _LOG.debug("%s: layer %s: error %.4g -> %.4g", title, visit.layer.name, result.before, result.after)
        if judge is not None and not judge.accepts(visit.number, result.values):
            result = LayerConstants({}, result.before, result.before)
        visit.finish(result.values)
        weights |= result.values
        results.append(result)
    notes = (_summary(title, layers, results), *_skips(title, skipped), *_unsimulated(walker))
    return Tuned(weights, task.params, notes)


def _summary(title: str, layers: Sequence[Layer], results: Sequence[LayerConstants]) -> str:
    changed = sum(1 for result in results if result.values)
    ratios = [result.before / result.after for result in results if result.after > 0 and result.before > 0]
    gain = float(np.exp(np.mean(np.log(ratios)))) if ratios else 1.0
    return f"{title}: {changed} of {len(layers)} layers tuned; mean output error fell to 1/{gain:.2f}"


def _skips(title: str, skipped: Sequence[SkippedLayer]) -> tuple[str, ...]:
    reasons: dict[str, list[str]] = {}
    for layer in skipped:
        reasons.setdefault(layer.reason, []).append(layer.node)
    return tuple(
        f"{title}: {len(nodes)} layers left alone, such as {nodes[0]!r}: {reason}" for reason, nodes in reasons.items()
    )


def _unsimulated(walker: LayerWalker) -> tuple[str, ...]:
    left = walker.simulation.left_float
    if not left:
        return ()
    return (f"tune: {len(left)} tensors, such as {left[0]!r}, were taken as float: their type is not simulated here",)
