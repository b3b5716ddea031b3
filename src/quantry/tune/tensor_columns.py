"""Columns, targets and second moments of a layer on a GPU; see `layer_matrix` and `quadratic`.

This module imports torch, so it is imported inside functions only.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows

from quantry.graph.operators import MATRIX_PRODUCTS
from quantry.tune.layer import NORMALIZATIONS
from quantry.tune.layer_matrix import LayerMatrix, Window, window_of
from quantry.tune.quadratic import centred, halves_of, positions_of
from quantry.tune.tensor_quadratic import TensorQuadratic
from quantry.tune.walker import LayerVisit

_MORE = 4
"""So many more positions are taken in than on the processor; products are cheap here."""

_NUMBERS_AT_ONCE, _POSITIONS = 2**26, 2048
"""Products are summed up in float64 after so many positions."""


def gathers(matrix: LayerMatrix) -> bool:
    """Return whether `gather_tensors` knows a layer's operator."""
    return matrix.operator not in NORMALIZATIONS


def gather_tensors(visit: LayerVisit, matrix: LayerMatrix, *, trained: bool = False) -> tuple[TensorQuadratic, ...]:
    """Return the quadratic form of a layer for each half of its samples, from one pass over them.

    Args:
        visit: Inputs and targets, on a GPU.
        matrix: The layer as a product of matrices.
        trained: Whether the form is for training, for which fewer positions are enough.

    Returns:
        Two forms; one where there is but one sample, of one image, and where there are too few positions to learn from.
    """
    share = _MORE * positions_of(matrix, visit.samples, trained=trained)
    halves = _Sums(), _Sums()
    random = None
    for numbers, values, output in visit.tensor_pairs():
        if random is None:
            random = torch.Generator(values.device)
            random.manual_seed(visit.seed)
        images = values.shape[0] // len(numbers) if values.dim() > 2 else 1
        most = max(1, share // images)
        for half, samples, fed, target in _halves(matrix, (numbers, visit.samples), values, output):
            for columns, targets in tensor_columns(matrix, fed, target, (most, samples), random):
                halves[half].add(columns, targets)
    return tuple(half.form() for half in halves if half.count)


def _halves(
    matrix: LayerMatrix, samples: tuple[Sequence[int], int], values: Any, output: Any
) -> Iterator[tuple[int, int, Any, Any]]:
    """Yield for each half its number, how many samples are in it, and their inputs and targets."""
    numbers, count = samples
    sizes = (len(values) if values.dim() > 1 else 1, output.numel())
    found = [halves_of(matrix, (number, count), (sizes[0], sizes[1] // len(numbers))) for number in numbers]
    if len(numbers) == 1:
        for half, images in found[0]:
            yield half, 1, values[images], output[images]
        return
    for half in (0, 1):
        chosen = [at for at, halves in enumerate(found) if halves[0][0] == half]
        if chosen:
            parts = (tensor.unflatten(0, (len(numbers), -1))[chosen].flatten(0, 1) for tensor in (values, output))
            yield half, len(chosen), *parts


class _Sums:
    """Adds up second moments of columns and targets."""

    def __init__(self) -> None:
        self.count = 0
        self._sums: list[Any] = []

    def add(self, columns: Any, targets: Any) -> None:
        """Take in columns and their targets."""
        self.count += columns.shape[1]
        for moments in _moments(columns, targets):
            self._sums = [a.add_(b) for a, b in zip(self._sums, moments, strict=True)] if self._sums else moments

    def form(self) -> TensorQuadratic:
        """Return the quadratic form."""
        return TensorQuadratic(*centred([total.div_(self.count) for total in self._sums]), count=self.count)


def tensor_columns(
    matrix: LayerMatrix, values: Any, output: Any, most: tuple[int, int], random: Any
) -> Iterator[tuple[Any, Any]]:
    """Yield columns and the outputs that belong to them, not too many at a time.

    Args:
        matrix: The layer.
        values: Input of the layer, samples joined along the first axis.
        output: What it gives for that input, or should give.
        most: At most so many positions of an image or, where there are no images, of a sample; and how many samples
            there are.
        random: A generator on their device.

    Yields:
        float32 ``[groups, positions, width]`` and ``[groups, positions, rows]``; tokens divided by their size.
    """
    if matrix.operator in MATRIX_PRODUCTS:
        flat, rows = values.reshape(-1, values.shape[-1]), output.reshape(-1, output.shape[-1])
        chosen = _chosen(1, len(flat), most[0] * most[1], random)[0]
        yield matrix.by_size(flat[chosen][None], rows[chosen][None])
        return
    lengths, outputs = tuple(values.shape[2:]), tuple(output.shape[2:])
    window = window_of(matrix.layer.node, matrix.shape[2:], lengths, outputs)
    positions = _chosen(len(values), prod(outputs), most[0], random)
    image_numbers = values.shape[1] * positions.shape[1] * prod(window.kernel)
    together = max(1, _NUMBERS_AT_ONCE // image_numbers)
    for start in range(0, len(values), together):
        part = slice(start, start + together)
        yield _patches(matrix, window, values[part], output[part], positions[part])


def _patches(matrix: LayerMatrix, window: Window, values: Any, output: Any, positions: Any) -> tuple[Any, Any]:
    spread = _spread(window, values)
    index = _index(window, positions, tuple(spread.shape[2:]), tuple(output.shape[2:]))
    images, channels = spread.shape[:2]
    groups, places = matrix.groups, positions.shape[1]
    flat = index.reshape(images, 1, -1).expand(images, channels, -1)
    seen = spread.reshape(images, channels, -1).gather(2, flat)
    seen = seen.reshape(images, groups, channels // groups, places, -1).permute(1, 0, 3, 2, 4)
    rows = output.shape[1]
    targets = output.reshape(images, rows, -1).gather(2, positions[:, None].expand(images, rows, -1))
    targets = targets.reshape(images, groups, rows // groups, places).permute(1, 0, 3, 2)
    return seen.reshape(groups, images * places, -1), targets.reshape(groups, images * places, -1)


def _spread(window: Window, values: Any) -> Any:
    """Return images with zeros between and around; a crop is a negative margin."""
    if any(step > 1 for step in window.zeros):
        lengths = [(length - 1) * step + 1 for length, step in zip(values.shape[2:], window.zeros, strict=True)]
        inside = values.new_zeros(*values.shape[:2], *lengths)
        inside[(..., *(slice(None, None, step) for step in window.zeros))] = values
        values = inside
    margins = [m for pair in reversed(list(zip(window.before, window.after, strict=True))) for m in pair]
    return F.pad(values, margins) if any(margins) else values


def _index(window: Window, positions: Any, lengths: tuple[int, ...], outputs: tuple[int, ...]) -> Any:
    """Return for each output position the flat positions that the kernel sees, ``[images, positions, kernel]``."""
    at = torch.zeros_like(positions)
    rest = positions
    for axis in reversed(range(len(outputs))):
        at += rest % outputs[axis] * (window.strides[axis] * prod(lengths[axis + 1 :]))
        rest = rest // outputs[axis]
    steps = [dilation * prod(lengths[axis + 1 :]) for axis, dilation in enumerate(window.dilations)]
    taps = [sum(a * b for a, b in zip(tap, steps, strict=True)) for tap in product(*map(range, window.kernel))]
    return at[:, :, None] + torch.tensor(taps, device=at.device)


def _chosen(images: int, count: int, most: int, random: Any) -> Any:
    """Return positions of each image, all or some that are drawn."""
    if count <= most:
        return torch.arange(count, device=random.device).expand(images, -1)
    drawn = torch.rand(images, count, generator=random, device=random.device)
    return drawn.topk(most, dim=1, sorted=False).indices


def _moments(columns: Any, targets: Any) -> Iterator[list[Any]]:
    """Yield sums over positions in float64: of columns times columns and targets, of squares, columns and targets."""
    groups, _, width = columns.shape
    numbers = groups * width * (width + targets.shape[2])
    at_once = _POSITIONS * max(1, _NUMBERS_AT_ONCE // numbers)
    for part in zip(*(values.split(at_once, 1) for values in (columns, targets)), strict=True):
        whole = part[0].shape[1] // _POSITIONS * _POSITIONS
        for bounds, blocks in ((slice(0, whole), whole // _POSITIONS), (slice(whole, None), 1)):
            if part[0][:, bounds].shape[1]:
                yield _block_sums(*(values[:, bounds].unflatten(1, (blocks, -1)) for values in part))


def _block_sums(columns: Any, targets: Any) -> list[Any]:
    turned = columns.transpose(2, 3)
    products = [(turned @ values).sum(1, dtype=torch.float64) for values in (columns, targets)]
    return products + [values.sum((1, 2), dtype=torch.float64) for values in (targets.square(), columns, targets)]
