"""One pass over the data, in which the roots' values are counted."""

from collections.abc import Mapping, Sequence
from contextlib import closing

import numpy as np
import onnx_ir as ir

from quantry.data.calibration_data import CalibrationData
from quantry.execute.float_pass import float_pass, lengths_of
from quantry.graph.segments import cut_into_segments, tensor_types
from quantry.numerics.scalar_function import TurningPoint, turning_points
from quantry.observe.derive import RootStats
from quantry.observe.lineage import Lineage
from quantry.observe.tensor_counter import CountingSpace, TensorCounter
from quantry.runtime.progress import progress

Roots = Mapping[str, RootStats]


def observe_roots(
    model: ir.Model, data: CalibrationData, providers: Sequence[str], lineage: Lineage, axes: Mapping[str, int]
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
    lengths = lengths_of(next(iter(data)), data.inputs)
    segments = cut_into_segments(model, [name for name in turns if name not in inputs], lengths)
    steps_in_all = None if data.size is None else data.size * (1 + len(segments))
    space = CountingSpace()
    counters: dict[str, TensorCounter] = {}
    samples = 0
    with closing(float_pass(segments, tensor_types(model), data, providers)) as steps:
        for index, tensors in progress(steps, "observing", steps_in_all):
            for name, values in tensors.items():
                if name not in turns or values.dtype != np.float32:
                    continue
                if name not in counters:
                    counters[name] = TensorCounter(space, turns[name], axes.get(name))
                counters[name].add(values)
            samples = index + 1
    # Each histogram is let go as soon as it has been summed up.
    return {name: counters.pop(name).freeze() for name in list(counters)}, samples


def _turns_by_root(lineage: Lineage) -> dict[str, tuple[TurningPoint, ...]]:
    """Return the roots in order, each with the turning points of all functions derived from it."""
    turns: dict[str, dict[TurningPoint, None]] = {}
    for terms in lineage.values():
        for term in terms:
            turns.setdefault(term.root, {}).update(dict.fromkeys(turning_points(term.function) or ()))
    return {root: tuple(points) for root, points in turns.items()}
