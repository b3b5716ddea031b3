"""Samples on a GPU, joined where a model gives each what it would give alone.

This module imports torch, so it is imported inside functions only.
"""

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from quantry.observe import CalibrationData
from quantry.observe.segments import values_used
from quantry.tune.tensor_part import TensorPart

_PART_AT_ONCE, _LARGER = 0.25, 32
"""What a part of a model may hold while it runs, of the GPU's memory; and how much larger than inputs that is."""

_CPU_BYTES = 2**30

Tensors = dict[str, Any]


class TensorSamples:
    """The samples of calibration data on a device.

    Args:
        data: The samples.
        model: The graph that they are for; all its nodes are interpretable.
        device: Where they go.

    Attributes:
        device: The device.
        chunks: Numbers of the samples that are together.
        tensors: What the model is fed for each chunk, by name.
    """

    def __init__(self, data: CalibrationData, model: ir.Model, device: str) -> None:
        self.device = device
        self.chunks: list[range] = []
        self.tensors: list[Tensors] = []
        moved = [{name: torch.from_numpy(array.copy()).to(device) for name, array in one.items()} for one in data]
        together = self._together(moved, model)
        while moved:
            count = next((at for at, one in enumerate(moved) if _shapes(one) != _shapes(moved[0])), len(moved))
            chosen, moved = moved[: min(count, together)], moved[min(count, together) :]
            first = self.chunks[-1].stop if self.chunks else 0
            self.chunks.append(range(first, first + len(chosen)))
            self.tensors.append(chosen[0] if len(chosen) == 1 else _joined(chosen))

    def _together(self, samples: Sequence[Tensors], model: ir.Model) -> int:
        if len(samples) < 2 or not _joins(model, samples[:2], self.device):
            return 1
        largest: int = max(tensor.numel() * tensor.element_size() for tensor in samples[0].values())
        return max(1, room_of(self.device, _PART_AT_ONCE) // max(1, _LARGER * largest))


def room_of(device: str, part: float) -> int:
    """Return how many bytes a part of a device's memory is."""
    if torch.device(device).type != "cuda":
        return _CPU_BYTES
    return int(torch.cuda.get_device_properties(device).total_memory * part)


def _shapes(sample: Tensors) -> dict[str, Any]:
    return {name: tensor.shape for name, tensor in sample.items()}


def _joined(samples: Sequence[Tensors]) -> Tensors:
    return {name: torch.cat([sample[name] for sample in samples]) for name in samples[0]}


def _joins(model: ir.Model, samples: Sequence[Tensors], device: str) -> bool:
    """Return whether two samples at once give in every tensor what each gives alone."""
    shapes = _shapes(samples[0])
    if shapes != _shapes(samples[1]) or any(not shape for shape in shapes.values()):
        return False
    nodes, names = list(model.graph), _fed_names(model)
    part = TensorPart(model, device)
    try:
        alone = [part.run(nodes, sample, names) for sample in samples]
        both = part.run(nodes, _joined(samples), names)
    except RuntimeError:
        return False
    return all(_alike(both[name], [one[name] for one in alone]) for name in names)


def _fed_names(model: ir.Model) -> list[str]:
    """Return the tensors that depend on what a model is fed."""
    fed = set(model.graph.inputs)
    names = []
    for node in model.graph:
        if any(value in fed for value in values_used(node)):
            fed.update(node.outputs)
            names += [value.name for value in node.outputs[:1] if value.name]
    return names


def _alike(both: Any, alone: Sequence[Any]) -> bool:
    if not alone[0].dim() or alone[0].shape != alone[1].shape:
        return False
    expected = torch.cat(list(alone))
    if both.shape != expected.shape:
        return False
    # Sums are ordered otherwise for another batch; a model that mixes its samples is off by far more.
    return float((both.float() - expected.float()).norm()) <= 1e-2 * float(expected.float().norm()) + 1e-6
