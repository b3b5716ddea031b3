"""Resize by nearest neighbours, linear and cubic interpolation, in every way ONNX maps positions to positions."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional

_NEAREST: Mapping[str, Callable[[float], int]] = {
    "round_prefer_floor": lambda at: math.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: math.floor(at + 0.5),
    "floor": math.floor,
    "ceil": math.ceil,
}
_COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "align_corners")
_LINEAR_KINDS = {3: "linear", 4: "bilinear", 5: "trilinear"}


@dataclass(frozen=True)
class Kernel:
    """How the inputs around a position are weighted.

    Attributes:
        cubic: Coefficient of the cubic kernel, or None for the linear one.
        cut: Whether inputs outside the tensor have no weight.
        grows: Whether it grows where the output has fewer values than the input.
    """

    cubic: float | None
    cut: bool
    grows: bool

    @property
    def reach(self) -> float:
        """Distance from which on weights are 0."""
        return 1.0 if self.cubic is None else 2.0

    def weight(self, distance: float) -> float:
        """Return the weight of an input at a distance (Keys, "Cubic convolution interpolation", 1981)."""
        x, a = abs(distance), self.cubic
        if a is None:
            return max(0.0, 1.0 - x)
        if x < 1:
            return ((a + 2) * x - (a + 3)) * x * x + 1
        return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0


Changes = Mapping[int, tuple[int, float]]
"""New length and factor of each axis that changes."""


def resize(
    x: Tensor,
    *,
    scales: Sequence[float] = (),
    sizes: Sequence[int] = (),
    axes: Sequence[int] | None = None,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    antialias: int = 0,
    keep_batch: bool = False,
    in_order: bool = False,
) -> Tensor:
    """ONNX Resize, one axis after the other.

    Args:
        x: Any tensor.
        scales: Factor of each axis.
        sizes: New length of each axis, instead of factors.
        axes: The axes that are meant; None for all.
        mode: "nearest", "linear" or "cubic".
        coordinate_transformation_mode: How a position of the output maps to one of the input.
        nearest_mode: How that is rounded.
        cubic_coeff_a: Coefficient of the cubic kernel.
        exclude_outside: Whether values outside the input have no weight instead of being those of its border.
        antialias: Whether the kernel grows where the output has fewer values than the input.
        keep_batch: Whether the first axis stays as it is: a model of batch size 1 runs on several samples at once.
        in_order: Whether pictures are interpolated with the products and sums of onnxruntime in its order, so that
            every bit is the same.
    """
    resized = list(range(x.dim())) if axes is None else [axis % x.dim() for axis in axes]
    changes: dict[int, tuple[int, float]] = {}
    for index, axis in enumerate(resized):
        length = x.shape[axis]
        factor = _float32(scales[index] if scales else sizes[index] / length)
        goal = math.floor(_float32(length * factor)) if scales else int(sizes[index])
        if (goal, factor) != (length, 1.0) and not (keep_batch and axis == 0):
            changes[axis] = goal, factor
    if not changes:
        return x
    if mode == "nearest":
        return _resize_nearest(x, changes, coordinate_transformation_mode, nearest_mode)
    if mode == "linear" and not antialias and in_order and x.dim() == 4 and min(changes) >= 2:
        return _resize_in_order(x, changes, coordinate_transformation_mode)
    if mode == "linear" and not antialias:
        return _resize_linear(x, changes, coordinate_transformation_mode)
    for axis, (goal, factor) in changes.items():
        kernel = Kernel(cubic_coeff_a if mode == "cubic" else None, bool(exclude_outside), bool(antialias))
        rows = _weights(x.shape[axis], goal, factor, coordinate_transformation_mode, kernel)
        matrix = torch.tensor(rows, dtype=x.dtype, device=x.device)
        x = (x.movedim(axis, -1) @ matrix.t()).movedim(-1, axis)
    return x


def _resize_nearest(x: Tensor, changes: Changes, coordinates: str, rounding: str) -> Tensor:
    sources = {
        axis: _nearest(x.shape[axis], goal, factor, coordinates, rounding) for axis, (goal, factor) in changes.items()
    }
    if _spatial(x, changes) and all(_is_torch(index, x.shape[axis]) for axis, index in sources.items()):
        # torch has a kernel for its own rounding, which is also what upsampling by whole factors does in ONNX.
        return functional.interpolate(x, size=_size(x, changes), mode="nearest")
    for axis, index in sources.items():
        x = x.index_select(axis, torch.tensor(index, device=x.device))
    return x


def _resize_linear(x: Tensor, changes: Changes, coordinates: str) -> Tensor:
    if _spatial(x, changes) and _is_torch_linear(x, changes, coordinates):
        aligned = coordinates == "align_corners"
        return functional.interpolate(x, size=_size(x, changes), mode=_LINEAR_KINDS[x.dim()], align_corners=aligned)
    for axis, (goal, factor) in changes.items():
        low, high, share = _linear(x.shape[axis], goal, factor, coordinates)
        first, second = (x.index_select(axis, torch.tensor(index, device=x.device)) for index in (low, high))
        weight = torch.tensor(share, dtype=x.dtype, device=x.device)
        x = first + (second - first) * weight.reshape([-1 if at == axis else 1 for at in range(x.dim())])
    return x


def _resize_in_order(x: Tensor, changes: Changes, coordinates: str) -> Tensor:
    """Interpolate as onnxruntime does: four weights, each a rounded product, and three sums."""
    sides = []
    for axis in (2, 3):
        goal, factor = changes.get(axis, (x.shape[axis], 1.0))
        low, high, share = _linear(x.shape[axis], goal, factor, coordinates)
        # At the border both are the same input, which then counts half each.
        near = [1.0 - at if first != second else 0.5 for first, second, at in zip(low, high, share, strict=True)]
        far = [at if first != second else 0.5 for first, second, at in zip(low, high, share, strict=True)]
        shape = (-1, 1) if axis == 2 else (1, -1)
        weights = [torch.tensor(part, dtype=x.dtype, device=x.device).reshape(shape) for part in (near, far)]
        sides.append(([torch.tensor(index, device=x.device) for index in (low, high)], weights))
    (rows, (top, bottom)), (columns, (left, right)) = sides
    upper, lower = (x.index_select(2, index) for index in rows)
    (upper_left, upper_right), (lower_left, lower_right) = (
        [part.index_select(3, index) for index in columns] for part in (upper, lower)
    )
    result = left * top * upper_left + right * top * upper_right
    return result + left * bottom * lower_left + right * bottom * lower_right


def _spatial(x: Tensor, changes: Changes) -> bool:
    """Whether only spatial axes of ``[N, C, ...]`` change, which is what torch can interpolate."""
    return x.dim() in _LINEAR_KINDS and min(changes) >= 2 and x.is_floating_point()


def _size(x: Tensor, changes: Changes) -> list[int]:
    return [changes[axis][0] if axis in changes else x.shape[axis] for axis in range(2, x.dim())]


def _is_torch(index: Sequence[int], length: int) -> bool:
    """Whether torch's rounding, the floor of position times the ratio of lengths, picks the same values."""
    return list(index) == [at * length // len(index) for at in range(len(index))]


def _is_torch_linear(x: Tensor, changes: Changes, coordinates: str) -> bool:
    """Whether torch interpolates between the same values with the same weights."""
    longer = all(goal > 1 for goal, _ in changes.values())
    if coordinates == "align_corners":
        return longer
    # torch knows lengths only, so a factor must be exactly their ratio.
    exact = all(x.shape[axis] * factor == goal for axis, (goal, factor) in changes.items())
    return exact and (coordinates == "half_pixel" or (coordinates == "pytorch_half_pixel" and longer))


# Saves a loop over the output's length in every training step: lengths do not change, and a model has few of them.
@lru_cache(maxsize=256)
def _nearest(length: int, goal: int, factor: float, mode: str, rounding: str) -> tuple[int, ...]:
    """Return which input each output is a copy of."""
    near = _NEAREST[rounding]
    return tuple(min(max(near(at), 0), length - 1) for at in _positions(length, goal, factor, mode))


# The same as for nearest neighbors.
@lru_cache(maxsize=256)
def _linear(length: int, goal: int, factor: float, mode: str) -> tuple[list[int], list[int], list[float]]:
    """Return between which two inputs each output lies, and how near to the second."""
    positions = [min(max(at, 0.0), length - 1.0) for at in _positions(length, goal, factor, mode)]
    low = [math.floor(at) for at in positions]
    return low, [min(at + 1, length - 1) for at in low], [at - floor for at, floor in zip(positions, low, strict=True)]


# The same as for nearest neighbors.
@lru_cache(maxsize=256)
def _weights(length: int, goal: int, factor: float, mode: str, kernel: Kernel) -> list[list[float]]:
    """Return the weight of each input in each output."""
    wide = max(1.0, 1.0 / factor) if kernel.grows else 1.0
    rows = []
    for at in _positions(length, goal, factor, mode):
        row = [0.0] * length
        # Whole windows, as onnxruntime counts them; weights at their ends may be 0.
        first, last = math.floor(at - kernel.reach * wide), math.ceil(at + kernel.reach * wide)
        for position in range(first, last + 1):
            if not kernel.cut or 0 <= position < length:
                row[min(max(position, 0), length - 1)] += kernel.weight((position - at) / wide)
        total = sum(row)
        rows.append([weight / total for weight in row])
    return rows


def _positions(length: int, goal: int, factor: float, mode: str) -> list[float]:
    """Return where each output lies among the inputs, by the formulas of the ONNX standard.

    Every step is rounded to float32, as onnxruntime does: a position that is exactly between two inputs in one
    precision is next to one of them in another, and the nearest input then differs.
    """
    if mode == "asymmetric":
        return [_float32(at / factor) for at in range(goal)]
    if mode == "align_corners":
        return [_float32(at * (length - 1) / max(1, goal - 1)) for at in range(goal)]
    if mode == "pytorch_half_pixel" and goal == 1:
        return [0.0]
    centers = [_float32((at + 0.5) / factor) for at in range(goal)]
    offset = 0.0
    if mode == "half_pixel_symmetric":
        # The middle of the output stays the middle of the input although its length was rounded.
        offset = _float32(length / 2 * _float32(1 - _float32(goal / _float32(length * factor))))
    return [_float32(_float32(offset + center) - 0.5) for center in centers]


def _float32(number: float) -> float:
    """Return a number rounded to float32, in plain Python, which ``torch.compile`` can evaluate."""
    fraction, exponent = math.frexp(number)
    return math.ldexp(round(fraction * 2**24), exponent - 24)


def resize_refusal(node: ir.Node) -> str | None:
    """Return why a Resize cannot be computed, or None."""
    allowed = {
        "mode": ("nearest", "linear", "cubic"),
        "coordinate_transformation_mode": _COORDINATES,
        "nearest_mode": tuple(_NEAREST),
        "antialias": (0, 1),
        "keep_aspect_ratio_policy": ("stretch",),
    }
    for name, values in allowed.items():
        value = node.attributes[name].value if name in node.attributes else values[0]
        if value not in values:
            return f"Resize with {name} {value} has no function in torch here"
    nearest = node.attributes.get_string("mode", "nearest") == "nearest"
    if nearest and node.attributes.get_string("coordinate_transformation_mode", "") == "half_pixel_symmetric":
        # Its middle lies exactly on an input, or between two: the last bit of float32 decides which is nearest.
        return "Resize with mode nearest and half_pixel_symmetric has no function in torch here"
    return None
