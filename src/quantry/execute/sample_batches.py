"""Samples as torch tensors, several at once where the model allows it.

This module imports torch, so it is imported inside functions only.
"""

from collections.abc import Sequence
from typing import Any

import torch

from quantry.data.calibration_data import CalibrationData
from quantry.errors import RecipeError
from quantry.execute.float_pass import lengths_of
from quantry.execute.trainable_graph import TrainableGraph
from quantry.graph.segments import tensor_types

Tensors = dict[str, Any]

_CPU_BYTES = 1_500_000_000
_GPU_PART = 0.5
_COPIES = 5
"""How often training holds each activation: raw, quantized, masks and what derivatives need."""


def torch_device(device: str) -> str:
    """Return torch's name of a device.

    Raises:
        RecipeError: torch cannot use it here.
    """
    kind, _, number = device.partition(":")
    if kind == "cpu":
        return "cpu"
    # torch built for AMD's GPUs calls them by the same name.
    if not torch.cuda.is_available():
        raise RecipeError(
            f"the device to train on must be one that torch can use, got {device!r} without a GPU; in tune"
        )
    # Products of shortened float32 numbers would be less exact than the grids that are trained here.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    return f"cuda:{number.split(',')[0]}"


class SampleBatches:
    """The samples of calibration data, joined along their first axis on demand.

    Args:
        data: The samples.
        graph: What will be computed on them; decides how many fit at once.
        device: Where they go.
    """

    def __init__(self, data: CalibrationData, graph: TrainableGraph, model: Any, device: str) -> None:
        self.samples = [{name: torch.from_numpy(array.copy()) for name, array in sample.items()} for sample in data]
        self._device = device
        first = next(iter(data))
        lengths = lengths_of(first, data.inputs)
        held = _COPIES * sum(kind.nbytes(lengths) for kind in tensor_types(model).values())
        budget = _CPU_BYTES if device == "cpu" else _GPU_PART * torch.cuda.get_device_properties(device).total_memory
        self.together = max(1, int(budget // max(1, held))) if self._joins(graph) else 1

    def __len__(self) -> int:
        return len(self.samples)

    def get(self, numbers: Sequence[int]) -> Tensors:
        """Return some samples together, on the device."""
        chosen = [self.samples[number] for number in numbers]
        if len(chosen) == 1:
            return {name: tensor.to(self._device) for name, tensor in chosen[0].items()}
        return {name: torch.cat([sample[name] for sample in chosen]).to(self._device) for name in chosen[0]}

    def _joins(self, graph: TrainableGraph) -> bool:
        """Return whether two samples at once give what each gives alone."""
        if len(self.samples) < 2:
            return False
        shapes = [{name: tensor.shape for name, tensor in sample.items()} for sample in self.samples]
        if any(shape != shapes[0] for shape in shapes) or any(not shape for shape in shapes[0].values()):
            return False
        last = [value.name or "" for value in graph.nodes[-1].outputs[:1]]
        try:
            with torch.no_grad():
                alone = [graph.run(self.get([number]), last, quantized=False)[last[0]] for number in (0, 1)]
                both = graph.run(self.get([0, 1]), last, quantized=False)[last[0]]
        except RuntimeError:
            return False
        expected = torch.cat(alone) if alone[0].dim() else alone[0]
        if both.shape != expected.shape:
            return False
        # Sums are ordered otherwise for another batch; a model that mixes its samples is off by far more.
        return float((both - expected).float().norm()) <= 1e-2 * float(expected.float().norm()) + 1e-6
