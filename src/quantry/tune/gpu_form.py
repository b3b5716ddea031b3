"""The output error of a layer as a quadratic form, gathered on a GPU; see `quantry.tune.quadratic_form`.

This module imports torch, so it is imported inside functions only.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name

from quantry.execute.quantized_view import Role
from quantry.execute.simulation import Simulation
from quantry.execute.torch_stream import TorchStream
from quantry.facts.operators import MATRIX_PRODUCTS
from quantry.numerics.torch_quantizer import fake_quantize_as
from quantry.recipe import LayerTuning
from quantry.tune.layer_matrix import LayerMatrix, Window, window_of
from quantry.tune.layer_problem import LayerProblem
from quantry.tune.layers import NORMALIZATIONS, Layer
from quantry.tune.layerwise import LayerVisit
from quantry.tune.quadratic_form import QuadraticForm, add_sums, images_of_halves, positions_of

# Products are cheap on a GPU, so it gathers this many times the positions of the CPU.
_MORE = 4

# Products are added up in float64 after this many positions, and computed for this many numbers at a time.
_POSITIONS = 2048
_NUMBERS_AT_ONCE = 2**26


def device_form(problem: LayerProblem, device: str) -> QuadraticForm:
    """Return the quadratic form of a layer on a device; gathered there if its activations are there.

    Args:
        problem: The layer, which compensates errors of its inputs.
        device: Where the form goes.
    """

    def load(array: Any) -> Any:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    if problem.visit.walker.device is None:
        return problem.quadratic.converted(load)
    halves = gather_tensors(problem.visit, problem.matrix, trained=problem.trained)
    return problem.form_of(halves, load, torch.linalg.solve)


def gathers(matrix: LayerMatrix) -> bool:
    """Return whether `gather_tensors` supports a layer's operator."""
    return matrix.operator not in NORMALIZATIONS


def gather_tensors(visit: LayerVisit, matrix: LayerMatrix, *, trained: bool = False) -> tuple[QuadraticForm, ...]:
    """Return the quadratic form of a layer for each half of its samples, from one pass over them.

    Args:
        visit: Inputs and targets, on a GPU.
        matrix: The layer as a product of matrices.
        trained: Whether the form is for training, for which fewer positions are enough.

    Returns:
        Two forms; one if there is only one sample with one image, or if there are too few positions for two halves.
    """
    share = _MORE * positions_of(matrix, visit.samples, trained=trained)
    counts = [0, 0]
    halves: tuple[list[Any], list[Any]] = [], []
    random = None
    for numbers, values, output in visit.tensor_pairs():
        if random is None:
            random = torch.Generator(values.device)
            random.manual_seed(visit.seed)
        images = values.shape[0] // len(numbers) if values.dim() > 2 else 1
        most = max(1, share // images)
        for half, samples, fed, target in _halves(matrix, (numbers, visit.samples), values, output):
            for columns, targets in tensor_columns(matrix, fed, target, (most, samples), random):
                counts[half] += columns.shape[1]
                for sums in _moments(columns, targets):
                    add_sums(halves[half], sums)
    return tuple(QuadraticForm.of_sums(*half) for half in zip(halves, counts, strict=True) if half[1])


def _halves(
    matrix: LayerMatrix, samples: tuple[Sequence[int], int], values: Any, output: Any
) -> Iterator[tuple[int, int, Any, Any]]:
    """Yield for each half its number, its number of samples, and their inputs and targets."""
    numbers, count = samples
    sizes = (len(values) if values.dim() > 1 else 1, output.numel())
    images_by_sample = [
        images_of_halves(matrix, (number, count), (sizes[0], sizes[1] // len(numbers))) for number in numbers
    ]
    if len(numbers) == 1:
        for half, images in images_by_sample[0]:
            yield half, 1, values[images], output[images]
        return
    for half in (0, 1):
        members = [at for at, halves in enumerate(images_by_sample) if halves[0][0] == half]
        if members:
            tensors = (tensor.unflatten(0, (len(numbers), -1))[members].flatten(0, 1) for tensor in (values, output))
            yield half, len(members), *tensors


def tensor_columns(
    matrix: LayerMatrix, values: Any, output: Any, most: tuple[int, int], random: Any
) -> Iterator[tuple[Any, Any]]:
    """Yield columns and the outputs that belong to them, in parts that fit in memory.

    Args:
        matrix: The layer.
        values: Input of the layer, samples joined along the first axis.
        output: Its output for that input, or its target.
        most: Upper bound of the positions of an image or, without images, of a sample; and the number of samples.
        random: A generator on their device.

    Yields:
        float32 ``[groups, positions, width]`` and ``[groups, positions, rows]``; tokens divided by their size.
    """
    if matrix.operator in MATRIX_PRODUCTS:
        flat, rows = values.reshape(-1, values.shape[-1]), output.reshape(-1, output.shape[-1])
        drawn = _chosen(1, len(flat), most[0] * most[1], random)[0]
        yield matrix.by_size(flat[drawn][None], rows[drawn][None])
        return
    lengths, outputs = tuple(values.shape[2:]), tuple(output.shape[2:])
    window = window_of(matrix.layer.node, matrix.shape[2:], lengths, outputs)
    positions = _chosen(len(values), prod(outputs), most[0], random)
    image_numbers = values.shape[1] * positions.shape[1] * prod(window.kernel)
    together = max(1, _NUMBERS_AT_ONCE // image_numbers)
    for start in range(0, len(values), together):
        images = slice(start, start + together)
        yield _patches(matrix, window, values[images], output[images], positions[images])


def _patches(matrix: LayerMatrix, window: Window, values: Any, output: Any, positions: Any) -> tuple[Any, Any]:
    spread = _spread(window, values)
    index = window.index(positions, tuple(spread.shape[2:]), tuple(output.shape[2:]))
    images, channels = spread.shape[:2]
    groups, count = matrix.groups, positions.shape[1]
    flat = index.reshape(images, 1, -1).expand(images, channels, -1)
    patches = spread.reshape(images, channels, -1).gather(2, flat)
    patches = patches.reshape(images, groups, channels // groups, count, -1).permute(1, 0, 3, 2, 4)
    rows = output.shape[1]
    targets = output.reshape(images, rows, -1).gather(2, positions[:, None].expand(images, rows, -1))
    targets = targets.reshape(images, groups, rows // groups, count).permute(1, 0, 3, 2)
    return patches.reshape(groups, images * count, -1), targets.reshape(groups, images * count, -1)


def _spread(window: Window, values: Any) -> Any:
    """Return images with zeros inserted and padded; a negative margin crops."""
    if any(step > 1 for step in window.zeros):
        lengths = [(length - 1) * step + 1 for length, step in zip(values.shape[2:], window.zeros, strict=True)]
        inside = values.new_zeros(*values.shape[:2], *lengths)
        inside[(..., *(slice(None, None, step) for step in window.zeros))] = values
        values = inside
    margins = [m for pair in reversed(list(zip(window.before, window.after, strict=True))) for m in pair]
    return F.pad(values, margins) if any(margins) else values


def _chosen(images: int, count: int, most: int, random: Any) -> Any:
    """Return positions of each image: all, or some drawn at random."""
    if count <= most:
        return torch.arange(count, device=random.device).expand(images, -1)
    drawn = torch.rand(images, count, generator=random, device=random.device)
    return drawn.topk(most, dim=1, sorted=False).indices


def _moments(columns: Any, targets: Any) -> Iterator[list[Any]]:
    """Yield sums over positions in float64: of columns times columns and targets, of squares, columns and targets."""
    groups, _, width = columns.shape
    numbers = groups * width * (width + targets.shape[2])
    at_once = _POSITIONS * max(1, _NUMBERS_AT_ONCE // numbers)
    for pair in zip(*(values.split(at_once, 1) for values in (columns, targets)), strict=True):
        length = pair[0].shape[1] // _POSITIONS * _POSITIONS
        for bounds, blocks in ((slice(0, length), length // _POSITIONS), (slice(length, None), 1)):
            if pair[0][:, bounds].shape[1]:
                yield _block_sums(*(values[:, bounds].unflatten(1, (blocks, -1)) for values in pair))


def _block_sums(columns: Any, targets: Any) -> list[Any]:
    turned = columns.transpose(2, 3)
    products = [(turned @ values).sum(1, dtype=torch.float64) for values in (columns, targets)]
    return products + [values.sum((1, 2), dtype=torch.float64) for values in (targets.square(), columns, targets)]


Pair = tuple[Sequence[int], Any, Any]


class TensorInputs:
    """Reads inputs and targets of layers from two streams, for many samples at once.

    Args:
        simulation: The quantized model.
        options: How inputs are mixed.
        exact: The stream of the float model.
        quantized: The stream of the quantized one.
    """

    def __init__(
        self, simulation: Simulation, options: LayerTuning, exact: TorchStream, quantized: TorchStream
    ) -> None:
        self._simulation, self._options = simulation, options
        self._exact, self._quantized = exact, quantized

    def pairs(self, layer: Layer, seed: int) -> Iterator[Pair]:
        """Yield numbers of samples with the inputs and targets of a layer.

        Args:
            layer: The layer.
            seed: Seed of the random mix of quantized and float inputs.
        """
        name = self._simulation.integers.get(layer.source, layer.source)
        share = self._options.quantized_inputs
        targets = self._exact.tensors(layer.output)
        for number, ((samples, integers), (_, target)) in enumerate(
            zip(self._quantized.tensors(name), targets, strict=True)
        ):
            values = self._read(layer, integers)
            if share < 1.0:
                values = _mixed(values, self._exact.chunk(layer.source, number), share, (seed, samples[0]))
            yield samples, values, target.float()

    def _read(self, layer: Layer, values: Any) -> Any:
        """Return the input of a layer after all quantizers."""
        for quantizer in self._simulation.view.path(layer.source, layer.name):
            if quantizer.params is None:
                continue
            if quantizer.role is Role.CONVERSION:
                values = fake_quantize_as(values.float(), quantizer.params)
            elif not values.is_floating_point():
                params = (quantizer.params.scale, quantizer.params.zero_point)
                scale, zero_point = (torch.tensor(numbers, device=values.device) for numbers in params)
                values = (values.float() - zero_point.float()) * scale
        return values.float()


def _mixed(values: Any, exact: Any, share: float, seed: tuple[int, int]) -> Any:
    random = torch.Generator(values.device)
    random.manual_seed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1))
    return torch.where(torch.rand(values.shape, generator=random, device=values.device) < share, values, exact.float())
