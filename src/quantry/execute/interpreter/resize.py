"""Resize and Upsample, nearest and linear, one axis after the other."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from quantry.execute.interpreter.attributes import Attributes

Inputs = list[Any]

_NEAREST: dict[str, Callable[[Any], Any]] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _positions(length: int, goal: int, factor: float, mode: str) -> Any:
    """Return where each output lies among the inputs."""
    at = np.arange(goal, dtype=np.float64)
    if mode == "asymmetric":
        return at / factor
    if mode == "align_corners":
        return at * (length - 1) / max(1, goal - 1)
    if mode == "pytorch_half_pixel" and goal == 1:
        return np.zeros(1)
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (at + 0.5) / factor - 0.5
    raise NotImplementedError(f"Resize with coordinate mode {mode}")


def _along(values: Any, axis: int, positions: Any, attributes: Attributes) -> Any:
    last = values.shape[axis] - 1
    if attributes.text("mode", "nearest") == "nearest":
        index = _NEAREST[attributes.text("nearest_mode", "round_prefer_floor")](positions)
        return values.index_select(axis, _index(index, last, values))
    low = np.floor(positions)
    part = torch.tensor(positions - low, dtype=values.dtype, device=values.device)
    part = part.reshape([-1 if at == axis else 1 for at in range(values.dim())])
    first = values.index_select(axis, _index(low, last, values))
    second = values.index_select(axis, _index(low + 1, last, values))
    return first + (second - first) * part


def _index(positions: Any, last: int, values: Any) -> Any:
    return torch.tensor(np.clip(positions, 0, last).astype(np.int64), device=values.device)


def _resize(inputs: Inputs, attributes: Attributes) -> Any:
    values = inputs[0]
    if attributes.text("mode", "nearest") not in ("nearest", "linear"):
        raise NotImplementedError(f"Resize with mode {attributes.text('mode')}")
    given = [entry if entry is not None and entry.numel() else None for entry in inputs[1:]]
    given += [None] * (3 - len(given))
    scales: Any = given[1]
    sizes: Any = given[2]
    axes = attributes.integers("axes", range(values.dim()))
    mode = attributes.text("coordinate_transformation_mode", "half_pixel")
    for at, axis in enumerate(axes):
        length = values.shape[axis]
        factor = float(scales[at]) if scales is not None else float(sizes[at]) / length
        goal = int(np.floor(length * factor)) if scales is not None else int(sizes[at])
        # A size of 1 on the batch axis of a model that is run on several samples at once.
        if (goal == length and factor == 1.0) or axis == 0:
            continue
        values = _along(values, axis, _positions(length, goal, factor, mode), attributes)
    return values


RESIZE: dict[str, Callable[[Inputs, Attributes], Any]] = {"Resize": _resize}
