"""Operators that copy values, and those that make tensors from shapes."""

import math
from collections.abc import Sequence

import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional

from quantry.execute.interpreter.elementwise import torch_type

_PAD_MODES = {"edge": "replicate", "reflect": "reflect", "wrap": "circular"}


def identity(x: Tensor) -> Tensor:
    """ONNX Identity."""
    return x


def dropout(
    x: Tensor,
    ratio: Tensor | None = None,  # noqa: ARG001 - only used in training
    training_mode: Tensor | None = None,  # noqa: ARG001 - refused unless false
) -> Tensor:
    """ONNX Dropout in inference."""
    return x


def reshape(x: Tensor, *, shape: Sequence[int], allowzero: int = 0, keep_batch: bool = False) -> Tensor:
    """ONNX Reshape.

    Args:
        x: Any tensor.
        shape: Its new lengths: 0 keeps one, -1 takes what remains.
        allowzero: Whether 0 is a length of 0 instead.
        keep_batch: Whether a first length of 1 becomes the batch of a model that runs on several samples at once.
    """
    lengths = [x.shape[axis] if length == 0 and not allowzero else length for axis, length in enumerate(shape)]
    if keep_batch and lengths and lengths[0] == 1 and x.dim() and x.shape[0] > 1:
        rest = math.prod(length for length in lengths[1:] if length != -1)
        if -1 in lengths[1:] or rest * x.shape[0] == x.numel():
            lengths[0] = x.shape[0]
    return x.reshape(lengths)


def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    """ONNX Flatten to a matrix."""
    axis = axis % x.dim() if axis < 0 else axis
    return x.reshape(1, -1) if axis == 0 else x.reshape(math.prod(x.shape[:axis]), -1)


def transpose(x: Tensor, *, perm: Sequence[int] | None = None) -> Tensor:
    """ONNX Transpose; without an order the axes are reversed."""
    return x.permute(*(reversed(range(x.dim())) if perm is None else perm))


def squeeze(x: Tensor, *, axes: Sequence[int] | None = None) -> Tensor:
    """ONNX Squeeze."""
    return x.squeeze(tuple(axes)) if axes else x.squeeze()


def unsqueeze(x: Tensor, *, axes: Sequence[int]) -> Tensor:
    """ONNX Unsqueeze; the axes count in the result."""
    rank = x.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def concat(*values: Tensor, axis: int) -> Tensor:
    """ONNX Concat."""
    return torch.cat(values, axis)


def split(x: Tensor, *, split: Sequence[int] | None = None, axis: int = 0, num_outputs: int) -> tuple[Tensor, ...]:
    """ONNX Split; without lengths the parts are equal, except that the last may be shorter."""
    if not split:
        length = x.shape[axis]
        each = -(-length // num_outputs)
        split = [max(0, min(each, length - part * each)) for part in range(num_outputs)]
    return tuple(torch.split(x, list(split), axis))


def slice_(
    x: Tensor,
    *,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> Tensor:
    """ONNX Slice; bounds beyond an axis mean its end."""
    sliced = range(len(starts)) if axes is None else axes
    strides = [1] * len(starts) if steps is None else steps
    for axis, start, end, step in zip(sliced, starts, ends, strides, strict=True):
        if step < 0:
            # torch only steps forwards: reverse the axis, and count the bounds from its other end.
            size = x.shape[axis]
            x = x.flip(axis)
            first, last = (bound + size if bound < 0 else bound for bound in (start, max(end, -size - 1)))
            start, end, step = size - 1 - min(first, size - 1), size - 1 - last, -step  # noqa: PLW2901
        x = torch.ops.aten.slice.Tensor(x, axis, start, end, step)
    return x


def gather(x: Tensor, index: Tensor, *, axis: int = 0) -> Tensor:
    """ONNX Gather; negative indices count from the end, which torch refuses."""
    axis %= x.dim()
    index = index.to(x.device, torch.int64)
    index = torch.where(index < 0, index + x.shape[axis], index)
    picked = torch.index_select(x, axis, index.reshape(-1))
    return picked.reshape([*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]])


def expand(x: Tensor, *, shape: Sequence[int]) -> Tensor:
    """ONNX Expand; both shapes broadcast."""
    return x.expand(torch.broadcast_shapes(x.shape, tuple(shape)))


def tile(x: Tensor, *, repeats: Sequence[int]) -> Tensor:
    """ONNX Tile."""
    return x.repeat(list(repeats))


def pad(
    x: Tensor,
    *,
    pads: Sequence[int],
    value: float | None = None,
    axes: Sequence[int] | None = None,
    mode: str = "constant",
) -> Tensor:
    """ONNX Pad; negative amounts crop.

    Args:
        x: Any tensor.
        pads: What is added in front of each axis, then after each.
        value: What is added in mode "constant"; None for 0.
        axes: The axes that are meant; None for all.
        mode: "constant", "edge", "reflect" or "wrap".
    """
    rank = x.dim()
    padded = list(range(rank)) if axes is None else [axis % rank for axis in axes]
    pairs = {axis: (pads[index], pads[index + len(padded)]) for index, axis in enumerate(padded)}
    flat = [amount for axis in reversed(range(rank)) for amount in pairs.get(axis, (0, 0))]
    if mode == "constant":
        return functional.pad(x, flat, "constant", value or 0)
    if rank == 4 and not any(flat[4:]) and min(flat) >= 0 and mode != "wrap":
        return functional.pad(x, flat[:4], _PAD_MODES[mode])
    # torch pads other axes only with constants, so pick the copies one axis after the other.
    for axis, (before, after) in pairs.items():
        if before or after:
            last = x.shape[axis] - 1
            sources = [_source(position, last, mode) for position in range(-before, last + 1 + after)]
            x = x.index_select(axis, torch.tensor(sources, device=x.device))
    return x


def _source(position: int, last: int, mode: str) -> int:
    """Return which of the values 0 to ``last`` is at a place before, on or after them."""
    if mode == "edge" or not last:
        return min(max(position, 0), last)
    if mode == "wrap":
        return position % (last + 1)
    position %= 2 * last
    return min(position, 2 * last - position)


def pad_refusal(node: ir.Node) -> str | None:
    """Return why a Pad cannot be computed, or None."""
    mode = node.attributes["mode"].as_string() if "mode" in node.attributes else "constant"
    return None if mode == "constant" or mode in _PAD_MODES else f"Pad by mode {mode} has no function in torch here"


def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """ONNX DepthToSpace."""
    if mode == "CRD":
        return functional.pixel_shuffle(x, blocksize)
    n, c, h, w = x.shape
    blocks = x.reshape(n, blocksize, blocksize, c // blocksize**2, h, w)
    return blocks.permute(0, 3, 4, 1, 5, 2).reshape(n, c // blocksize**2, h * blocksize, w * blocksize)


def space_to_depth(x: Tensor, *, blocksize: int) -> Tensor:
    """ONNX SpaceToDepth."""
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // blocksize, blocksize, w // blocksize, blocksize)
    return blocks.permute(0, 3, 5, 1, 2, 4).reshape(n, c * blocksize**2, h // blocksize, w // blocksize)


def shape(x: Tensor, *, start: int = 0, end: int | None = None) -> Tensor:
    """ONNX Shape."""
    return torch.tensor(list(x.shape)[start:end])


def constant(*, value: Tensor) -> Tensor:
    """ONNX Constant."""
    return value


def constant_refusal(node: ir.Node) -> str | None:
    """Return why a Constant cannot be computed, or None."""
    return None if "value" in node.attributes else "Constant without the attribute value has no function in torch here"


def constant_of_shape(*, shape: Sequence[int], value: Tensor | None = None) -> Tensor:
    """ONNX ConstantOfShape."""
    fill = torch.zeros(()) if value is None else value.reshape(())
    return fill.expand(list(shape))


def range_(start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    """ONNX Range."""
    return torch.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype, device=start.device)


def size(x: Tensor) -> Tensor:
    """ONNX Size."""
    return torch.tensor(x.numel())


def eye_like(x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    """ONNX EyeLike: ones on a diagonal of a matrix."""
    ones = torch.ones(x.shape, dtype=x.dtype if dtype is None else torch_type(dtype), device=x.device)
    return torch.tril(torch.triu(ones, k), k)
