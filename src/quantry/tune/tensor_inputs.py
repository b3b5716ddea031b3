"""What a layer is fed and what it should give, on a GPU.

This module imports torch, so it is imported inside functions only.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from quantry.execute.quantized_view import Role
from quantry.execute.simulation import Simulation
from quantry.execute.tensor_stream import TensorStream
from quantry.numerics.tensor_params import TensorParams
from quantry.numerics.torch_quantizer import fake_quantize
from quantry.recipe import LayerTuning
from quantry.tune.layer import Layer

Pair = tuple[Sequence[int], Any, Any]


class TensorInputs:
    """Reads pairs of inputs and targets from two streams; the walker's `fed` and `target`, for many samples at once.

    Args:
        simulation: The quantized model.
        options: How inputs are mixed.
        exact: The stream of the float model.
        quantized: The stream of the quantized one.
    """

    def __init__(
        self, simulation: Simulation, options: LayerTuning, exact: TensorStream, quantized: TensorStream
    ) -> None:
        self._simulation, self._options = simulation, options
        self._exact, self._quantized = exact, quantized

    def pairs(self, layer: Layer, seed: int) -> Iterator[Pair]:
        """Yield numbers of samples, what a layer is fed for them and what it gives in the float model.

        Args:
            layer: The layer.
            seed: Of what is drawn where inputs are mixed.
        """
        held = self._simulation.integers.get(layer.source, layer.source)
        part = self._options.quantized_inputs
        targets = self._exact.tensors(layer.output)
        for number, ((samples, integers), (_, target)) in enumerate(
            zip(self._quantized.tensors(held), targets, strict=True)
        ):
            values = self._read(layer, integers)
            if part < 1.0:
                values = _mixed(values, self._exact.chunk(layer.source, number), part, (seed, samples[0]))
            yield samples, values, target.float()

    def _read(self, layer: Layer, values: Any) -> Any:
        """Return a layer's input as it reads it."""
        for quantizer in self._simulation.view.path(layer.source, layer.name):
            if quantizer.params is None:
                continue
            scale, zero_point, limits = _parts(quantizer.params, values.device)
            if quantizer.role is Role.CONVERSION:
                values = fake_quantize(values.float(), scale, zero_point, limits, quantizer.params.axis)
            elif not values.is_floating_point():
                values = (values.float() - zero_point) * scale
        return values.float()


def _parts(params: TensorParams, device: Any) -> tuple[Any, Any, tuple[int, int]]:
    scale, zero_point = (torch.tensor(part, device=device) for part in (params.scale, params.zero_point))
    return scale, zero_point.float(), (params.lowest, params.highest)


def _mixed(values: Any, exact: Any, part: float, seed: tuple[int, int]) -> Any:
    random = torch.Generator(values.device)
    random.manual_seed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1))
    return torch.where(torch.rand(values.shape, generator=random, device=values.device) < part, values, exact.float())
