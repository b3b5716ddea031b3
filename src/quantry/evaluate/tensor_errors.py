"""How far each tensor of the quantized model is from the float one, with all the error that has gathered before it."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantry.evaluate.metrics.decibel import unlimited_decibels
from quantry.evaluate.pairing import pair_outputs
from quantry.evaluate.sessions import run_session, simulation_session

GROUP_BYTES = 1 << 28
"""Memory for the tensors of one run of one model; more tensors than that take several runs."""


def tensor_errors(
    reference: ir.Model,
    quantized: ir.Model,
    names: Sequence[str],
    samples: Iterable[Mapping[str, NDArray[Any]]],
    limit: int,
) -> dict[str, float]:
    """Return the signal-to-noise ratio in dB of every tensor that both models have.

    Args:
        reference: The float model that was quantized.
        quantized: The quantized model.
        names: Tensors of interest; those that only one model has are left out.
        samples: What to feed to both.
        limit: Use at most this many samples.

    Returns:
        By name, in the given order: 10 log10 of signal over noise; infinite where nothing differs. Tensors that are not
        float, or become NaN or infinite in one model only, are left out.
    """
    both = _produced(reference) & _produced(quantized)
    shown = [name for name in names if name in both]
    feeds = list(islice(samples, limit))
    powers: dict[str, tuple[float, float]] = {}
    for group in _groups(reference, shown):
        expected = simulation_session(_showing(reference, group), in_turn=True)
        got = simulation_session(_showing(quantized, group), in_turn=True)
        for feed in feeds:
            ours, theirs = run_session(expected, feed), run_session(got, feed)
            for name in group:
                _add(powers, name, ours[name], theirs[name])
    return {
        name: unlimited_decibels(*powers[name]) for name in shown if name in powers and not math.isnan(powers[name][0])
    }


def _produced(model: ir.Model) -> set[str]:
    return {value.name for node in model.graph for value in node.outputs if value.name}


def _groups(model: ir.Model, names: Sequence[str]) -> Iterator[list[str]]:
    sizes = {value.name: _bytes(value) for node in model.graph for value in node.outputs}
    group: list[str] = []
    total = 0
    for name in names:
        if group and total + sizes[name] > GROUP_BYTES:
            yield group
            group, total = [], 0
        group.append(name)
        total += sizes[name]
    if group:
        yield group


def _bytes(value: ir.Value) -> int:
    shape = value.shape
    return (
        4 * math.prod(dim if isinstance(dim, int) else 1 for dim in shape) if shape is not None else GROUP_BYTES // 64
    )


def _showing(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """Return a copy whose outputs are these tensors."""
    copy = model.clone()
    by_name = {value.name: value for node in copy.graph for value in node.outputs}
    copy.graph.outputs.clear()
    copy.graph.outputs.extend(by_name[name] for name in names)
    return copy


def _add(powers: dict[str, tuple[float, float]], name: str, ours: NDArray[Any], theirs: NDArray[Any]) -> None:
    if ours.dtype.kind != "f":
        return
    pair = pair_outputs(ours, theirs)
    if pair is None:
        powers[name] = (math.nan, math.nan)
        return
    signal, noise = powers.get(name, (0.0, 0.0))
    difference = pair.reference - pair.quantized
    powers[name] = (
        signal + float(np.vdot(pair.reference, pair.reference)),
        noise + float(np.vdot(difference, difference)),
    )
